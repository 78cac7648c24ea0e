"""Collecting an app's own runs on tasks: all of them, failures included, into a trajectory store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from langgraph_amc.evaluate.runner import Job, Progress, run_jobs
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.tasks.rewards import RewardFunction
from langgraph_amc.tasks.task import TaskSet
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.trajectories.types import Usage


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection brought in."""

    runs: int
    finished: int
    failed: int
    unjudged: int
    mean_reward: float | None
    usage: Usage
    first_missing: str | None = None


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
) -> Collected:
    """Run every task as ``settings.particles`` particles per seed and store each trajectory as it ends.

    A run whose reward is missing is stored without an outcome; a failed one with its error.
    """
    runs = finished = failed = 0
    rewards: list[float] = []
    usage = Usage()
    missing: list[str] = []
    jobs = [Job(task, seed, settings) for seed in seeds for task in tasks]
    async for outcome in run_jobs(app, jobs, reward, concurrency=concurrency, progress=progress):
        store.add(outcome.trajectories, task=asdict(outcome.job.task), run_metadata={"seed": outcome.job.seed})
        runs += len(outcome.trajectories)
        finished += sum(t.status == "finished" for t in outcome.trajectories)
        failed += sum(t.status == "failed" for t in outcome.trajectories)
        rewards += [r for r in outcome.rewards if r is not None]
        missing += outcome.missing
        usage = usage + outcome.result.usage
    mean = sum(rewards) / len(rewards) if rewards else None
    return Collected(runs, finished, failed, len(missing), mean, usage, missing[0] if missing else None)
