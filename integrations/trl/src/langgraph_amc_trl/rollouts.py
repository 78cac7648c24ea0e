"""Trajectories of the unchanged app, in groups, through the runner and the rewards of every other method.

A run that failed, was broken off or could not be judged has no reward: it is missing, never 0, as in evolution. The
random numbers of a measurement are those of evolution's held-out comparison under the same seed, so both measure the
same base.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.runner import Job, NoRewardError, run_jobs
from langgraph_amc.policy.seeds import mix
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.tasks.rewards import RewardFunction
from langgraph_amc.tasks.task import Task
from langgraph_amc_trl.recording import Key, Recorder
from langgraph_amc_trl.sequences import Call

_TRAIN, _HELD_OUT = "grpo", "held-out"


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """A batch of trajectories.

    Attributes
    ----------
    rewards: [tasks, group]; NaN where missing. calls: of each trajectory, group by group, failed ones included.
    failed, unjudged: how many have no reward, and why.
    """

    rewards: NDArray[np.float64]
    calls: tuple[tuple[Call, ...], ...]
    failed: int
    unjudged: int


@dataclass(slots=True)
class Rollouts:
    """Runs an app on tasks with the weights as they are.

    Attributes
    ----------
    settings: of one particle. temperature: that the app must sample at.
    trajectories: begun so far, measurements not counted. first_failure: why the first failed run failed.
    """

    app: Any
    reward: RewardFunction
    settings: Settings
    recorder: Recorder
    temperature: float
    seed: int
    concurrency: int
    trajectories: int = 0
    first_failure: str | None = None
    _first_unjudged: str | None = field(default=None, repr=False)

    async def groups(self, step: int, tasks: Sequence[Task], size: int) -> Groups:
        """``size`` trajectories of each task.

        Raises
        ------
        NoRewardError: none has a reward.
        ConfigurationError: the app's calls do not go to the model, or sample otherwise than training assumes.
        """
        seed = mix(self.seed, _TRAIN, step)
        jobs = [
            Job(task, mix(seed, repeat), self.settings, noise=(self.seed, _TRAIN, step, task.id, repeat))
            for task in tasks
            for repeat in range(size)
        ]
        self.trajectories += len(jobs)
        found = await self._run(jobs)
        if np.isnan(found.rewards).all():
            why = self.first_failure or self._first_unjudged
            raise NoRewardError(f"none of {len(jobs)} rollouts has a reward, the first because {why}")
        self._check(found.calls)
        shape = (len(tasks), size)
        return Groups(found.rewards.reshape(shape), found.calls, found.failed, found.unjudged)

    async def measured(self, tasks: Sequence[Task], repeats: int) -> NDArray[np.float64]:
        """Rewards [tasks, repeats], with the same random numbers whatever the weights."""
        jobs = held_out_jobs(tasks, repeats, self.settings, self.seed)
        return (await self._run(jobs)).rewards.reshape(len(tasks), repeats)

    async def _run(self, jobs: Sequence[Job]) -> Groups:
        """All jobs, their rewards in order, flat."""
        place: dict[Key | None, int] = {job.noise: i for i, job in enumerate(jobs)}
        rewards = np.full(len(jobs), np.nan)
        calls: list[tuple[Call, ...]] = [()] * len(jobs)
        failed = unjudged = 0
        async with aclosing(run_jobs(self.app, jobs, self.reward, concurrency=self.concurrency)) as outcomes:
            async for outcome in outcomes:
                assert outcome.job.noise is not None
                i = place[outcome.job.noise]
                calls[i] = self.recorder.take(outcome.job.noise)
                [trajectory], [reward] = outcome.trajectories, outcome.rewards
                if trajectory.status == "failed":
                    failed += 1
                    self.first_failure = self.first_failure or trajectory.error
                elif reward is None:
                    unjudged += 1
                    self._first_unjudged = self._first_unjudged or (outcome.missing or ("its limits broke it off",))[0]
                else:
                    rewards[i] = reward
        return Groups(rewards, tuple(calls), failed, unjudged)

    def _check(self, trajectories: Sequence[Sequence[Call]]) -> None:
        calls = [call for trajectory in trajectories for call in trajectory]
        if not calls:
            raise ConfigurationError(
                "the app ran without one call to the model that is to be trained: it has to call a local model, "
                "amc-local/<path> through LiteLLM, with the very path that is given as the model"
            )
        for call in calls:
            if call.temperature != self.temperature or call.top_p != 1:
                raise ConfigurationError(
                    f"the app samples at temperature {call.temperature}, top_p {call.top_p}, and policy gradients are "
                    f"to be taken at temperature {self.temperature}, top_p 1: give GRPO(temperature=…) the app's own, "
                    "above 0, and leave top_p out, or the gradient is that of another policy"
                )


def held_out_jobs(tasks: Sequence[Task], repeats: int, settings: Settings, seed: int) -> list[Job]:
    """The runs of a measurement: those that evolution compares its weights on."""
    return [
        Job(task, mix(seed, _HELD_OUT, -1, repeat), settings, noise=(seed, _HELD_OUT, -1, task.id, repeat))
        for task in tasks
        for repeat in range(repeats)
    ]
