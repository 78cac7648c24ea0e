"""Copies of the evolved model in step with one another: one here by default, one per worker elsewhere.

What passes between processes are seeds and integer coefficients, never weights; after every generation the copies'
hashes are compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.evaluate.execution.executor import LOCAL, Executor, Processes
from langgraph_amc.evaluate.execution.work import Work
from langgraph_amc.evaluate.runner import Job, Outcome, Progress
from langgraph_amc.evolution.asktell import Update
from langgraph_amc.evolution.members import Generation
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.tasks.integrations import load_integration

if TYPE_CHECKING:
    from langgraph_amc.evaluate.evolving.replica import Replica
    from langgraph_amc.evolution.layout import Scope


@dataclass(frozen=True, slots=True)
class Tuning:
    """Which model is evolved, in words that mean the same in every process.

    Attributes
    ----------
    model: the path by which the app names it, ``amc-local/<model>``. scope: what of it is perturbed.
    anchored: whether updates need the starting weights (decay). max_batch: rows that are computed at a time.
    """

    model: str
    scope: Scope = "all"
    anchored: bool = False
    max_batch: int = 64


class ReplicasDivergedError(AMCError):
    """Copies of the evolved model have different weights."""


class Replicas(Executor, Protocol):
    """An executor whose processes hold copies of the evolved model, all with the same weights."""

    def serving(self, generation: Generation) -> AbstractAsyncContextManager[None]:
        """Inside, jobs may name members of this generation."""
        ...

    async def apply(self, update: Update) -> str:
        """Take a step everywhere; returns the hash that all copies have. Raises ReplicasDivergedError."""
        ...

    async def restore(self, updates: Sequence[Update]) -> str:
        """Go to the weights of the files after these updates; returns the hash. Raises ReplicasDivergedError."""
        ...

    async def samples(self, *, members: bool) -> int:
        """How many answers the copies have begun, all or those of members only."""
        ...

    async def layout(self) -> str:
        """Fingerprint of what is perturbed."""
        ...

    async def dtype(self) -> str:
        """The type of number that the copies serve, like ``float32``; the finest, where machines differ."""
        ...


@asynccontextmanager
async def serving_on(replica: Replica, generation: Generation) -> AsyncIterator[None]:
    """Inside, a copy's engine answers for members; nothing of it blocks the event loop."""
    serving = replica.serving(generation)
    await asyncio.to_thread(serving.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(serving.__exit__, None, None, None)


class LocalReplicas:
    """One copy, in this process."""

    def __init__(self, executor: Executor, replica: Replica) -> None:
        self._executor = executor
        self._replica = replica

    def run(
        self, jobs: Iterable[Job], *, concurrency: int, progress: Progress | None = None
    ) -> AsyncGenerator[Outcome, None]:
        """Run jobs here."""
        return self._executor.run(jobs, concurrency=concurrency, progress=progress)

    def serving(self, generation: Generation) -> AbstractAsyncContextManager[None]:
        """The engine answers for members."""
        return serving_on(self._replica, generation)

    async def apply(self, update: Update) -> str:
        """Take a step."""
        return await asyncio.to_thread(self._replica.apply, update)

    async def restore(self, updates: Sequence[Update]) -> str:
        """Go to other weights."""
        return await asyncio.to_thread(self._replica.restore, updates)

    async def samples(self, *, members: bool) -> int:
        """Answers begun."""
        return self._replica.samples(members=members)

    async def layout(self) -> str:
        """Fingerprint of the layout."""
        return self._replica.layout.fingerprint()

    async def dtype(self) -> str:
        """The type of number that is served."""
        return self._replica.dtype


@asynccontextmanager
async def local_replicas(executor: Executor, tuning: Tuning) -> AsyncIterator[LocalReplicas]:
    """One copy here, in the engine that the app's calls find; afterwards that engine is closed."""
    from langgraph_amc.evaluate.evolving.replica import Replica  # PyTorch: other processes may be the ones that have it

    replica = await asyncio.to_thread(Replica, tuning)
    try:
        yield LocalReplicas(executor, replica)
    finally:
        await asyncio.to_thread(replica.close)


@runtime_checkable
class RemoteReplicas(Protocol):
    """What an integration offers that holds copies of an evolved model in other processes."""

    replicas: Callable[[Work, Settings, Tuning, Processes], AbstractAsyncContextManager[Replicas]]


def remote_replicas(
    name: str, work: Work, settings: Settings, tuning: Tuning, processes: Processes
) -> AbstractAsyncContextManager[Replicas]:
    """The copies that an installed integration keeps.

    Raises IntegrationError where it is not installed, ConfigurationError where it evolves nothing.
    """
    found = load_integration(name)
    if not isinstance(found, RemoteReplicas):
        raise ConfigurationError(f"the integration {name!r} evolves no models: use --executor {LOCAL}")
    return found.replicas(work, settings, tuning, processes)


def agreed(hashes: Mapping[str, str]) -> str:
    """The one hash of all copies, by name; raises ReplicasDivergedError where there are several."""
    found = set(hashes.values())
    if len(found) != 1:
        said = ", ".join(f"{name}: {known[:12]}" for name, known in hashes.items())
        raise ReplicasDivergedError(
            f"the copies of the model have different weights ({said}): something else changed them, or a machine has "
            "other files. Every update is in the history: run the command again, and all start from there"
        )
    return found.pop()
