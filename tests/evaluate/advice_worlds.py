"""Worlds in which the truth is known: runs with V as a noisy sight of a hidden course, and what AMC really gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from langgraph_amc.smc import Arrival, Finished, Schedule, Tempering, drive, ess_target, every, particle_filter
from langgraph_amc.trajectories.types import Trajectory, Usage


@dataclass(frozen=True)
class World:
    """Every run takes ``steps`` steps; one that is on course at the end has succeeded.

    keep: chance per step to stay on course, a mean over tasks; spread: its standard deviation over tasks, in logits.
    back: chance per step to get back on course.
    sight: discriminability d' of V, 0 for a blind one: V is the posterior after one look of N(d'·on course, 1), and
        what is still to come is discounted, so that V is calibrated.
    guess: V is a random number.
    alike: all runs of a task are the same run.
    """

    steps: int = 12
    keep: float = 0.87
    spread: float = 0.4
    back: float = 0.0
    sight: float = 2.0
    guess: bool = False
    alike: bool = False

    def keeps(self, task: int) -> float:
        rng = np.random.default_rng((task, 77))
        return float(1 / (1 + math.exp(-math.log(self.keep / (1 - self.keep)) - self.spread * rng.normal())))

    def move(self, on: bool, keep: float, rng: np.random.Generator) -> bool:
        return bool(rng.random() < (keep if on else self.back))

    def value(self, on: bool, step: int, rng: np.random.Generator) -> float:
        """V of a state: how likely it ends well as far as one noisy look can tell."""
        if self.guess:
            return float(rng.random())
        mean = 1.0
        for _ in range(step):
            mean = mean * self.keep + (1 - mean) * self.back
        odds = mean / (1 - mean + 1e-9) * math.exp(self.sight * rng.normal(self.sight * on) - self.sight**2 / 2)
        chance = odds / (1 + odds)
        for _ in range(step, self.steps):
            chance = chance * self.keep + (1 - chance) * self.back
        return chance

    def runs(self, tasks: int, runs: int, seed: int = 0) -> list[Trajectory]:
        """A pilot; the text of each state holds its V, for `read`."""
        found = []
        for task in range(tasks):
            rng = np.random.default_rng((seed, task))
            for run in range(runs):
                if self.alike:
                    rng = np.random.default_rng((seed, task))
                on, texts = True, [f"task {task}\n"]
                for step in range(1, self.steps + 1):
                    on = self.move(on, self.keeps(task), rng)
                    v = self.value(on, step, rng)
                    texts.append(f"step {step} {rng.random()} v={v:.6f}\n")
                usage = Usage(self.steps, 100 * self.steps, 10 * self.steps, 0.001)
                found.append(
                    Trajectory(f"r{task}", f"p{run}", tuple(texts), outcome=float(on), task_id=f"t{task}", usage=usage)
                )
        return found

    def gain(
        self,
        particles: int,
        schedule: Schedule | None = None,
        tempering: Tempering | None = None,
        tasks: int = 400,
        seed: int = 1,
    ) -> tuple[float, float, float]:
        """What AMC truly gains over best-of-N on fresh tasks: (observable, chosen by V, standard error)."""
        differences = []
        for task in range(1000, 1000 + tasks):
            rng = np.random.default_rng((seed, task))
            population = _Truth(self, self.keeps(task), rng)
            events = particle_filter(
                population,
                particles=particles,
                schedule=schedule or every(3),
                tempering=tempering or ess_target(0.5),
                rng=rng,
            )
            finals = next(e for e in drive(events) if isinstance(e, Finished)).result.finals
            alone = _Truth(self, self.keeps(task), rng)
            for particle in (founders := [_Walker() for _ in range(particles)]):
                alone.walk(particle, self.steps)
            steered = [f.particle for f in finals]
            differences.append(
                (
                    any(p.on for p in steered) - any(p.on for p in founders),
                    float(max(steered, key=lambda p: p.v).on) - float(max(founders, key=lambda p: p.v).on),
                )
            )
        found = np.array(differences, dtype=float)
        return float(found[:, 0].mean()), float(found[:, 1].mean()), float(found[:, 1].std() / math.sqrt(tasks))


class Reader:
    """V as the text of a state says."""

    def score(self, transcripts: Sequence[Sequence[str]]) -> np.ndarray:
        return np.array([float(s[-1].split("v=")[1]) if len(s) > 1 else 0.5 for s in transcripts])


class _Walker:
    def __init__(self, on: bool = True, step: int = 0) -> None:
        self.on, self.step, self.v = on, step, 0.5


class _Truth:
    """The filter's population in which clones really go on by chance from where they stand."""

    def __init__(self, world: World, keep: float, rng: np.random.Generator) -> None:
        self.world, self.keep, self.rng = world, keep, rng

    def walk(self, particle: _Walker, until: int) -> None:
        while particle.step < until:
            particle.on = self.world.move(particle.on, self.keep, self.rng)
            particle.step += 1
        particle.v = self.world.value(particle.on, particle.step, self.rng)

    async def start(self, n: int) -> Sequence[_Walker]:
        return [_Walker() for _ in range(n)]

    async def advance(self, particles: Sequence[_Walker], until: int | None) -> Sequence[Arrival]:
        steps = self.world.steps
        for particle in particles:
            self.walk(particle, steps if until is None else min(until, steps))
        return [Arrival(p.v if p.step == steps else 0.0, done=p.step == steps) for p in particles]

    async def score(self, particles: Sequence[_Walker]) -> ArrayLike:
        return [p.v for p in particles]

    async def fork(self, particle: _Walker) -> _Walker:
        return _Walker(particle.on, particle.step)

    async def prune(self, particle: _Walker) -> None: ...
