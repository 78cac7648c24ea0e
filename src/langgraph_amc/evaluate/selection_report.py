"""How much of the oracle's gain each way of selecting keeps, on populations whose true rewards are known.

kept = (selected − single) / (oracle − single), of means over populations: 0 is a run taken blindly, 1 is the best run
there was. The interval is a bootstrap over tasks of that ratio, because populations of one task are alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

from langgraph_amc.errors import AMCError
from langgraph_amc.evaluate.runner import Outcome
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.smc import Candidate, SelectionError, Selector, argmax, best_value, oracle, sample
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value.metrics import bootstrap_interval
from langgraph_amc.value.targets import task_of

Floats = NDArray[np.float64]
RESAMPLES = 4000
SELECTIONS: Mapping[str, Selector] = {"sample": sample, "argmax": argmax, "best_value": best_value}
"""What is reported where nothing else is asked for; add ``vote(key=…)`` with the key that fits the answers."""


class NothingToSelectError(AMCError):
    """No population in which selection could matter."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A finished population and the true reward of each of its candidates."""

    task: str
    candidates: tuple[Candidate, ...]
    rewards: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Selected:
    """One way of selecting; ``kept`` is a part of the oracle's gain, ``missed``: populations in which it could not."""

    name: str
    reward: Estimate
    kept: Estimate
    missed: int


@dataclass(frozen=True, slots=True)
class SelectionReport:
    """Selections side by side; ``single``: a candidate taken blindly, ``best``: the oracle."""

    single: Estimate
    best: Estimate
    selections: tuple[Selected, ...]
    populations: int
    tasks: int

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``."""
        return asdict(self)


def judged(outcome: Outcome) -> Judged:
    """The population of a run that `run_jobs` judged."""
    reports = outcome.result.particles
    candidates = tuple(_candidate(r.trajectory, r.log_weight, r.value, r.output) for r in reports)
    return Judged(outcome.job.task.id, candidates, outcome.rewards)


def stored(trajectories: Iterable[Trajectory]) -> list[Judged]:
    """The populations of a store, by run; an output is the text of a run's last segment.

    A run's weight is its stored one; V of its last state is its value, where that was stored.
    """
    runs: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.status != "pruned":
            runs[trajectory.run_id].append(trajectory)
    return [
        Judged(
            task_of(members[0]),
            tuple(
                _candidate(t, t.log_weight or 0.0, t.values[-1] if t.values else None, t.segments[-1]) for t in members
            ),
            tuple(t.total for t in members),
        )
        for members in runs.values()
    ]


def selection_report(
    populations: Iterable[Judged], selections: Mapping[str, Selector] = SELECTIONS, *, seed: int = 0
) -> SelectionReport:
    """Apply each selection to each population and compare with a blind choice and with the oracle.

    Left out are populations of fewer than two candidates, or with a reward missing. Where a selection cannot choose
    (no value, say), its reward is missing too, not 0. Abstentions count as the answer that would have been given.

    Raises NothingToSelectError where nothing is left.
    """
    used = [p for p in populations if len(p.candidates) > 1 and None not in p.rewards]
    if not used:
        raise NothingToSelectError(
            "no population has two candidates and all true rewards: keep runs of N ≥ 2 particles, and judge them all"
        )
    truth = [[float(r) for r in p.rewards if r is not None] for p in used]
    tasks = {task: i for i, task in enumerate(dict.fromkeys(p.task for p in used))}
    where = np.array([tasks[p.task] for p in used])
    single = np.array([np.mean(rewards) for rewards in truth])
    best = np.array([_best(p, rewards) for p, rewards in zip(used, truth, strict=True)])
    draws = np.random.default_rng(seed).integers(len(tasks), size=(RESAMPLES, len(tasks)))
    found = []
    for name, select in selections.items():
        rng = np.random.default_rng(seed)
        got = np.array([_got(select, rng, p, rewards) for p, rewards in zip(used, truth, strict=True)])
        known = ~np.isnan(got)
        gained = _sums(np.where(known, got - single, 0.0), where, len(tasks))
        possible = _sums(np.where(known, best - single, 0.0), where, len(tasks))
        kept = _ratio(gained, possible, draws)
        found.append(Selected(name, _by_task(got, where, len(tasks)), kept, int((~known).sum())))
    return SelectionReport(
        _by_task(single, where, len(tasks)), _by_task(best, where, len(tasks)), tuple(found), len(used), len(tasks)
    )


def selection_table(report: SelectionReport) -> Table:
    """The report for people."""
    title = f"selection without a reward, {report.populations} populations of {report.tasks} tasks"
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left", title_style="bold")
    table.add_column("selection", no_wrap=True)
    table.add_column("reward, 95 %", no_wrap=True)
    table.add_column("of the oracle's gain", no_wrap=True)
    table.add_row("taken blindly", str(report.single), "0")
    for s in report.selections:
        unknown = math.isnan(s.kept.mean)
        kept = "–" if unknown else f"{s.kept.mean:.0%} [{s.kept.low:.0%}, {s.kept.high:.0%}]"
        table.add_row(s.name, "–" if math.isnan(s.reward.mean) else str(s.reward), kept)
    table.add_row("oracle", str(report.best), "100%")
    return table


def _candidate(trajectory: Trajectory, log_weight: float, value: float | None, output: Any) -> Candidate:
    done = trajectory.status in ("finished", "interrupted")
    return Candidate(log_weight, value, None, output, done=done, failed=trajectory.status == "failed")


def _best(population: Judged, rewards: Sequence[float]) -> float:
    try:
        return rewards[oracle(population.candidates, rewards)]
    except SelectionError:  # all have failed
        return max(rewards)


def _got(select: Selector, rng: np.random.Generator, population: Judged, rewards: Sequence[float]) -> float:
    if all(candidate.failed for candidate in population.candidates):
        return rewards[0]
    try:
        return rewards[select(rng, population.candidates)]
    except SelectionError:
        return math.nan


def _sums(values: Floats, where: NDArray[np.int64], tasks: int) -> Floats:
    """Mean over a task's populations, [tasks]."""
    return np.bincount(where, values, tasks) / np.bincount(where, minlength=tasks)


def _by_task(values: Floats, where: NDArray[np.int64], tasks: int) -> Estimate:
    """Mean over tasks of the mean over what is known of a task's populations."""
    known = ~np.isnan(values)
    counts = np.bincount(where[known], minlength=tasks)
    means = np.bincount(where[known], values[known], tasks)[counts > 0] / counts[counts > 0]
    if not means.size:
        return Estimate(math.nan, math.nan, math.nan)
    return Estimate(float(means.mean()), *bootstrap_interval(means))


def _ratio(gained: Floats, possible: Floats, draws: NDArray[np.int64]) -> Estimate:
    """Ratio of means with its percentile interval; NaN where nothing could be gained."""
    if possible.sum() <= 0:
        return Estimate(math.nan, math.nan, math.nan)
    below = possible[draws].sum(axis=1)
    ratios = gained[draws].sum(axis=1)[below > 0] / below[below > 0]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Estimate(float(gained.sum() / possible.sum()), float(low), float(high))
