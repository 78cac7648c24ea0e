"""Does going back to earlier states pay? A simulated world of irreversible mistakes, without any model.

Each of T steps is right with probability q; one mistake dooms a run. V is a calibrated chance of success from a noisy
look at the state (``d``: how well it tells dead from alive), ``delay`` steps late. Prints the share of runs of which
a particle succeeds, and the steps taken, without and with `backtrack`. Run: ``python benchmarks/backtracking.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from langgraph_amc.smc import Arrival, Finished, backtrack, drive, ess_target, every, particle_filter

STEPS, RIGHT, PARTICLES = 15, 0.87, 8


@dataclass(eq=False)
class Walker:
    alive: tuple[bool, ...] = ()


@dataclass
class World:
    rng: np.random.Generator
    d: float
    delay: int
    taken: int = field(default=0)

    async def start(self, n: int) -> list[Walker]:
        return [Walker() for _ in range(n)]

    async def advance(self, particles: Sequence[Walker], until: int | None) -> list[Arrival]:
        for walker in particles:
            while len(walker.alive) < min(until or STEPS, STEPS):
                right = all(walker.alive[-1:]) and self.rng.random() < RIGHT
                walker.alive, self.taken = (*walker.alive, right), self.taken + 1
        ended = [len(walker.alive) == STEPS for walker in particles]
        return [Arrival(float(end and w.alive[-1]), end) for w, end in zip(particles, ended, strict=True)]

    async def score(self, particles: Sequence[Walker]) -> list[float]:
        return [self._chance(walker) for walker in particles]

    def _chance(self, walker: Walker) -> float:
        seen = max(0, len(walker.alive) - self.delay)
        prior = RIGHT**seen
        odds = np.exp(self.d * self.rng.normal(self.d * all(walker.alive[:seen][-1:])) - self.d**2 / 2)
        return float(prior * odds / (prior * odds + 1 - prior) * RIGHT ** (STEPS - seen))

    async def fork(self, particle: Walker) -> Walker:
        return Walker(particle.alive)

    async def park(self, particle: Walker) -> Walker:
        return Walker(particle.alive)

    async def prune(self, particle: Walker) -> None:
        pass


def study(d: float, delay: int, discount: float | None, runs: int) -> tuple[float, float]:
    """Share of runs that are solved, and steps per run."""
    solved = taken = 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        world = World(rng, d, delay)
        how: dict[str, Any] = {} if discount is None else {"backtrack": (backtrack(discount), world)}
        tempering = ess_target(0.5)
        events = particle_filter(
            world, particles=PARTICLES, schedule=every(3), tempering=tempering, rng=rng, max_boundary=STEPS, **how
        )
        *_, last = drive(events)
        assert isinstance(last, Finished)
        solved += any(final.reward > 0 for final in last.result.finals)
        taken += world.taken
    return solved / runs, taken / runs


def main(runs: int) -> None:
    print(f"{'delay':>5} {'d':>3} {'discount':>9} {'solved':>7} {'steps':>6}   ({runs} runs each)")
    for delay in (0, 3, 5):
        for d in (1.0, 2.0):
            for discount in (None, 0.5, 0.8, 0.9, 0.97):
                share, steps = study(d, delay, discount, runs)
                print(f"{delay:>5} {d:>3.0f} {discount or 'never':>9} {share:>7.3f} {steps:>6.1f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 600)
