"""One run, best-of-N and Agentic Monte Carlo on the same tasks, seeds, N and value function.

Two honest columns: *observable*, where the world says when a run succeeded and the best is taken, and *not
observable*, where the answer is chosen by value; best-of-N chooses by the same V. Both columns read the same
runs: no reward is shown to the particles on their way. The oracle (best true reward among the particles) is
what the first column is; it is printed apart for the second.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.evaluate.execution.executor import Executor, LocalExecutor
from langgraph_amc.evaluate.per_task import CostPoint, Pool, TaskScore, best_of, by_task
from langgraph_amc.evaluate.runner import Job, NoRewardError, Outcome, Progress, paid, run_seed
from langgraph_amc.evaluate.statistics import Estimate, Scores, estimate, paired
from langgraph_amc.policy.budget import Budget
from langgraph_amc.runtime.searching import with_search
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.search import Preset, TreeSearch
from langgraph_amc.smc import Candidate, SelectionError, best_value, never, oracle
from langgraph_amc.tasks.rewards import RewardFunction
from langgraph_amc.tasks.task import Task, TaskSet

SINGLE, BEST_OF_N, SAME_TOKENS, AMC = "one run", "best-of-N", "best-of-N, same tokens", "AMC"


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One method over all tasks and seeds.

    Attributes
    ----------
    observable, selected: mean true reward of the answer, chosen by the reward and chosen by value.
    runs: particles per task, on average, pruned ones included; tokens, seconds: per task, on average. The seconds
        of one run and of the same-tokens arm are best-of-N's in proportion to their runs, not measured.
    """

    name: str
    observable: Estimate
    selected: Estimate
    runs: float
    tokens: float
    output_tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Difference:
    """AMC less another method, over the same tasks and seeds."""

    observable: Estimate
    selected: Estimate


@dataclass(frozen=True, slots=True)
class Comparison:
    """A finished comparison; ``to_json`` gives plain data."""

    label: str
    tasks: int
    seeds: tuple[int, ...]
    particles: int
    arms: tuple[ArmResult, ...]
    difference_observable: Estimate
    difference_selected: Estimate
    difference_same_tokens_observable: Estimate
    difference_same_tokens_selected: Estimate
    resamplings: float
    """Per AMC run."""
    hopeless: float
    """Share of tasks that no particle of any arm solved (best reward at its minimum over all runs)."""
    missing: int
    settings: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    by_task: tuple[TaskScore, ...] = ()
    best_of: tuple[CostPoint, ...] = ()
    """What fewer of the independent runs would have earned and taken."""
    differences: dict[str, Difference] = field(default_factory=dict)
    """AMC less each of the searches."""

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``."""
        return asdict(self)


@dataclass(slots=True)
class _Grid:
    """Scores of one arm, [tasks, seeds]."""

    shape: tuple[int, int]
    observable: Scores = field(init=False)
    selected: Scores = field(init=False)
    runs: Scores = field(init=False)
    tokens: Scores = field(init=False)
    output_tokens: Scores = field(init=False)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("observable", "selected", "runs", "tokens", "output_tokens"):
            setattr(self, name, np.full(self.shape, np.nan))

    def arm(self, name: str) -> ArmResult:
        return ArmResult(
            name,
            estimate(self.observable),
            estimate(self.selected),
            float(np.nanmean(self.runs)),
            float(np.nanmean(self.tokens)),
            float(np.nanmean(self.output_tokens)),
            self.seconds / (self.shape[0] * self.shape[1]),
        )


async def compare(
    app: Any,
    tasks: TaskSet,
    reward: RewardFunction,
    settings: Settings,
    *,
    seeds: Sequence[int] = (0,),
    concurrency: int = 8,
    same_tokens: bool = True,
    methods: Mapping[str, TreeSearch | Preset] | None = None,
    label: str = "",
    progress: Progress | None = None,
    budget: Budget | None = None,
    executor: Executor | None = None,
) -> Comparison:
    """Run the three methods and a best-of-N arm with AMC's tokens.

    Parameters
    ----------
    settings: of the AMC arm (`read_settings`); needs a value function and no reward.
    seeds: each task is run once per seed and arm.
    concurrency: populations at a time.
    methods: searches that are run as well (`langgraph_amc.search`), by the names of their rows.
    budget: for everything together.
    executor: where the runs take place; by default in this process.

    Raises
    ------
    IncompleteError: the budget ended it early; methods are compared on the same tasks or not at all.
    ConfigurationError: nothing to compare with these settings.
    NoRewardError: not one run could be judged.
    """
    where = executor or LocalExecutor(app, reward)
    with nullcontext() if budget is None else budget.open() as account:
        try:
            more = _methods(settings, methods or {})
            return await _compare(where, tasks, settings, seeds, concurrency, same_tokens, more, label, progress)
        except _BudgetEndedError as ended:
            raise IncompleteError(
                f"the budget ended the comparison ({account.exhausted if account else ended}): raise it, or compare on "
                "fewer tasks or with fewer particles"
            ) from None


class IncompleteError(AMCError):
    """A comparison that a budget ended."""


class _BudgetEndedError(Exception):
    """Some run was stopped by a budget."""


async def _compare(
    executor: Executor,
    tasks: TaskSet,
    settings: Settings,
    seeds: Sequence[int],
    concurrency: int,
    same_tokens: bool,
    methods: Mapping[str, Settings],
    label: str,
    progress: Progress | None,
) -> Comparison:
    if settings.value is None:
        raise ConfigurationError("compare needs a value function: collect, train one, and pass it (or any callable)")
    if not len(tasks):
        raise ConfigurationError("there is no task to compare on: check the split")
    grid_shape = (len(tasks), len(seeds))
    index = {task.id: i for i, task in enumerate(tasks)}
    column = {seed: j for j, seed in enumerate(seeds)}
    steered = _steered(settings)
    blind = replace(steered, resample=never(), adaptive=None, quorum=None, backtrack=None)
    arms = {name: _Grid(grid_shape) for name in (SINGLE, BEST_OF_N, SAME_TOKENS, AMC, *methods)}
    total = len(tasks) * len(seeds) * (2 + len(methods))
    pools: dict[tuple[int, int], list[Outcome]] = {}
    resamplings: list[int] = []
    warnings: dict[str, int] = {}
    missing = 0
    done = 0

    async def run(settings: Settings, jobs: list[Job]) -> list[Outcome]:
        nonlocal done, missing
        base = done
        report = None if progress is None else (lambda k, _: progress(base + k, max(total, base + k)))
        outcomes = []
        async with aclosing(executor.run(jobs, concurrency=concurrency, progress=report)) as ended:
            async for outcome in ended:
                if not all(map(paid, outcome.trajectories)):
                    raise _BudgetEndedError(outcome.result.warnings)
                outcomes.append(outcome)
        done += len(jobs)
        missing += sum(len(o.missing) for o in outcomes)
        trajectories = [t for o in outcomes for t in o.trajectories]
        if trajectories and all(t.status == "failed" for t in trajectories):
            raise NoRewardError(f"all {len(trajectories)} runs failed, the first with {trajectories[0].error}")
        return outcomes

    jobs = [(task, seed) for seed in seeds for task in tasks]
    began = time.perf_counter()
    for outcome in await run(blind, [Job(t, s, blind) for t, s in jobs]):
        at = index[outcome.job.task.id], column[outcome.job.seed]
        pools[at] = [outcome]
        _fill(arms[BEST_OF_N], at, [outcome])
        _fill_single(arms[SINGLE], at, outcome)
        _count(warnings, outcome)
    arms[BEST_OF_N].seconds = time.perf_counter() - began
    arms[SINGLE].seconds = arms[BEST_OF_N].seconds / settings.particles
    began = time.perf_counter()
    for outcome in await run(steered, [Job(t, s, steered) for t, s in jobs]):
        at = index[outcome.job.task.id], column[outcome.job.seed]
        _fill(arms[AMC], at, [outcome])
        resamplings.append(sum(check.resampled for check in outcome.result.checks))
        _count(warnings, outcome)
    arms[AMC].seconds = time.perf_counter() - began
    for name, how in methods.items():
        began = time.perf_counter()
        for outcome in await run(how, [Job(t, s, how) for t, s in jobs]):
            _fill(arms[name], (index[outcome.job.task.id], column[outcome.job.seed]), [outcome])
            _count(warnings, outcome)
        arms[name].seconds = time.perf_counter() - began
    unknown = not np.nansum(arms[AMC].tokens)
    if unknown and same_tokens:
        same_tokens = False
        warnings["the model reports no usage, so the arm with AMC's tokens is left out"] = len(jobs)
    if same_tokens:
        extra = _top_up(jobs, pools, arms, index, column, blind)
        for outcome in await run(blind, extra):
            pools[index[outcome.job.task.id], column[outcome.job.seed % _EXTRA]].append(outcome)
        for at, pool in pools.items():
            _fill(arms[SAME_TOKENS], at, pool, tokens=arms[AMC].tokens[at])
        arms[SAME_TOKENS].seconds = arms[BEST_OF_N].seconds * float(
            np.nanmean(arms[SAME_TOKENS].runs) / settings.particles
        )
    if np.isnan(arms[BEST_OF_N].observable).all():
        raise NoRewardError(f"none of the runs could be judged ({missing} rewards are missing): check the reward")
    names = [n for n in arms if same_tokens or n != SAME_TOKENS]
    best = np.fmax(arms[BEST_OF_N].observable, arms[AMC].observable)
    other = arms[SAME_TOKENS] if same_tokens else arms[BEST_OF_N]
    return Comparison(
        label,
        len(tasks),
        tuple(seeds),
        settings.particles,
        tuple(arms[n].arm(n) for n in names),
        paired(arms[AMC].observable, arms[BEST_OF_N].observable),
        paired(arms[AMC].selected, arms[BEST_OF_N].selected),
        paired(arms[AMC].observable, other.observable),
        paired(arms[AMC].selected, other.selected),
        float(np.mean(resamplings)),
        float(np.mean(np.nanmax(best, axis=1) <= np.nanmin(arms[SINGLE].observable))),
        missing,
        {"resample": repr(settings.resample), "tempering": repr(settings.tempering), "objective": settings.objective},
        tuple(f"{text} ({n} runs)" for text, n in sorted(warnings.items(), key=lambda item: -item[1])),
        by_task([t.id for t in tasks], {n: (arms[n].observable, arms[n].selected, arms[n].tokens) for n in names}),
        best_of([[_pool(pools[i, j][0]) for j in range(len(seeds))] for i in range(len(tasks))]),
        {
            name: Difference(
                paired(arms[AMC].observable, arms[name].observable), paired(arms[AMC].selected, arms[name].selected)
            )
            for name in methods
        },
    )


def _steered(settings: Settings) -> Settings:
    """The settings of the AMC arm: no reward is shown, and the answer is chosen by value."""
    return replace(settings, reward=None, select=best_value, best_possible=None)


def _methods(settings: Settings, given: Mapping[str, TreeSearch | Preset]) -> dict[str, Settings]:
    """The settings of each search, in all else those of the AMC arm."""
    if settings.search is not None:
        raise ConfigurationError("compare runs AMC beside searches: give them as methods, not as search=…")
    if taken := {SINGLE, BEST_OF_N, SAME_TOKENS, AMC} & set(given):
        raise ConfigurationError(f"a method cannot be called {taken.pop()!r}, which is another row of the table")
    return {name: with_search(_steered(settings), search) for name, search in given.items()}


_EXTRA = 1_000_003
"""Extra best-of-N runs of seed s use seed s + k·_EXTRA, so that they are independent of the first ones."""


def _top_up(
    jobs: Sequence[tuple[Task, int]],
    pools: dict[tuple[int, int], list[Outcome]],
    arms: dict[str, _Grid],
    index: dict[str, int],
    column: dict[int, int],
    blind: Settings,
) -> list[Job]:
    """Independent runs that bring best-of-N up to the tokens AMC used on the same task."""
    extra: list[Job] = []
    for task, seed in jobs:
        at = index[task.id], column[seed]
        have, want = arms[BEST_OF_N].tokens[at], arms[AMC].tokens[at]
        per_run = have / len(pools[at][0].result.particles)
        if per_run > 0 and want > have and (more := math.ceil((want - have) / per_run)):
            extra.append(Job(task, seed + _EXTRA, replace(blind, particles=more)))
    return extra


def _fill(grid: _Grid, at: tuple[int, int], pool: Sequence[Outcome], tokens: float = math.inf) -> None:
    """Book the answer that a pool of runs gives, as many of them as come nearest to ``tokens``."""
    reports = [report for outcome in pool for report in outcome.result.particles]
    rewards = [reward for outcome in pool for reward in outcome.rewards]
    pruned = sum(len(outcome.result.pruned) for outcome in pool)
    spent = np.cumsum([report.trajectory.usage.tokens for report in reports])
    # the number of runs whose tokens come nearest
    keep = len(reports) if tokens == math.inf else int(np.argmin(np.abs(spent - tokens))) + 1
    candidates = [
        Candidate(
            r.log_weight,
            r.value,
            None,
            r.output,
            done=r.trajectory.status in ("finished", "interrupted"),
            failed=r.trajectory.status == "failed",
        )
        for r in reports[:keep]
    ]
    rng = np.random.default_rng(run_seed(pool[0].job.seed, pool[0].job.task))
    try:
        grid.selected[at] = _nan(rewards[best_value(rng, candidates)])
        grid.observable[at] = _nan(rewards[oracle(candidates, rewards[:keep])])
    except SelectionError:
        grid.selected[at] = grid.observable[at] = 0.0 if all(c.failed for c in candidates) else math.nan
    grid.runs[at] = keep + (pruned if tokens == math.inf else 0)
    # all that the runs took, what a language model as V took among it; of some of them, what they took themselves
    whole = tokens == math.inf
    usages = [o.result.usage for o in pool] if whole else [r.trajectory.usage for r in reports[:keep]]
    grid.tokens[at] = sum(u.tokens for u in usages)
    grid.output_tokens[at] = sum(u.output_tokens for u in usages)


def _fill_single(grid: _Grid, at: tuple[int, int], outcome: Outcome) -> None:
    """One run, as the mean over the N independent runs of best-of-N: the same expectation, less noise."""
    known = [reward for reward in outcome.rewards if reward is not None]
    grid.observable[at] = grid.selected[at] = float(np.mean(known)) if known else math.nan
    usages = [r.trajectory.usage for r in outcome.result.particles]
    grid.runs[at] = 1
    grid.tokens[at] = float(np.mean([u.tokens for u in usages]))
    grid.output_tokens[at] = float(np.mean([u.output_tokens for u in usages]))


def _pool(outcome: Outcome) -> Pool:
    reports = outcome.result.particles
    return Pool(
        np.array(list(map(_nan, outcome.rewards))),
        np.array([_nan(r.value) for r in reports]),
        np.array([float(r.trajectory.usage.tokens) for r in reports]),
    )


def _nan(reward: float | None) -> float:
    return math.nan if reward is None else reward


def _count(warnings: dict[str, int], outcome: Outcome) -> None:
    for warning in outcome.result.warnings:
        warnings[warning] = warnings.get(warning, 0) + 1
