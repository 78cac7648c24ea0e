"""Agentic Monte Carlo replayed on logged runs: what a schedule, a sharpness, an N would have brought, at no cost.

The filter is the real one (`smc.particle_filter`), over particles that follow logged runs: N runs of a task, drawn
without replacement, are the founders, V of their states is looked up. What the log cannot hold is how a clone would
have gone on. It goes on as another logged run that stood, at the same step, in the same hidden state (`hindsight`)
with a like V: one of the same task, or of a *twin*, a task that may be as hard. A task's few runs do not tell how hard
it is: each replicate draws that from its posterior and takes the `TWINS` tasks that come nearest. Runs of any other
task would not do: a hopeless task would be solved by leaving it. All this is a model (`benchmarks/tune_check.py` holds
it against the real thing). What it does not touch is exact: one run and best-of-N are averages over the log.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from langgraph_amc.evaluate.hindsight import Hindsight, fit, scaled_returns
from langgraph_amc.evaluate.logged import Floats, LoggedRuns, LoggedRunsError
from langgraph_amc.smc import (
    Arrival,
    Candidate,
    Finished,
    Resampled,
    Schedule,
    SelectionError,
    Selector,
    Tempering,
    drive,
    ess_target,
    particle_filter,
)

TWINS = 3
"""Tasks that lend a task their runs."""
PRIOR = 2.0
"""How many runs the mean over all tasks counts for, in the posterior of how hard a task is."""
NEAR = 0.5
"""Width of "a like V", in standard deviations of V at that step within a task."""


@dataclass(frozen=True, slots=True)
class Arm:
    """What is simulated: a way of resampling, and how many particles."""

    particles: int
    schedule: Schedule
    tempering: Tempering = field(default_factory=ess_target)


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """One arm on all tasks, each entry the mean over the replicates of a task.

    Attributes
    ----------
    rewards: by selection's name, [tasks]: true return of the chosen answer.
    oracle: of the best answer there was, [tasks].
    spent: tokens (or steps) of all particles together, pruned ones included, [tasks].
    resamplings: [tasks].
    """

    arm: Arm
    rewards: dict[str, Floats]
    oracle: Floats
    spent: Floats
    resamplings: Floats


@dataclass(slots=True, eq=False)
class _Particle:
    """Follows a logged run from where it stands."""

    run: int
    step: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _World:
    """What a replicate takes for true: hidden states [runs, steps] and which tasks are alike [tasks, tasks]."""

    hidden: NDArray[np.int8]
    alike: NDArray[np.bool_]


class Simulator:
    """AMC on logged runs; ``simulate`` replays one arm.

    Parameters
    ----------
    runs: at least two for each task.
    observable: whether the true return of a finished run is known when serving; else V of its last state stands in.
    hindsight: False lets a clone go on as any run with a like V, as if V told all there is to know of a state.

    Raises LoggedRunsError for a task with one run.
    """

    def __init__(self, runs: LoggedRuns, *, observable: bool = False, hindsight: bool = True) -> None:
        self.tasks = runs.tasks
        self._runs = runs.runs
        self._members = runs.per_task
        if alone := [task for task, members in self._members.items() if len(members) < 2]:
            raise LoggedRunsError(f"task {alone[0]!r} has one run: clones need at least a second one to go on as")
        self._observable = observable
        self._hindsight: Hindsight | None = fit(self._runs) if hindsight else None
        self._task = np.array([self.tasks.index(run.task) for run in self._runs])
        self._steps = np.array([run.steps for run in self._runs])
        self._values = np.full((len(self._runs), int(self._steps.max()) + 1), np.nan)
        for i, run in enumerate(self._runs):
            self._values[i, : run.steps + 1] = run.values
        self._well = scaled_returns(self._runs)
        self._width = [max(NEAR * self._spread(t), 1e-9) for t in range(self._values.shape[1])]

    def simulate(
        self, arm: Arm, selections: Mapping[str, Selector], *, replicates: int = 8, seed: int = 0
    ) -> Simulated:
        """Replay ``arm`` on every task ``replicates`` times; a seed gives every arm the same founders and futures.

        Raises LoggedRunsError where a task has fewer runs than there are particles.
        """
        rewards = {name: np.zeros(len(self.tasks)) for name in selections}
        oracle, spent, resamplings = (np.zeros(len(self.tasks)) for _ in range(3))
        worlds = [self._world(np.random.default_rng((seed, r))) for r in range(replicates)]
        for i, task in enumerate(self.tasks):
            if len(self._members[task]) < arm.particles:
                raise LoggedRunsError(
                    f"task {task!r} has {len(self._members[task])} runs, fewer than {arm.particles} particles: "
                    "collect more, or simulate fewer"
                )
            for r in range(replicates):
                rng = np.random.default_rng((seed, r, zlib.crc32(task.encode())))
                one = _Replay(self, task, worlds[r], rng)
                candidates, truth = one.run(arm)
                for name, select in selections.items():
                    rewards[name][i] += _chosen(select, rng, candidates, truth) / replicates
                oracle[i] += max(truth) / replicates
                spent[i] += one.spent / replicates
                resamplings[i] += one.resamplings / replicates
        return Simulated(arm, rewards, oracle, spent, resamplings)

    def going_on(self, at: _Particle, pool: NDArray[np.int64], world: _World, rng: np.random.Generator) -> int:
        """The logged run, of those in ``pool``, as which a clone of ``at`` goes on; its own where there is none."""
        t = at.step
        others = pool[(self._steps[pool] > t) & (world.hidden[pool, t] == world.hidden[at.run, t])]
        others = others[others != at.run]  # the original goes that way itself
        distance = (self._values[others, t] - self._values[at.run, t]) / self._width[t]
        reached = np.cumsum(np.exp(-0.5 * distance**2))
        if not reached.size or not reached[-1]:
            return at.run
        index = np.searchsorted(reached, rng.random() * reached[-1], side="right")
        return int(others[min(index, len(others) - 1)])

    def pool(self, task: str, world: _World) -> NDArray[np.int64]:
        """Runs of a task and of its twins."""
        return np.flatnonzero(world.alike[self.tasks.index(task)][self._task])

    def _world(self, rng: np.random.Generator) -> _World:
        hidden = np.ones(self._values.shape, dtype=np.int8) if self._hindsight is None else self._hindsight.draw(rng)
        well = np.array([self._well[list(members)].sum() for members in self._members.values()])
        count = np.array([len(members) for members in self._members.values()])
        mean = float(np.clip(self._well.mean(), 0.01, 0.99))
        ease = rng.beta(well + PRIOR * mean, count - well + PRIOR * (1 - mean))
        scale = np.arcsin(np.sqrt(ease))  # on which its error is about the same everywhere
        distance = np.abs(scale[:, None] - scale)
        rank = np.argsort(np.argsort(distance, axis=1), axis=1)
        return _World(hidden, rank <= TWINS)

    def _spread(self, t: int) -> float:
        """Standard deviation of V at step t within a task, over the runs still going."""
        parts = []
        for members in self._members.values():
            going = [self._values[i, t] for i in members if self._steps[i] > t]
            if t and len(going) > 1:
                parts.append(np.var(going))
        return math.sqrt(float(np.mean(parts))) if parts else 0.0


class _Replay:
    """One population on one task: the filter's `Population` over logged runs."""

    def __init__(self, log: Simulator, task: str, world: _World, rng: np.random.Generator) -> None:
        self._log, self._world, self._rng = log, world, rng
        self._pool = log.pool(task, world)
        self._founders = rng.permutation(log._members[task])
        self.spent = 0.0
        self.resamplings = 0

    def run(self, arm: Arm) -> tuple[list[Candidate], list[float]]:
        """The finished population, and the true return of each."""
        events = particle_filter(
            self, particles=arm.particles, schedule=arm.schedule, tempering=arm.tempering, rng=self._rng
        )
        for event in drive(events):
            if isinstance(event, Resampled):
                self.resamplings += 1
            elif isinstance(event, Finished):
                finals = event.result.finals
        runs = [self._log._runs[final.particle.run] for final in finals]
        candidates = [
            Candidate(
                final.log_weight,
                float(run.values[-1]),
                run.total if self._log._observable else None,
                None,
                failed=run.failed,
            )
            for final, run in zip(finals, runs, strict=True)
        ]
        return candidates, [run.total for run in runs]

    async def start(self, n: int) -> Sequence[_Particle]:
        return [_Particle(int(run)) for run in self._founders[:n]]

    async def advance(self, particles: Sequence[_Particle], until: int | None) -> Sequence[Arrival]:
        return [self._advance(p, until) for p in particles]

    async def score(self, particles: Sequence[_Particle]) -> ArrayLike:
        return [float(self._log._values[p.run, p.step]) for p in particles]

    async def fork(self, particle: _Particle) -> _Particle:
        return _Particle(self._log.going_on(particle, self._pool, self._world, self._rng), particle.step)

    async def prune(self, particle: _Particle) -> None:
        """Nothing is held."""

    def _advance(self, particle: _Particle, until: int | None) -> Arrival:
        run = self._log._runs[particle.run]
        before, particle.step = particle.step, run.steps if until is None else min(until, run.steps)
        self.spent += float(run.spent[particle.step] - run.spent[before])
        if particle.step < run.steps:
            return Arrival(float(run.observed[particle.step]), done=False)
        outcome = run.total if self._log._observable else float(run.observed[-1] + run.values[-1])
        return Arrival(outcome, done=True, failed=run.failed)


def _chosen(
    select: Selector, rng: np.random.Generator, candidates: Sequence[Candidate], truth: Sequence[float]
) -> float:
    try:
        return truth[select(rng, candidates)]
    except SelectionError:
        if all(candidate.failed for candidate in candidates):
            return truth[0]  # nobody answers: what a failed run earns
        raise
