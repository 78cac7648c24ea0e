"""The executor: one queue of jobs for all workers, so that whoever is free takes the next.

A worker that dies gives its unfinished jobs back to the queue and is replaced; what had ended is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import ray

from langgraph_amc.evaluate.execution.executor import Processes
from langgraph_amc.evaluate.execution.leases import Lease, Leases
from langgraph_amc.evaluate.execution.work import Work, settings_changes
from langgraph_amc.evaluate.runner import Job, Outcome, Progress
from langgraph_amc.runtime.settings import Settings
from langgraph_amc_ray.errors import LostWorkersError
from langgraph_amc_ray.pool import LOST, Slot, checked, connected, folder, starter, workers
from langgraph_amc_ray.worker import Order

ATTEMPTS = 3
"""Workers that one job may take down before it is given up."""


@dataclass(slots=True)
class _Waiting:
    """A job that waits for a worker, and how many died with it."""

    job: Job
    lost: int = 0


class _Queue:
    """Jobs that wait, in order; those of a dead worker come first again."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._waiting = deque(map(_Waiting, jobs))
        self._out = 0
        self._changed = asyncio.Condition()

    def __len__(self) -> int:
        return len(self._waiting)

    async def take(self) -> _Waiting | None:
        """The next job; waits while jobs on their way may come back, ``None`` when all have ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting or not self._out)
            if not self._waiting:
                return None
            self._out += 1
            return self._waiting.popleft()

    async def ended(self, again: _Waiting | None = None) -> None:
        """A job that was taken has ended, or has to be run again."""
        async with self._changed:
            self._out -= 1
            if again is not None:
                self._waiting.appendleft(again)
            self._changed.notify_all()


class RayExecutor:
    """An `Executor` over workers that are up."""

    def __init__(self, settings: Settings, slots: Sequence[Slot]) -> None:
        self._settings = settings
        self._slots = slots
        self.lost = 0
        """Jobs that had to be run again because their worker died."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(slot.pid for slot in self._slots)

    async def run(
        self, jobs: Iterable[Job], *, concurrency: int, progress: Progress | None = None
    ) -> AsyncGenerator[Outcome, None]:
        """Run jobs, ``concurrency`` at a time over all workers, at least one on each.

        Raises RemoteError where one breaks, LostWorkersError where workers keep dying. Outcomes have no outputs.
        """
        queue = _Queue(jobs)
        total = len(queue)
        each = max(1, concurrency // len(self._slots))
        leases = Leases(each * len(self._slots))
        ended: asyncio.Queue[Outcome] = asyncio.Queue()
        pulling = [asyncio.create_task(self._pull(s, queue, leases, ended)) for _ in range(each) for s in self._slots]
        failing = asyncio.gather(*pulling)
        try:
            for done in range(1, total + 1):
                yield await _first(ended, failing)
                if progress is not None:
                    progress(done, total)
        finally:
            for task in pulling:
                task.cancel()
            await asyncio.gather(failing, *pulling, return_exceptions=True)

    async def _pull(self, slot: Slot, queue: _Queue, leases: Leases, ended: asyncio.Queue[Outcome]) -> None:
        while (waiting := await queue.take()) is not None:
            lease, handle = leases.take(), slot.handle
            try:
                outcome = await self._send(slot, waiting.job, leases, lease)
            except LOST:
                leases.lose(lease)
                self.lost += 1
                waiting.lost += 1
                if waiting.lost >= ATTEMPTS:
                    raise LostWorkersError(
                        f"{ATTEMPTS} workers died while they ran the task {waiting.job.task.id!r}: run it alone, to "
                        "see what it does to its process"
                    ) from None
                await queue.ended(again=waiting)
                await slot.replace(handle)
                continue
            slot.worked()
            ended.put_nowait(outcome)
            await queue.ended()

    async def _send(self, slot: Slot, job: Job, leases: Leases, lease: Lease | None) -> Outcome:
        changes = settings_changes(job.settings, self._settings)
        sent = slot.handle.run.remote(Order(job.task, job.seed, job.member, job.noise, changes, lease))
        try:
            found = await sent
        except asyncio.CancelledError:
            ray.cancel(sent)
            raise
        checked(found, slot.name)
        leases.settle(lease, found.used, found.exhausted)
        return Outcome(job, found.result, found.rewards, found.missing)


async def _first(ended: asyncio.Queue[Outcome], failing: asyncio.Future[Any]) -> Outcome:
    """The next outcome; raises what broke the work instead, if something did."""
    getting = asyncio.create_task(ended.get())
    try:
        await asyncio.wait((getting, failing), return_when=asyncio.FIRST_COMPLETED)
        if not getting.done() and failing.exception() is not None:
            await failing
        return await getting
    finally:
        getting.cancel()


async def _ready(name: str, handle: Any) -> None:
    """A worker that only runs jobs is ready once it has loaded."""


@asynccontextmanager
async def executor(work: Work, settings: Settings, processes: Processes) -> AsyncIterator[RayExecutor]:
    """Start workers, and end them afterwards."""
    async with connected(processes):
        start = starter(work, folder())
        slots = [Slot(i, start, _ready) for i in range(processes.workers)]
        async with workers(slots):
            yield RayExecutor(settings, slots)
