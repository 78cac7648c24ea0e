"""One worker process: the app, the reward and the settings, loaded once, and the jobs that it is sent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph_amc.errors import AMCError
from langgraph_amc.evaluate.execution.leases import Lease
from langgraph_amc.evaluate.execution.work import LoadedWork, Work, with_changes
from langgraph_amc.evaluate.runner import Job, run_job
from langgraph_amc.evolution.asktell import Update
from langgraph_amc.evolution.members import Generation
from langgraph_amc.runtime.result import AMCResult, ParticleReport
from langgraph_amc.tasks.task import Task
from langgraph_amc.trajectories.types import Usage
from langgraph_amc_ray.errors import Failure

if TYPE_CHECKING:
    from langgraph_amc.evaluate.evolving.replica import Replica
    from langgraph_amc.evaluate.evolving.replicas import Tuning

T = TypeVar("T")
THREADS = 64
"""For nodes and rewards that block: as many as rollouts that may wait at once."""


@dataclass(frozen=True, slots=True)
class Order:
    """A job on its way to a worker: ``changes`` are what its settings differ by from the worker's own."""

    task: Task
    seed: int
    member: Any
    noise: tuple[Hashable, ...] | None
    changes: Mapping[str, Any]
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """What came of an order: the record of the run without the app's outputs, which stay where they were made."""

    result: AMCResult
    rewards: tuple[float | None, ...]
    missing: tuple[str, ...]
    used: Usage
    exhausted: str | None


class Worker:
    """An actor. Its methods are coroutines: the jobs of one worker share its event loop, and its model's batch."""

    def __init__(self, work: Work, folder: str, tuning: Tuning | None = None) -> None:
        self._work = work
        self._folder = folder
        self._tuning = tuning
        self._loaded: LoadedWork | None = None
        self._replica: Replica | None = None
        self._serving: ExitStack | None = None
        self._generation: Generation | None = None
        self._changing = asyncio.Lock()

    async def load(self) -> int | Failure:
        """Load everything; returns the process id."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        try:
            await asyncio.to_thread(_enter, self._folder)
            if self._tuning is not None:
                from langgraph_amc.evaluate.evolving.replica import Replica  # PyTorch: not needed to run jobs only

                self._replica = await asyncio.to_thread(Replica, self._tuning)
            self._loaded = await asyncio.to_thread(self._work.load)
        except Exception as error:
            return Failure.of(error)
        return os.getpid()

    async def run(self, order: Order) -> Delivery | Failure:
        """Run one job."""
        if self._loaded is None:
            return Failure.of(AMCError("this worker has loaded nothing yet: call load first"))
        try:
            return await self._run(self._loaded, order)
        except Exception as error:
            return Failure.of(error)

    async def restore(self, updates: Sequence[Update]) -> str | Failure:
        """Bring the weights to where these updates lead, from wherever they are; returns their hash."""
        return await self._change(lambda replica: replica.restore(updates))

    async def begin(self, generation: Generation) -> Failure | None:
        """Answer for the members of a generation; nothing new where it does already."""
        return await self._change(lambda replica: self._begin(replica, generation))

    async def end(self) -> Failure | None:
        """Answer for no members any more."""
        return await self._change(lambda _: self._end())

    async def samples(self, members: bool) -> int | Failure:
        """How many answers the engine has begun, all or those of members only."""
        return await self._change(lambda replica: replica.samples(members=members))

    async def layout(self) -> str | Failure:
        """Fingerprint of what is perturbed."""
        return await self._change(lambda replica: replica.layout.fingerprint())

    async def dtype(self) -> str | Failure:
        """The type of number that is served."""
        return await self._change(lambda replica: replica.dtype)

    async def _change(self, change: Callable[[Replica], T]) -> T | Failure:
        """Do something with the replica, one thing at a time, off the event loop."""
        async with self._changing:
            try:
                if self._replica is None:
                    raise AMCError("this worker holds no model: it was started to run jobs only")
                return await asyncio.to_thread(change, self._replica)
            except Exception as error:
                return Failure.of(error)

    def _begin(self, replica: Replica, generation: Generation) -> None:
        if self._generation == generation:
            return
        self._end()
        stack = ExitStack()
        stack.enter_context(replica.serving(generation))
        self._serving, self._generation = stack, generation

    def _end(self) -> None:
        if self._serving is not None:
            self._serving.close()
        self._serving = self._generation = None

    async def _run(self, loaded: LoadedWork, order: Order) -> Delivery:
        job = Job(order.task, order.seed, loaded.settings, order.member, order.noise)
        job = with_changes(job, order.changes, loaded.settings)
        if order.lease is None:
            outcome = await run_job(loaded.app, job, loaded.reward)
            used, exhausted = outcome.result.usage, None
        else:
            with order.lease.budget.open() as account:
                outcome = await run_job(loaded.app, job, loaded.reward)
            used, exhausted = account.spent, account.exhausted
        return Delivery(_light(outcome.result), outcome.rewards, outcome.missing, used, exhausted)


def _enter(folder: str) -> None:
    """Relative paths are meant from the folder in which the command was given, where this machine has it."""
    if Path(folder).is_dir():
        os.chdir(folder)


def _light(result: AMCResult) -> AMCResult:
    """The record without outputs, which need not survive the way to another process."""
    particles = tuple(_without_output(report) for report in result.particles)
    pruned = tuple(_without_output(report) for report in result.pruned)
    return replace(result, winner=_without_output(result.winner), particles=particles, pruned=pruned)


def _without_output(report: ParticleReport) -> ParticleReport:
    return replace(report, output=None)
