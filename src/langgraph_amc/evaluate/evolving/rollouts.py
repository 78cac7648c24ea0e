"""Rollouts of a population through the runner, rewards and store of any evaluation (Agentic ESOpt, section 3).

A rollout that failed, was broken off or could not be judged has no reward: it is missing, never 0. Each is stored
under a name made of everything that fixes it, the weights' hash included, so a run that was killed in mid-generation
finds those that had ended, and the start's and the end's weights are measured once.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.evaluate.evolving.replicas import Replicas
from langgraph_amc.evaluate.runner import Job, NoRewardError, Outcome, paid
from langgraph_amc.evolution.asktell import Update
from langgraph_amc.evolution.loop import Column
from langgraph_amc.evolution.members import Generation, Member
from langgraph_amc.policy.gate import current_account
from langgraph_amc.policy.seeds import mix
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.tasks.task import Task, TaskSet
from langgraph_amc.trajectories.store import Record, TrajectoryStore
from langgraph_amc.trajectories.types import Trajectory, Usage

Floats = NDArray[np.float64]
TRAIN, VALIDATION, HELD_OUT = "train", "validation", "held-out"
TOGETHER = 1.0
"""Seconds of rollouts that are stored in one transaction: short ones take no longer than their storing, one by one."""


class OutOfBudgetError(AMCError):
    """The budget ended a generation or a measurement; it can be gone on with."""


class ModelNotReachedError(ConfigurationError):
    """The app's calls do not go to the model that is evolved."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One run of the app: in which phase, whose weights, on what."""

    phase: str
    generation: int
    member: Member | None
    column: Column


@dataclass(slots=True)
class Tally:
    """What the rollouts of this process have brought; those found in the store are counted apart."""

    run: int = 0
    found: int = 0
    failed: int = 0
    missing: int = 0
    usage: Usage = field(default_factory=Usage)
    first_failure: str | None = None
    first_missing: str | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """Tasks, each run so many times with the weights as they are."""

    tasks: TaskSet
    repeats: int


class _Ended:
    """Rollouts that have ended; they are stored together."""

    def __init__(self, store: TrajectoryStore) -> None:
        self._store = store
        self._records: list[Record] = []
        self._stored = time.monotonic()

    def add(self, record: Record) -> None:
        self._records.append(record)
        if time.monotonic() - self._stored >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        records, self._records = self._records, []
        self._store.add_records(lambda: records, on_conflict="skip")
        self._stored = time.monotonic()


class StoredRollouts:
    """`evolution.loop.Rollouts` over an executor and a store.

    Parameters
    ----------
    tasks: all that are trained on. validation, held_out: to measure on, with the same noise whatever the weights.
    settings: of one particle. common: whether all members sample with the same random numbers.
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
        self._weights = ""
        self._reached = False

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
        spec = (generation.sigma, generation.rank, generation.kind)
        found = await self._run(wanted, self._weights, spec, f"generation {generation.number + 1}")
        return found.reshape(len(rows), len(columns))

    async def validate(self, weights: str) -> Floats:
        """Rewards [tasks, repeats] on the validation tasks."""
        return await self._measure(VALIDATION, self._validation, weights)

    async def compare(self, weights: str) -> Floats:
        """Rewards [tasks, repeats] on the held-out tasks."""
        return await self._measure(HELD_OUT, self._held_out, weights)

    async def _measure(self, phase: str, measured: Measured, weights: str) -> Floats:
        columns = [Column(task, repeat) for task in measured.tasks.ids for repeat in range(measured.repeats)]
        wanted = [Rollout(phase, -1, None, column) for column in columns]
        found = await self._run(wanted, weights, (), f"measuring, {phase} tasks")
        return found.reshape(len(measured.tasks), measured.repeats)

    async def _run(self, wanted: Sequence[Rollout], weights: str, spec: tuple[Any, ...], title: str) -> Floats:
        """Rewards of these rollouts, from the store or run now."""
        names = [self._name(rollout, weights, spec) for rollout in wanted]
        rewards = np.full(len(wanted), np.nan)
        place = {name: i for i, name in enumerate(names)}
        stored = {t.run_id: t for t in self._store.trajectories(run_ids=names)}
        for name, trajectory in stored.items():
            rewards[place[name]] = _reward(trajectory)
        self.tally.found += len(stored)
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
        before = await self._replicas.samples()
        jobs = [self._job(wanted[i]) for i in missing]
        at = {(job.member, job.task.id, job.noise): i for job, i in zip(jobs, missing, strict=True)}
        self._progress(title, len(stored), len(wanted))
        ended = by_themselves = 0
        failures: list[str] = []
        unjudged: list[str] = []
        keep = _Ended(self._store)
        try:
            async with aclosing(self._replicas.run(jobs, concurrency=self._concurrency)) as outcomes:
                async for outcome in outcomes:
                    i = at[(outcome.job.member, outcome.job.task.id, outcome.job.noise)]
                    rewards[i] = self._note(outcome, wanted[i], names[i], weights, keep)
                    ended += 1
                    by_themselves += any(map(paid, outcome.trajectories))
                    failures += [t.error for t in outcome.trajectories if t.status == "failed" and t.error is not None]
                    unjudged += outcome.missing
                    self._progress(title, len(stored) + ended, len(wanted))
        finally:
            keep.flush()
        if by_themselves:
            self._reached = self._reached or bool(failures) or await self._replicas.samples() != before
        self._check(rewards, failures, unjudged, by_themselves)
        return rewards

    def _note(self, outcome: Outcome, rollout: Rollout, name: str, weights: str, keep: _Ended) -> float:
        """Keep a rollout that ended by itself; returns its reward, NaN where there is none."""
        [trajectory] = outcome.trajectories
        tally = self.tally
        tally.usage = tally.usage + outcome.result.usage
        tally.run += 1
        tally.failed += trajectory.status == "failed"
        tally.missing += len(outcome.missing)
        if not paid(trajectory):
            return math.nan
        member = {} if rollout.member is None else {"pair": rollout.member.pair, "sign": rollout.member.sign}
        where = {"evolution": rollout.phase, "generation": rollout.generation, "repeat": rollout.column.repeat}
        more = where | member | {"weights": weights}
        keep.add(Record(replace(trajectory, run_id=name), asdict(outcome.job.task), more))
        return _reward(trajectory)

    def _check(self, rewards: Floats, failures: list[str], unjudged: list[str], by_themselves: int) -> None:
        """Raise where going on would be of no use, or would count what a budget stopped as missing."""
        account = current_account.get()
        if account is not None and account.refused is not None:
            raise OutOfBudgetError(f"the budget is used up ({account.refused})")
        if by_themselves and not self._reached:
            raise ModelNotReachedError(
                "the app ran without one call to the model that is to be evolved: it has to call a local model, "
                "amc-local/<path> through LiteLLM, with the very path that is given as the model"
            )
        if not np.isnan(rewards).all():
            return
        if failures:
            raise NoRewardError(f"all {len(failures)} rollouts failed, the first with {failures[0]}")
        if unjudged:
            raise NoRewardError(f"none of {len(rewards)} rollouts could be judged, the first because {unjudged[0]}")
        raise NoRewardError(f"none of {len(rewards)} rollouts ended within its own limits: raise them")

    def _job(self, rollout: Rollout) -> Job:
        column, member = rollout.column, rollout.member
        noise: tuple[Any, ...] = (self._seed, rollout.phase, rollout.generation, column.task, column.repeat)
        seed = mix(self._seed, rollout.phase, rollout.generation, column.repeat)
        if not self._common and member is not None:
            noise = (*noise, member.pair, member.sign)
        return Job(self._tasks[column.task], seed, self._settings, member, noise)

    def _name(self, rollout: Rollout, weights: str, spec: tuple[Any, ...]) -> str:
        member = None if rollout.member is None else (rollout.member.pair, rollout.member.sign)
        job = (rollout.phase, rollout.generation, member, rollout.column.task, rollout.column.repeat)
        told = repr((self._seed, self._common, weights, spec, job))
        return "evolve-" + hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _reward(trajectory: Trajectory) -> float:
    """The reward of a stored rollout; NaN for one that failed or could not be judged."""
    if trajectory.status == "failed" or trajectory.outcome is None:
        return math.nan
    return trajectory.outcome
