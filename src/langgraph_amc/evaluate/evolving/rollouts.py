"""Rollouts of a population through the runner, rewards and store of any evaluation (Agentic ESOpt, section 3).

A rollout that failed, was broken off or could not be judged has no reward: it is missing, never 0. Each is stored
under a name made of everything that fixes it, the weights' hash, the task's text, the app and the reward included, so a
run that was killed in mid-generation finds those that had ended, and the start's and the end's weights are measured
once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.evaluate.evolving.identity import digest
from langgraph_amc.evaluate.evolving.replicas import Replicas
from langgraph_amc.evaluate.evolving.tally import Ended, Tally, all_broken_off, reward_of
from langgraph_amc.evaluate.runner import Job, NoRewardError, Outcome, paid
from langgraph_amc.evolution.asktell import Update
from langgraph_amc.evolution.loop import Column
from langgraph_amc.evolution.members import Generation, Member
from langgraph_amc.policy.gate import current_account
from langgraph_amc.policy.seeds import mix
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.tasks.task import Task, TaskSet
from langgraph_amc.trajectories.store import Record, TrajectoryStore
from langgraph_amc.trajectories.types import Trajectory

Floats = NDArray[np.float64]
TRAIN, VALIDATION, HELD_OUT = "train", "validation", "held-out"


class OutOfBudgetError(AMCError):
    """The budget ended a generation or a measurement; it can be gone on with."""


class ModelNotReachedError(ConfigurationError):
    """The app's calls do not go to the model that is evolved."""


class SkillsNotReachedError(ConfigurationError):
    """No call of the app's model was given the skills."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One run of the app: in which phase, whose weights, on what, with which skills in its prompt (`None`: none)."""

    phase: str
    generation: int
    member: Member | None
    column: Column
    skills: SkillLibrary | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Tasks, each run so many times with the weights as they are."""

    tasks: TaskSet
    repeats: int


class StoredRollouts:
    """`evolution.loop.Rollouts` over an executor and a store.

    Parameters
    ----------
    tasks: all that are trained on. validation, held_out: to measure on, with the same noise whatever the weights.
    settings: of one particle. common: whether all members sample with the same random numbers.
    ran: digest of the app, the reward and the effects (`identity.digest`): rollouts of others are not found.
    progress: told ``(done, total)`` of each generation and measurement.
    """

    def __init__(
        self,
        replicas: Replicas,
        store: TrajectoryStore,
        settings: Settings,
        *,
        tasks: TaskSet,
        validation: Measured,
        held_out: Measured,
        seed: int,
        common: bool,
        concurrency: int,
        progress: Callable[[str, int, int], None],
        ran: str = "",
    ) -> None:
        self.tally = Tally()
        self._replicas = replicas
        self._store = store
        self._settings = settings
        self._tasks: Mapping[str, Task] = {t.id: t for t in (*tasks, *validation.tasks, *held_out.tasks)}
        self._validation = validation
        self._held_out = held_out
        self._seed = seed
        self._common = common
        self._concurrency = concurrency
        self._progress = progress
        self._ran = ran
        self._texts: dict[str, str] = {}
        self._weights = ""
        self._reached: set[bool] = set()
        self._instructed = False

    @asynccontextmanager
    async def serving(self, generation: Generation) -> AsyncIterator[None]:
        """The replicas answer for the generation's members."""
        async with self._replicas.serving(generation):
            yield

    async def apply(self, update: Update) -> str:
        """Take a step."""
        self._weights = await self._replicas.apply(update)
        return self._weights

    async def restore(self, updates: Sequence[Update]) -> str:
        """Go to the weights after these updates."""
        self._weights = await self._replicas.restore(updates)
        return self._weights

    async def rewards(self, generation: Generation, rows: Sequence[int], columns: Sequence[Column]) -> Floats:
        """Rewards [rows, columns]; NaN where missing. Members one after another: their prompts' prefixes are shared."""
        members = [generation.members[row] for row in rows]
        wanted = [Rollout(TRAIN, generation.number, member, column) for member in members for column in columns]
        return (await self.members(generation, wanted)).reshape(len(rows), len(columns))

    async def members(self, generation: Generation, wanted: Sequence[Rollout]) -> Floats:
        """Rewards of these rollouts of the generation's members; NaN where missing."""
        return await self._run(wanted, self._weights, _spec(generation), f"generation {generation.number + 1}")

    def stored(self, generation: Generation, wanted: Sequence[Rollout], weights: str) -> Iterator[Trajectory]:
        """Those of these rollouts that have ended, of a generation that started from the weights of this hash."""
        names = [self._name(rollout, weights, _spec(generation)) for rollout in wanted]
        return self._store.trajectories(run_ids=names)

    async def validate(self, weights: str, skills: SkillLibrary | None = None) -> Floats:
        """Rewards [tasks, repeats] on the validation tasks, with these skills in the prompt."""
        return await self._measure(VALIDATION, self._validation, weights, skills)

    async def validated(self, weights: str, skills: SkillLibrary | None = None) -> Floats:
        """What is stored of `validate` with these weights and skills; NaN where nothing is."""
        wanted = _measurements(VALIDATION, self._validation, skills)
        found, _ = self._kept([self._name(rollout, weights, ()) for rollout in wanted])
        return found.reshape(len(self._validation.tasks), self._validation.repeats)

    async def compare(self, weights: str, skills: SkillLibrary | None = None) -> Floats:
        """Rewards [tasks, repeats] on the held-out tasks, with these skills in the prompt."""
        return await self._measure(HELD_OUT, self._held_out, weights, skills)

    async def _measure(self, phase: str, measured: Measured, weights: str, skills: SkillLibrary | None) -> Floats:
        wanted = _measurements(phase, measured, skills)
        found = await self._run(wanted, weights, (), f"measuring, {phase} tasks")
        return found.reshape(len(measured.tasks), measured.repeats)

    async def _run(self, wanted: Sequence[Rollout], weights: str, spec: tuple[Any, ...], title: str) -> Floats:
        """Rewards of these rollouts, from the store or run now."""
        names = [self._name(rollout, weights, spec) for rollout in wanted]
        rewards, stored = self._kept(names)
        missing = [i for i, name in enumerate(names) if name not in stored]
        if not missing:
            return rewards
        if weights != self._weights and wanted[0].phase == VALIDATION:
            return rewards  # what was broken off then, or never measured, stays missing
        if weights != self._weights:
            raise ConfigurationError(
                f"rollouts of earlier weights ({weights[:12]}) are no longer in the store: they cannot be run again; "
                "leave the store as it was, or evolve into another folder"
            )
        members = wanted[0].member is not None
        if stored:  # nothing is stored of runs that did not reach the model
            self._reached |= {members, False}
        before = await self._replicas.samples(members=members)
        jobs = [self._job(wanted[i]) for i in missing]
        at = {(job.member, job.task.id, job.noise): i for job, i in zip(jobs, missing, strict=True)}
        self._progress(title, len(stored), len(wanted))
        ended = by_themselves = 0
        failures: list[str] = []
        unjudged: list[str] = []
        keep = Ended(self._store, held=members not in self._reached)
        try:
            async with aclosing(self._replicas.run(jobs, concurrency=self._concurrency)) as outcomes:
                async for outcome in outcomes:
                    i = at[(outcome.job.member, outcome.job.task.id, outcome.job.noise)]
                    rewards[i] = self._note(outcome, wanted[i], names[i], weights, keep)
                    if members not in self._reached and await self._replicas.samples(members=members) != before:
                        self._reached |= {members, False}
                        keep.release()
                    ended += 1
                    by_themselves += any(map(paid, outcome.trajectories))
                    self._instructed = self._instructed or outcome.instructed > 0
                    failures += [t.error for t in outcome.trajectories if t.status == "failed" and t.error is not None]
                    unjudged += outcome.missing
                    self._progress(title, len(stored) + ended, len(wanted))
        finally:
            keep.flush()
        self._check(wanted[0], rewards, failures, unjudged, by_themselves)
        return rewards

    def _kept(self, names: Sequence[str]) -> tuple[Floats, set[str]]:
        """Rewards of what is stored under these names, NaN where nothing is; and which are."""
        stored = {t.run_id: reward_of(t) for t in self._store.trajectories(run_ids=names)}
        return np.array([stored.get(name, math.nan) for name in names]), set(stored)

    def _note(self, outcome: Outcome, rollout: Rollout, name: str, weights: str, keep: Ended) -> float:
        """Keep a rollout that ended by itself; returns its reward, NaN where there is none."""
        [trajectory] = outcome.trajectories
        self.tally.note(outcome)
        if not paid(trajectory):
            return math.nan
        member = {} if rollout.member is None else {"pair": rollout.member.pair, "sign": rollout.member.sign}
        where = {"evolution": rollout.phase, "generation": rollout.generation, "repeat": rollout.column.repeat}
        told = {} if rollout.skills is None else {"skills": rollout.skills.digest, "task": rollout.column.task}
        more = where | member | told | {"weights": weights}
        keep.add(Record(replace(trajectory, run_id=name), asdict(outcome.job.task), more))
        return reward_of(trajectory)

    def _check(
        self, first: Rollout, rewards: Floats, failures: list[str], unjudged: list[str], by_themselves: int
    ) -> None:
        """Raise where going on would be of no use, or would count what a budget stopped as missing."""
        account = current_account.get()
        if account is not None and account.refused is not None:
            raise OutOfBudgetError(f"the budget is used up ({account.refused})")
        if by_themselves > len(failures) and (first.member is not None) not in self._reached:
            raise ModelNotReachedError(_not_reached(self._reached))
        if by_themselves and first.skills is not None and not self._instructed and not failures:
            raise SkillsNotReachedError(
                "the app ran without one model call that was given the skills: build its model with amc.chat_model(…), "
                "call a local one (amc-local/<path>), add SkillsMiddleware to create_agent, or put skills_text() into "
                "its prompt"
            )
        if not np.isnan(rewards).all():
            return
        if failures:
            hint = "" if first.member is None else "; if the base does better, sigma is too large: try a tenth of it"
            raise NoRewardError(f"all {len(failures)} rollouts failed, the first with {failures[0]}{hint}")
        if unjudged:
            raise NoRewardError(f"none of {len(rewards)} rollouts could be judged, the first because {unjudged[0]}")
        raise all_broken_off(len(rewards))

    def _job(self, rollout: Rollout) -> Job:
        column, member = rollout.column, rollout.member
        noise: tuple[Any, ...] = (self._seed, rollout.phase, rollout.generation, column.task, column.repeat)
        seed = mix(self._seed, rollout.phase, rollout.generation, column.repeat)
        if not self._common and member is not None:
            noise = (*noise, member.pair, member.sign)
        return Job(self._tasks[column.task], seed, self._settings, member, noise, rollout.skills)

    def _name(self, rollout: Rollout, weights: str, spec: tuple[Any, ...]) -> str:
        member = None if rollout.member is None else (rollout.member.pair, rollout.member.sign)
        job: tuple[Any, ...] = (
            rollout.phase,
            rollout.generation,
            member,
            rollout.column.task,
            rollout.column.repeat,
        )
        if rollout.skills is not None:
            job = (*job, rollout.skills.digest)
        task = rollout.column.task
        if task not in self._texts:
            self._texts[task] = digest(asdict(self._tasks[task]))
        told = repr((self._seed, self._common, weights, spec, job, self._texts[task], self._ran))
        return "evolve-" + hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _not_reached(reached: set[bool]) -> str:
    """What to say of an app whose calls do not reach the model; ``reached``: whether by members, by none, or both."""
    if reached:
        return (
            "no call of the app reached a member of the generation: the app calls its model from a thread that has not "
            "got the caller's context, so it is answered by the unperturbed weights. Start such work with "
            "asyncio.to_thread(…), langchain_core's ContextThreadPoolExecutor, or contextvars.copy_context().run"
        )
    return (
        "the app ran without one call to the model that is to be evolved: it has to call a local model, "
        "amc-local/<path> through LiteLLM, with the very path that is given as the model. (A thread of the app's own "
        "has to start with the caller's context: contextvars.copy_context().run.) None of these rollouts is kept"
    )


def _measurements(phase: str, measured: Measured, skills: SkillLibrary | None = None) -> list[Rollout]:
    """The rollouts of a measurement, by task and repeat."""
    columns = (Column(task, repeat) for task in measured.tasks.ids for repeat in range(measured.repeats))
    return [Rollout(phase, -1, None, column, skills) for column in columns]


def _spec(generation: Generation) -> tuple[Any, ...]:
    """What of a generation fixes its members, beside the weights and the seed."""
    return (generation.sigma, generation.rank, generation.kind)
