"""Collecting an app's own runs on tasks: all of them, failures included, into a trajectory store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.evaluate.execution.executor import Executor, LocalExecutor
from langgraph_amc.evaluate.runner import Job, Progress, paid
from langgraph_amc.policy.budget import Budget
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.tasks.rewards import RewardFunction
from langgraph_amc.tasks.task import TaskSet
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.trajectories.types import Usage


class NothingCollectedError(AMCError):
    """A collection from which nothing can be learned."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection brought in; ``exhausted``: how a budget ended it, if one did."""

    runs: int
    finished: int
    failed: int
    unjudged: int
    mean_reward: float | None
    usage: Usage
    first_missing: str | None = None
    first_failure: str | None = None
    exhausted: str | None = None


async def collect(
    app: Any,
    tasks: TaskSet,
    reward: RewardFunction,
    store: TrajectoryStore,
    settings: Settings,
    *,
    seeds: Sequence[int] = (0,),
    concurrency: int = 8,
    progress: Progress | None = None,
    budget: Budget | None = None,
    executor: Executor | None = None,
) -> Collected:
    """Run every task as ``settings.particles`` particles per seed and store each trajectory as it ends.

    A run whose reward is missing is stored without an outcome; a failed one with its error. One that the budget,
    which all share, did not let end is not stored: it says nothing about the app. ``executor`` says where the runs
    take place, by default in this process.

    Raises ConfigurationError for no tasks, and NothingCollectedError where every run failed or none was judged.
    """
    if not len(tasks):
        raise ConfigurationError("there is no task to run: check the file, the split and the limit")
    runs = finished = failed = 0
    rewards: list[float] = []
    usage = Usage()
    missing: list[str] = []
    failures: list[str] = []
    jobs = [Job(task, seed, settings) for seed in seeds for task in tasks]
    with nullcontext() if budget is None else budget.open() as account:
        async for outcome in (executor or LocalExecutor(app, reward)).run(
            jobs, concurrency=concurrency, progress=progress
        ):
            trajectories = [t for t in outcome.trajectories if paid(t)]
            store.add(trajectories, task=asdict(outcome.job.task), run_metadata={"seed": outcome.job.seed})
            runs += len(trajectories)
            finished += sum(t.status == "finished" for t in trajectories)
            failed += sum(t.status == "failed" for t in trajectories)
            failures += [t.error for t in trajectories if t.error is not None]
            rewards += [r for r in outcome.rewards if r is not None]
            missing += outcome.missing
            usage = usage + outcome.result.usage
    exhausted = None if account is None else account.exhausted
    if not runs or not (rewards or missing):
        raise NothingCollectedError(f"the budget was used up before a run had ended ({exhausted}): raise it")
    if failed == runs:
        raise NothingCollectedError(
            f"all {runs} runs failed (they are stored as failures), the first with {failures[0]}"
        )
    if not rewards:
        raise NothingCollectedError(f"none of {runs} runs could be judged, the first because {missing[0]}")
    mean = sum(rewards) / len(rewards) if rewards else None
    return Collected(
        runs,
        finished,
        failed,
        len(missing),
        mean,
        usage,
        missing[0] if missing else None,
        failures[0] if failures else None,
        exhausted,
    )
