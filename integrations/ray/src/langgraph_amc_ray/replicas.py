"""Copies of the evolved model in worker processes: seeds and integer coefficients go there, hashes come back.

A worker that died is replaced by one that replays all updates from the model's files, so it is where the others are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from langgraph_amc.evaluate.evolving.replicas import Tuning, agreed
from langgraph_amc.evaluate.execution.executor import Processes
from langgraph_amc.evaluate.execution.work import Work
from langgraph_amc.evaluate.runner import Job, Outcome, Progress
from langgraph_amc.evolution.asktell import Update
from langgraph_amc.evolution.members import Generation
from langgraph_amc.runtime.settings import Settings
from langgraph_amc_ray.executor import RayExecutor
from langgraph_amc_ray.pool import LOST, Slot, checked, connected, folder, gpu_share, starter, workers


class RayReplicas:
    """`Replicas`: an executor whose workers each hold a copy of the model."""

    def __init__(self) -> None:
        self.slots: Sequence[Slot] = ()
        self.executor: RayExecutor | None = None
        self._updates: list[Update] = []
        self._generation: Generation | None = None

    async def prepare(self, name: str, handle: Any) -> None:
        """Bring a process that has just loaded the model to where the others are."""
        checked(await handle.restore.remote(self._updates), name)
        if self._generation is not None:
            checked(await handle.begin.remote(self._generation), name)

    def run(
        self, jobs: Iterable[Job], *, concurrency: int, progress: Progress | None = None
    ) -> AsyncGenerator[Outcome, None]:
        """Run jobs on whichever worker is free."""
        if self.executor is None:
            raise RuntimeError("the workers are not up: enter the context first")
        return self.executor.run(jobs, concurrency=concurrency, progress=progress)

    @asynccontextmanager
    async def serving(self, generation: Generation) -> AsyncIterator[None]:
        """All workers answer for the generation's members."""
        self._generation = generation
        try:
            await self._all("begin", generation)
            yield
        finally:
            self._generation = None
            await self._all("end")

    async def apply(self, update: Update) -> str:
        """Take a step everywhere."""
        return await self.restore([*self._updates, update])

    async def restore(self, updates: Sequence[Update]) -> str:
        """Go to the weights after these updates everywhere, and compare them."""
        self._updates = list(updates)
        return agreed(await self._all("restore", self._updates))

    async def samples(self, *, members: bool) -> int:
        """Answers begun, of all workers that are alive."""
        return sum((await self._all("samples", members)).values())

    async def layout(self) -> str:
        """Fingerprint of the layout."""
        return agreed(await self._all("layout"))

    async def dtype(self) -> str:
        """The type of number that the workers serve; machines without a GPU serve float32, and others may not."""
        found = set((await self._all("dtype")).values())
        return found.pop() if len(found) == 1 else "float32"

    async def _all(self, method: str, *given: Any) -> dict[str, Any]:
        """What each worker says; every method may be called again, so a worker that was replaced is asked anew."""
        found = await asyncio.gather(*(_ask(slot, method, given) for slot in self.slots))
        return {slot.name: said for slot, said in zip(self.slots, found, strict=True)}


async def _ask(slot: Slot, method: str, given: tuple[Any, ...]) -> Any:
    while True:
        handle = slot.handle
        try:
            return checked(await getattr(handle, method).remote(*given), slot.name)
        except LOST:
            await slot.replace(handle)


@asynccontextmanager
async def replicas(work: Work, settings: Settings, tuning: Tuning, processes: Processes) -> AsyncIterator[RayReplicas]:
    """Start workers with a copy of the model each, and end them afterwards; GPUs are shared out evenly."""
    async with connected(processes):
        held = RayReplicas()
        start = starter(work, folder(), tuning, gpus=gpu_share(processes.workers))
        held.slots = [Slot(i, start, held.prepare) for i in range(processes.workers)]
        held.executor = RayExecutor(settings, held.slots)
        async with workers(held.slots):
            yield held
