"""Who is running: the particle on whose behalf the current node, tool or model call executes."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParticleContext:
    """Identity of one particle inside one AMC run.

    Attributes
    ----------
    run_id: unique per AMC run (a fresh UUID hex).
    particle: unique within the run, ``"p0"``, ``"p1"``, ... Clones get new names.
    seed: 63-bit integer, a pure function of (run seed, particle); models may derive sampling seeds from it.
    """

    run_id: str
    particle: str
    seed: int


current_particle: ContextVar[ParticleContext | None] = ContextVar("amc_current_particle", default=None)
"""Set while a particle's nodes, tools and model calls run; ``None`` in a plain run."""

current_boundary: ContextVar[int] = ContextVar("amc_current_boundary", default=0)
"""Boundary from which the current particle runs on: with the particle, where in the run a call is made."""
