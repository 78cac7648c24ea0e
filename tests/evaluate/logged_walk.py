"""A walk on which a step goes wrong for good with a chance of its task, and V that sees it through noise.

`truth` runs the real filter on the real walk; `walks` logs independent ones. So predictions can be held against it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from langgraph_amc.evaluate.logged import LoggedRun, LoggedRuns
from langgraph_amc.evaluate.simulate import Arm
from langgraph_amc.smc import Arrival, Finished, drive, particle_filter

STEPS = 8


@dataclass(slots=True, eq=False)
class Walker:
    right: bool
    step: int
    error: float


@dataclass
class Walk:
    """A population of walkers; ``sees``: how far apart right and wrong are in V, in deviations of its noise."""

    stays: float
    sees: float
    rng: np.random.Generator
    lasts: float = 0.0
    """How much of V's error stays from step to step."""

    def value(self, w: Walker) -> float:
        if w.step == STEPS:
            return float(w.right)
        seen = self.sees * (self.sees * w.right + w.error - self.sees / 2)
        return 0.85 ** (STEPS - w.step) / (1 + math.exp(-seen))

    def move(self, w: Walker) -> None:
        w.step += 1
        w.right = w.right and self.rng.random() < self.stays
        w.error = self.lasts * w.error + math.sqrt(1 - self.lasts**2) * self.rng.normal()

    async def start(self, n: int) -> Sequence[Walker]:
        return [Walker(True, 0, self.rng.normal()) for _ in range(n)]

    async def advance(self, particles: Sequence[Walker], until: int | None) -> Sequence[Arrival]:
        for w in particles:
            while w.step < (STEPS if until is None else min(until, STEPS)):
                self.move(w)
        return [Arrival(float(w.right and w.step == STEPS), w.step == STEPS) for w in particles]

    async def score(self, particles: Sequence[Walker]) -> Any:
        return [self.value(w) for w in particles]

    async def fork(self, w: Walker) -> Walker:
        return Walker(w.right, w.step, w.error)

    async def prune(self, w: Walker) -> None: ...


def truth(arm: Arm, stays: Sequence[float], sees: float, repeats: int, seed: int = 0, lasts: float = 0.0) -> float:
    """How often the best answer of a real population is right; V of a finished walk is perfect."""
    rng = np.random.default_rng(seed)
    right = []
    for chance in [*stays] * repeats:
        events = drive(
            particle_filter(
                Walk(chance, sees, rng, lasts),
                particles=arm.particles,
                schedule=arm.schedule,
                tempering=arm.tempering,
                rng=rng,
            )
        )
        [result] = [event.result for event in events if isinstance(event, Finished)]
        right.append(max(final.reward for final in result.finals))
    return float(np.mean(right))


def walks(stays: Sequence[float], sees: float, runs: int, seed: int = 0, lasts: float = 0.0) -> LoggedRuns:
    rng = np.random.default_rng(seed)
    found = []
    for i, chance in enumerate(stays):
        walk = Walk(chance, sees, rng, lasts)
        for _ in range(runs):
            w = Walker(True, 0, rng.normal())
            values = [math.nan]
            while w.step < STEPS:
                walk.move(w)
                values.append(walk.value(w))
            spent = np.arange(STEPS + 1.0)
            found.append(
                LoggedRun(f"t{i:02}", np.array(values), np.zeros(STEPS + 1), float(w.right), spent, failed=False)
            )
    return LoggedRuns(tuple(found), "steps")
