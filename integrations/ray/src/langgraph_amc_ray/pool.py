"""Worker processes on Ray: started, watched, replaced when they die."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayActorError

from langgraph_amc.evaluate.execution.executor import Processes
from langgraph_amc_ray.errors import Failure, LostWorkersError
from langgraph_amc_ray.worker import Worker

LOST = RayActorError
_SHARED_MEMORY = 256 << 20
"""Bytes of a cluster that we start: what passes between processes is records, never weights."""
_REPLACEMENTS = 5
"""Replacements in a row, without a job that ended, after which a worker is given up."""


class Slot:
    """A place for a worker: its present process, and those that come after it.

    ``prepare`` makes a process that has loaded everything as far as the others are.
    """

    def __init__(self, number: int, start: Callable[[], Any], prepare: Callable[[str, Any], Awaitable[None]]) -> None:
        self.name = f"worker {number}"
        self.pid = 0
        self.handle: Any = None
        self._start = start
        self._prepare = prepare
        self._lock = asyncio.Lock()
        self._failures = 0

    async def up(self) -> None:
        """Start a process and make it ready; until then the place is the old one's."""
        handle = self._start()
        pid = checked(await handle.load.remote(), self.name)
        await self._prepare(self.name, handle)
        self.handle, self.pid = handle, pid

    async def replace(self, dead: Any) -> None:
        """Put a new process in the place of one that died, once, whoever noticed it first."""
        async with self._lock:
            while self.handle is dead:
                self._failures += 1
                if self._failures > _REPLACEMENTS:
                    raise LostWorkersError(
                        f"{self.name} died {self._failures} times without ending a job in between: look at its memory "
                        "(ray logs), or use fewer workers"
                    )
                with suppress(LOST):
                    await self.up()

    def worked(self) -> None:
        """A job has ended here: the process is sound."""
        self._failures = 0


@asynccontextmanager
async def connected(processes: Processes) -> AsyncIterator[None]:
    """A Ray cluster: at this address or ``RAY_ADDRESS``, or one we are connected to already, or one of our own."""
    own = not ray.is_initialized()
    address = processes.address or os.environ.get("RAY_ADDRESS")
    if own and address is not None:
        await asyncio.to_thread(ray.init, address=address, log_to_driver=False, logging_level=logging.ERROR)
    elif own:
        await asyncio.to_thread(
            ray.init,
            address="local",
            num_cpus=processes.workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=_SHARED_MEMORY,
        )
    try:
        yield
    finally:
        if own:
            await asyncio.to_thread(ray.shutdown)


def starter(*given: Any, gpus: float = 0.0) -> Callable[[], Any]:
    """Starts one worker process that is given these arguments."""
    actor = ray.remote(Worker).options(num_cpus=1, num_gpus=gpus, max_restarts=0, max_concurrency=1000)
    return lambda: actor.remote(*given)


def gpu_share(workers: int) -> float:
    """What each of so many workers gets of the cluster's GPUs: a part of one where they are fewer."""
    return min(1.0, float(_resources().get("GPU", 0.0)) / workers)


def _resources() -> dict[str, float]:
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return found


@asynccontextmanager
async def workers(slots: Sequence[Slot]) -> AsyncIterator[None]:
    """Start all processes, and end them afterwards."""
    try:
        await asyncio.gather(*(slot.up() for slot in slots))
        yield
    finally:
        for slot in slots:
            if slot.handle is not None:
                ray.kill(slot.handle)


def checked(found: Any, worker: str) -> Any:
    """What a worker returned; raises where that is a failure."""
    if isinstance(found, Failure):
        raise found.error(worker)
    return found


def folder() -> str:
    """Where relative paths are meant from."""
    return os.getcwd()
