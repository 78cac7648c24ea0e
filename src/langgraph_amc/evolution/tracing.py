"""A generation of evolution as spans and numbers: its members, what they were worth, the step that was taken.

A member's rollouts are traces of their own, which name it and link to the generation; its span sums them up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from langgraph_amc.evolution.members import Generation, Member
from langgraph_amc.telemetry import instruments, names, span
from langgraph_amc.telemetry.spans import given, past

if TYPE_CHECKING:
    from langgraph_amc.evolution.history import Record


def member_id(member: Member) -> str:
    """A member's name within its generation: ``"3+"`` and ``"3-"`` go opposite ways along direction 3."""
    return f"{member.pair}{'+' if member.sign > 0 else '-'}"


@contextmanager
def traced(generation: Generation) -> Iterator[Callable[[Record, int], None]]:
    """A span around a generation; call what it yields with the record and how many rollouts were run."""
    facts = {
        names.KIND: "CHAIN",
        names.ES_GENERATION_NUMBER: generation.number,
        names.ES_POPULATION: len(generation.members),
        names.ES_SIGMA: generation.sigma,
    }
    began = time.perf_counter()
    with span(names.ES_GENERATION, facts) as started:

        def done(record: Record, rollouts: int) -> None:
            fitness = {m: _mean(row) for m, row in zip(generation.members, record.rewards, strict=True)}
            known = [f for f in fitness.values() if f == f]
            best = max(known, default=float("nan"))
            found: dict[str, Any] = {names.ES_SIGNAL: record.update.signal_to_noise, names.ES_ROLLOUTS: rollouts}
            found |= {names.WEIGHTS: record.weights, names.ES_FITNESS_BEST: best}
            found |= {names.ES_FITNESS: known, names.ES_FITNESS_MEAN: float(np.mean(known)) if known else None}
            started.set_attributes(given(found))
            seconds = time.perf_counter() - began
            measured = instruments()
            for member, worth in fitness.items():
                what = {names.KIND: "CHAIN", names.ES_MEMBER_ID: member_id(member), names.ES_FITNESS: worth}
                past(names.ES_MEMBER, seconds, {**what, names.ES_GENERATION_NUMBER: generation.number})
                if measured is not None and worth == worth:
                    measured.fitness.record(worth)

        yield done


def _mean(row: np.ndarray) -> float:
    return float("nan") if np.isnan(row).all() else float(np.nanmean(row))
