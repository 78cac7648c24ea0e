"""Who is running: the particle and the member on whose behalf the current node, tool or model call executes, and what
it is told beside the app's own prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count


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


@dataclass(frozen=True, slots=True, eq=False)
class RolloutNoise:
    """Sampling noise that rollouts of different members have in common.

    One object per rollout, in whatever task or thread its calls are made.

    Attributes
    ----------
    key: what the rollouts share, for example (generation, task id, repeat); equal keys mean equal noise.
    """

    key: tuple[Hashable, ...]
    _calls: defaultdict[str, Iterator[int]] = field(init=False, default_factory=lambda: defaultdict(count))

    def number(self, place: str) -> int:
        """The next number of the calls that this place of the app makes: places may call at the same time."""
        return next(self._calls[place])


current_member: ContextVar[Hashable | None] = ContextVar("amc_current_member", default=None)
"""Variant of a local model's weights that answers the current rollout's calls; ``None`` for the weights as they are."""

rollout_noise: ContextVar[RolloutNoise | None] = ContextVar("amc_rollout_noise", default=None)
"""Where set, local models seed a call from this noise only, not from the member and not from the prompt."""


@dataclass(slots=True, eq=False)
class Instructions:
    """Text that model calls get beside the app's own prompt.

    Attributes
    ----------
    text: as it stands in the prompt; empty adds nothing.
    placed: how many calls have got it, or have been asked to hold nothing.
    """

    text: str
    placed: int = 0


instructions: ContextVar[Instructions | None] = ContextVar("amc_instructions", default=None)
"""What models that place instructions (`policy.instructions`) add to each call; ``None`` leaves the prompt alone."""
