"""Iterating: collect with AMC under the current V, train V anew on everything so far, measure, until it stops helping.

The first collection runs the app plainly. The later ones see the states that AMC itself reaches; their returns are
weighted by what resampling made of them (`value.targets`), so V stays that of the app's own policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.evaluate.collect import NothingCollectedError, collect
from langgraph_amc.evaluate.runner import Job, NoRewardError, Progress, paid, run_jobs
from langgraph_amc.evaluate.statistics import Estimate, Scores, estimate, paired
from langgraph_amc.policy.account import Account
from langgraph_amc.policy.budget import Budget
from langgraph_amc.runtime.settings import Settings, read_settings
from langgraph_amc.smc import best_value
from langgraph_amc.tasks.rewards import RewardFunction
from langgraph_amc.tasks.task import TaskSet
from langgraph_amc.trajectories.store import TrajectoryStore

STORE = "trajectories.sqlite"
_GUIDED = ("resample", "tau", "beta", "select", "objective")
"""Options of `wrap` that mean nothing without a value function, so not for the first collection."""


class TaskOverlapError(AMCError, ValueError):
    """Tasks are both for collecting and for measuring."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round: what it collected, the V it trained, and AMC with that V on the held-out tasks.

    Attributes
    ----------
    reward: mean true reward of AMC's answers; the answer is the one V prefers.
    gain: paired difference to the best round before; ``None`` in the first.
    ranking: within tasks of the training split's held-out part (AUC or Kendall's tau), ``None`` if not measurable.
    collected_runs, collected_reward: of this round's collection, pruned runs included, and their mean reward.
    tokens: of this round's collection and measurement.
    """

    number: int
    value: str
    reward: Estimate
    gain: Estimate | None
    ranking: float | None
    calibration_error: float
    effective_share: float
    collected_runs: int
    collected_reward: float | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Iteration:
    """All rounds; ``best``: the folder of the V to use; ``stopped``: why there was no further round."""

    rounds: tuple[Round, ...]
    best: str
    stopped: str

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``."""
        return asdict(self)

    def to_text(self) -> str:
        """A table for a terminal."""
        lines = ["round  AMC's reward, held out   gain over the best before  ranking  calibration     runs     tokens"]
        for r in self.rounds:
            ranking = "-" if r.ranking is None else f"{r.ranking:.3f}"
            gain = "-" if r.gain is None else str(r.gain)
            lines.append(
                f"{r.number:5d}  {r.reward!s:<22}  {gain:<26}  {ranking:>7}  {r.calibration_error:11.3f}"
                f"  {r.collected_runs:7d}  {r.tokens:9,d}"
            )
        return "\n".join([*lines, f"stopped: {self.stopped}; use {self.best}"])


async def iterate(
    app: Any,
    tasks: TaskSet,
    reward: RewardFunction,
    base: Any,
    *,
    held_out: TaskSet,
    out: str | Path,
    rounds: int = 3,
    options: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    seeds: int = 1,
    seed: int = 0,
    concurrency: int = 8,
    budget: Budget | None = None,
    progress: Progress | None = None,
) -> Iteration:
    """Collect, train and measure for at most ``rounds`` rounds, and keep everything in ``out``.

    Parameters
    ----------
    tasks, held_out: to collect on, and to measure on; no task may be in both.
    base: what `train_value` starts each V from.
    options: of `wrap`, e.g. ``{"particles": 8, "resample": "every(2)"}``; no value, reward or seed.
    train: of `train_value`, e.g. ``{"epochs": 5}``.
    seeds: runs of each task, per collection and per measurement.
    budget: for all model calls together.
    progress: told ``(done, total)`` of each phase.

    Stops early after a round whose gain on the held-out tasks is not clearly above 0 (95 % interval of the paired
    difference over tasks and seeds), or when the budget is used up.

    Raises
    ------
    TaskOverlapError: a task is in both sets. ConfigurationError: options that cannot work.
    NothingCollectedError, NoRewardError, TrainingDataError: there is nothing to learn from, or to measure by.
    """
    folder, given = Path(out), dict(options or {})
    _check(tasks, held_out, rounds, given, folder)
    found: list[Round] = []
    scores: list[Scores] = []
    best = 0
    stopped = f"all {rounds} rounds are done"
    with nullcontext() if budget is None else budget.open() as account, TrajectoryStore(folder / STORE) as store:
        for number in range(rounds):
            value = found[best].value if found else None
            settings = _settings(app, given, value)
            try:
                collected = await collect(
                    app,
                    tasks,
                    reward,
                    store,
                    settings,
                    seeds=range(seed + number * seeds, seed + (number + 1) * seeds),
                    concurrency=concurrency,
                    progress=progress,
                )
            except NothingCollectedError:
                if _exhausted(account) is None:
                    raise
            if (ended := _exhausted(account)) is not None:
                stopped = ended
                break
            fresh = folder / f"value-{number}"
            report = await asyncio.to_thread(_train, store, base, fresh, {"seed": seed, **(train or {})})
            measured, tokens = await _measure(
                app,
                held_out,
                reward,
                _settings(app, given, str(fresh)),
                range(seed, seed + seeds),
                concurrency,
                progress,
            )
            if (ended := _exhausted(account)) is not None:
                stopped = ended
                break
            if np.isnan(measured).all():
                raise NoRewardError("none of the answers on the held-out tasks could be judged: check the reward")
            gain = paired(measured, scores[best]) if scores else None
            scores.append(measured)
            found.append(
                Round(
                    number,
                    str(fresh),
                    estimate(measured),
                    gain,
                    report.quality.ranking.value,
                    report.quality.calibration_error,
                    report.effective_share,
                    collected.runs,
                    collected.mean_reward,
                    collected.usage.tokens + tokens,
                )
            )
            if gain is not None and gain.low > 0:
                best = number
            elif gain is not None:
                stopped = f"round {number} is not clearly better than round {best}"
                break
    if not found:
        raise ConfigurationError(f"no round was finished ({stopped}): raise the budget")
    return Iteration(tuple(found), found[best].value, stopped)


def _check(tasks: TaskSet, held_out: TaskSet, rounds: int, options: Mapping[str, Any], out: Path) -> None:
    """Refuse what cannot work, and make the folder."""
    if rounds < 1:
        raise ConfigurationError(f"rounds is at least 1, got {rounds}")
    if not len(tasks) or not len(held_out):
        raise ConfigurationError("iterate needs tasks to collect on and other, held-out tasks to measure on")
    if both := set(tasks.ids) & set(held_out.ids):
        raise TaskOverlapError(
            f"{len(both)} task(s) are in both sets, the first {min(both)!r}: what V learned from cannot measure it"
        )
    if given := sorted({"value", "reward", "seed"} & options.keys()):
        raise ConfigurationError(f"iterate sets {', '.join(given)} itself: leave it out of the options")
    out.mkdir(parents=True, exist_ok=True)
    if (out / STORE).exists():
        raise ConfigurationError(f"{out} holds an earlier iteration: give another folder")


def _settings(app: Any, options: Mapping[str, Any], value: str | None) -> Settings:
    if value is None:
        return read_settings(app, **{name: given for name, given in options.items() if name not in _GUIDED})
    return read_settings(app, **{"select": best_value, **options}, value=value)


def _train(store: TrajectoryStore, base: Any, out: Path, options: Mapping[str, Any]) -> Any:
    from langgraph_amc.value import train_value

    return train_value(list(store.trajectories()), base, out=out, **options)


async def _measure(
    app: Any,
    tasks: TaskSet,
    reward: RewardFunction,
    settings: Settings,
    seeds: Sequence[int],
    concurrency: int,
    progress: Progress | None,
) -> tuple[Scores, int]:
    """True reward of the answers, [tasks, seeds], NaN where missing; and the tokens they took."""
    scores = np.full((len(tasks), len(seeds)), np.nan)
    row = {task_id: i for i, task_id in enumerate(tasks.ids)}
    jobs = [Job(task, seed, settings) for seed in seeds for task in tasks]
    tokens = 0
    async for outcome in run_jobs(app, jobs, reward, concurrency=concurrency, progress=progress):
        tokens += outcome.result.usage.tokens
        names = [report.name for report in outcome.result.particles]
        answer = outcome.rewards[names.index(outcome.result.winner.name)]
        if answer is not None and all(map(paid, outcome.trajectories)):
            scores[row[outcome.job.task.id], outcome.job.seed - seeds[0]] = answer
    return scores, tokens


def _exhausted(account: Account | None) -> str | None:
    return None if account is None or account.exhausted is None else f"the budget is used up ({account.exhausted})"
