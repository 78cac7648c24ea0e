"""What AMC is expected to gain over best-of-N: the real filter over particles that follow a fitted `course`.

Best-of-N and AMC begin with the same founders, and a particle that is not pruned keeps its own future, so that they
differ only where resampling does something. The interval is over tasks: each of a number of bootstrap samples is
fitted and simulated anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from langgraph_amc.evaluate.advice.course import Course, Floats, Log, fit, read_log
from langgraph_amc.evaluate.advice.measure import Rewards
from langgraph_amc.evaluate.advice.pilot import Pilot
from langgraph_amc.evaluate.logged import LoggedRuns, read_runs
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.smc import (
    Arrival,
    Candidate,
    Finished,
    Resampled,
    Schedule,
    Tempering,
    best_value,
    drive,
    particle_filter,
)
from langgraph_amc.value.protocol import ValueFunction

Progress = Callable[[int, int], None]
_TABLE = 64
_BOOTSTRAP_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Column:
    """Mean reward of the answer: measured for best-of-N, and what AMC is expected to add, with 95 % intervals."""

    best_of_n: Estimate
    amc: float
    gain: Estimate


@dataclass(frozen=True, slots=True)
class Gain:
    """What is expected at N = ``particles``.

    Attributes
    ----------
    selected: the answer is the one V prefers at the end, for best-of-N too.
    observable: the reward says which run is best; where it does not when serving, an oracle.
    resamplings: per AMC run. checks: boundaries per run at which the schedule could resample.
    spent: AMC's steps over best-of-N's.
    decided: by boundary, from 0: the share of the variance of the outcome within a task that is decided there,
        [longest + 1]; what there is to harvest, whether V sees it or not.
    misfit: best-of-N in the model less best-of-N as measured, where the reward is observable.
    """

    particles: int
    tasks: int
    selected: Column
    observable: Column
    resamplings: float
    checks: float
    spent: float
    decided: tuple[float, ...]
    misfit: float


def scored(pilot: Pilot, value: ValueFunction, progress: Progress | None = None) -> LoggedRuns:
    """The pilot's runs with V at every state, in the same order."""
    return read_runs(pilot.trajectories, value, progress=progress)


def expected_gain(
    runs: LoggedRuns,
    rewards: Rewards,
    schedule: Schedule,
    tempering: Tempering,
    *,
    replicates: int = 30,
    bootstrap: int = 24,
    seed: int = 0,
) -> Gain:
    """Simulate AMC and best-of-N at N = ``rewards.best_of``, ``replicates`` times per task.

    In each column particles weigh as in `evaluate.compare`: by V alone, no reward is shown to them on their way.
    ``rewards`` are those measured on the same runs.
    """
    rng = np.random.default_rng(seed)
    n = rewards.best_of
    log = read_log(runs)
    course = fit(log)
    low, high = (float(f(run.total for run in runs.runs)) for f in (min, max))
    point = _simulate(course, log, n, schedule, tempering, replicates, rng)
    sampled = []
    for _ in range(bootstrap):
        again = log.of(rng.integers(log.tasks, size=log.tasks))
        refitted = fit(again, course, _BOOTSTRAP_ROUNDS)
        sampled.append(_simulate(refitted, again, n, schedule, tempering, max(2, replicates // 5), rng))
    scale = high - low
    possible = np.cumsum([0, *(schedule.possible(b) for b in range(1, int(log.steps.max()) + 1))])
    return Gain(
        n,
        log.tasks,
        _column(rewards.chosen or rewards.best, [s.selected for s in (point, *sampled)], scale, high),
        _column(rewards.best, [s.observable for s in (point, *sampled)], scale, high),
        point.resamplings,
        float(possible[np.maximum(log.steps - 1, 0)].mean()),
        point.spent,
        tuple(course.decided().tolist()),
        low + scale * point.best_of_n - rewards.best.mean,
    )


@dataclass(frozen=True, slots=True)
class _Simulated:
    """Differences AMC − best-of-N, one per simulated run, in shares of the range of rewards; and means."""

    selected: Floats
    observable: Floats
    best_of_n: float
    resamplings: float
    spent: float


def _column(best: Estimate, samples: Sequence[Floats], scale: float, highest: float) -> Column:
    point, *rest = samples
    noise = float(np.mean([d.var() / d.size for d in rest]))  # of the simulation, not of the tasks
    sampled = float(np.var([d.mean() for d in rest], ddof=1))
    variance = max(sampled - noise, sampled / 2) + float(point.var() / point.size)
    mean, half = scale * float(point.mean()), 1.96 * scale * variance**0.5
    gain = Estimate(mean, mean - half, mean + half)
    return Column(best, min(highest, best.mean + mean), gain)


def _simulate(
    course: Course,
    log: Log,
    n: int,
    schedule: Schedule,
    tempering: Tempering,
    replicates: int,
    rng: np.random.Generator,
) -> _Simulated:
    world = _World(course, log, rng)
    differences, best, resamplings, spent = [], [], 0, [0, 0]
    for task in range(log.tasks):
        for _ in range(replicates):
            population = _Population(world, task)
            events = particle_filter(population, particles=n, schedule=schedule, tempering=tempering, rng=rng)
            for event in drive(events):
                resamplings += isinstance(event, Resampled)
                if isinstance(event, Finished):
                    steered = [final.particle for final in event.result.finals]
            alone = population.founders
            differences.append((_chosen(steered) - _chosen(alone), _top(steered) - _top(alone)))
            best.append(_top(alone))
            spent[0] += population.steps
            spent[1] += sum(p.length for p in alone)
    selected, observable = np.array(differences).T
    return _Simulated(selected, observable, float(np.mean(best)), resamplings / len(best), spent[0] / spent[1])


def _top(particles: Sequence[_Path]) -> float:
    return max(p.reward for p in particles)


def _chosen(particles: Sequence[_Path]) -> float:
    able = [p for p in particles if not p.failed]
    if not able:
        return particles[0].reward
    candidates = [Candidate(0.0, p.last, None, None) for p in able]
    return able[best_value(np.random.default_rng(0), candidates)].reward


@dataclass(slots=True, eq=False)
class _Path:
    """A particle and its future: hidden states by step, and how it will end."""

    on: list[bool]
    length: int
    reward: float
    last: float
    failed: bool
    step: int = 0


class _World:
    """Draws futures from a course; plain lists, because they are drawn step by step."""

    def __init__(self, course: Course, log: Log, rng: np.random.Generator) -> None:
        self.rng = rng
        self.sight = log.sight
        self.share = course.share
        self.on, self.end = course.on.tolist(), course.end.tolist()
        self.looks = [[_table(log.sight.rest[:, t], course.weight[:, t, z]) for z in (0, 1)] for t in _steps(course)]
        ends = (1 - log.well, log.well)
        self.lasts = [_table(log.sight.end, w) for w in ends]
        self.rewards = [_table(log.well, w) for w in ends]

    def path(self, task: int, kind: int, before: _Path | None = None) -> _Path:
        """A run from its start, or from where another one stands."""
        on, end, random = self.on[kind], self.end[kind], self.rng.random
        states = [True] if before is None else before.on[: before.step + 1]
        t, state = len(states) - 1, states[-1]
        while True:
            t += 1
            state = bool(random() < on[t][state])
            states.append(state)
            if random() < end[t][state]:
                break
        rest = _drawn(self.lasts[state], random())
        last = self.sight.value(rest, float(self.sight.last[task])) if rest > -np.inf else 0.0
        reward = _drawn(self.rewards[state], random())
        return _Path(states, t, reward, last, rest == -np.inf, 0 if before is None else before.step)

    def look(self, path: _Path, task: int) -> float:
        """V of where a particle stands."""
        table = self.looks[path.step][path.on[path.step]]
        return self.sight.value(_drawn(table, self.rng.random()), float(self.sight.live[task]))


def _steps(course: Course) -> range:
    return range(course.on.shape[1])


def _table(values: Floats, weights: Floats) -> list[float]:
    """Quantiles of weighted values, from which one is drawn by its position."""
    known = ~np.isnan(values)
    values, weights = values[known], weights[known]
    if not values.size:
        return [0.0]
    if not weights.sum() > 0:
        weights = np.ones(len(values))
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    at = np.searchsorted(reached, (np.arange(_TABLE) + 0.5) / _TABLE * reached[-1])
    table: list[float] = values[order][np.minimum(at, len(values) - 1)].tolist()
    return table


def _drawn(table: list[float], uniform: float) -> float:
    return table[int(uniform * len(table))]


class _Population:
    """N particles on one task, as the filter sees them."""

    def __init__(self, world: _World, task: int) -> None:
        self.world, self.task = world, task
        self.kind = int(np.searchsorted(np.cumsum(world.share[task]), world.rng.random()))
        self.kind = min(self.kind, world.share.shape[1] - 1)
        self.founders: list[_Path] = []
        self.steps = 0

    async def start(self, n: int) -> Sequence[_Path]:
        self.founders = [self.world.path(self.task, self.kind) for _ in range(n)]
        return list(self.founders)

    async def advance(self, particles: Sequence[_Path], until: int | None) -> Sequence[Arrival]:
        arrivals = []
        for p in particles:
            before, p.step = p.step, p.length if until is None else min(until, p.length)
            self.steps += p.step - before
            done = p.step == p.length
            arrivals.append(Arrival(p.last if done else 0.0, done=done, failed=done and p.failed))
        return arrivals

    async def score(self, particles: Sequence[_Path]) -> ArrayLike:
        return [self.world.look(p, self.task) for p in particles]

    async def fork(self, particle: _Path) -> _Path:
        return self.world.path(self.task, self.kind, particle)

    async def prune(self, particle: _Path) -> None:
        """Nothing is held."""
