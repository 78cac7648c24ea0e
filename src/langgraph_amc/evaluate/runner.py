"""Running an app on many tasks at once, each as a population of particles."""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from langgraph_amc.context import RolloutNoise, current_member, rollout_noise
from langgraph_amc.errors import AMCError
from langgraph_amc.policy.budget import BudgetExceededError
from langgraph_amc.runtime.engine import AsyncEngine
from langgraph_amc.runtime.grading import Grades
from langgraph_amc.runtime.isolation import OverlayStore
from langgraph_amc.runtime.record import messages_of
from langgraph_amc.runtime.request import TASK_KEY, StreamRequest, call_config
from langgraph_amc.runtime.result import AMCResult, ParticleReport
from langgraph_amc.runtime.run import run_stream
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.skills.injecting import using
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.tasks.rewards import FinishedRun, RewardFunction
from langgraph_amc.tasks.task import Task
from langgraph_amc.telemetry.spans import own_trace
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value.targets import with_resamplings

FAILED = 0.0
"""Reward of a run that broke: unlike a reward that could not be evaluated, it is known to have earned nothing."""

Progress = Callable[[int, int], None]
"""``(done, total)``"""


@dataclass(frozen=True, slots=True)
class Job:
    """One task under one seed, to be run as ``settings.particles`` particles.

    Attributes
    ----------
    member: whose weights answer, where the app's model is a population (`evolution`); ``None`` is the model as it is.
    noise: key of the random numbers that the app's local model samples with, shared by members (`context`).
    skills: the library in the app's prompt (`skills.injecting`); ``None`` leaves the app as it is.
    """

    task: Task
    seed: int
    settings: Settings
    member: Hashable | None = None
    noise: tuple[Hashable, ...] | None = None
    skills: SkillLibrary | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a job.

    Attributes
    ----------
    rewards: true reward per particle of ``result.particles``; ``None`` where its evaluation is missing.
    missing: why rewards are missing.
    instructed: how many model calls got the job's skills, in the process that ran it.
    """

    job: Job
    result: AMCResult
    rewards: tuple[float | None, ...]
    missing: tuple[str, ...] = ()
    instructed: int = 0

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """All trajectories of the run, with the true rewards as outcomes."""
        graded = [
            report.trajectory.with_outcome(reward)
            for report, reward in zip(self.result.particles, self.rewards, strict=True)
        ]
        whole = with_resamplings((*graded, *self._pruned()), self.result.checks)
        return tuple(replace(t, task_id=self.job.task.id) for t in whole)

    def _pruned(self) -> Iterable[Trajectory]:
        return (report.trajectory for report in self.result.pruned)


def paid(trajectory: Trajectory) -> bool:
    """Whether a run ended by itself: one that a budget stopped says nothing about the app."""
    return not (trajectory.status == "truncated" and (trajectory.error or "").startswith(BudgetExceededError.__name__))


def without_saver(app: Any) -> Any:
    """The app with nothing of an evaluation ending up in its own checkpoints."""
    clone = copy.copy(app)
    clone.checkpointer = None
    return clone


def with_own_store(app: Any) -> Any:
    """The app with a store for one run: it reads the app's own, and what the run writes ends with it.

    Otherwise what one arm of a comparison has written down would be read by the next.
    """
    if app.store is None:
        return app
    clone = copy.copy(app)
    clone.store = OverlayStore(app.store)
    return clone


def run_seed(seed: int, task: Task) -> int:
    """Seed of one run, a pure function of (study seed, task id)."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{task.id}".encode(), digest_size=4).digest())


async def run_jobs(
    app: Any, jobs: Iterable[Job], reward: RewardFunction, *, concurrency: int, progress: Progress | None = None
) -> AsyncGenerator[Outcome, None]:
    """Run jobs, ``concurrency`` populations at a time, and yield their outcomes as they end.

    The reward judges finished runs afterwards and is not shown to the particles.
    """
    todo = list(jobs)
    app = without_saver(app)
    gate = asyncio.Semaphore(concurrency)

    async def run(job: Job) -> Outcome:
        async with gate:
            return await run_job(app, job, reward)

    tasks = [asyncio.create_task(run(job)) for job in todo]
    try:
        for done, future in enumerate(asyncio.as_completed(tasks), start=1):
            outcome = await future
            if progress is not None:
                progress(done, len(todo))
            yield outcome
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_job(app: Any, job: Job, reward: RewardFunction) -> Outcome:
    """Run one job in a task of its own, with an app `without_saver`."""
    current_member.set(job.member)
    own_trace.set(True)
    rollout_noise.set(None if job.noise is None else RolloutNoise(job.noise))
    record: list[AMCResult] = []
    settings = replace(job.settings, seed=run_seed(job.seed, job.task))
    config = call_config(app, {"configurable": {TASK_KEY: job.task}})
    request = StreamRequest(with_own_store(app), settings, job.task.input, config, {"stream_mode": "values"})
    try:
        with nullcontext() if job.skills is None else using(job.skills) as told:
            async for _ in run_stream(request, AsyncEngine(), record.append):
                pass
    except Exception:
        if not record:  # the run itself broke; where only its particles failed they are results, labelled so
            raise
    result = record[0]
    current_member.set(None)  # a reward that asks the same model is to be judged by no member
    grades = Grades(result.trace, job.settings.telemetry)
    graded = [await _grade(job.task, report, reward, grades) for report in result.particles]
    grades.answered(result.winner.name, _of(result.winner.name, result.particles, graded))
    missing = tuple(g[1] for g in graded if g[1] is not None)
    return Outcome(job, result, tuple(g[0] for g in graded), missing, 0 if told is None else told.placed)


_Graded = tuple[float | None, str | None]
"""A reward, and why it is missing."""


async def _grade(task: Task, report: ParticleReport, reward: RewardFunction, grades: Grades) -> _Graded:
    if not paid(report.trajectory):
        return None, None
    with grades.rewarding(report.name):
        graded = await _judged(task, report, reward)
        grades.graded(report.name, *graded)
    return graded


async def _judged(task: Task, report: ParticleReport, reward: RewardFunction) -> _Graded:
    if report.trajectory.status == "failed":
        return FAILED, None
    run = FinishedRun(
        task=task, output=report.output, messages=messages_of(report.output), trajectory=report.trajectory
    )
    judged = await reward.aevaluate(run)
    return judged.value, judged.error


def _of(name: str, reports: Sequence[ParticleReport], graded: Sequence[_Graded]) -> float | None:
    """The reward of this particle."""
    return next(value for report, (value, _) in zip(reports, graded, strict=True) if report.name == name)


class NoRewardError(AMCError):
    """No run of an evaluation could be judged."""
