"""Two ways to drive the same coroutines: asyncio, or plain threads without any event loop.

The particle code is written once, as coroutines that reach the outside only through an `Engine`. With
`ThreadEngine` no await ever suspends: generators are the app's own sync ones, stepped from one thread per
particle, so that sync-only tools and models run as they do in a plain ``invoke``.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.errors import GraphInterrupt
from langgraph.store.base import BaseStore

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.runtime.saver import ParticleSaver

T = TypeVar("T")

SAVE_TIMEOUT = 60.0
"""Seconds a background save of LangGraph may take before it is reported as lost."""


class Engine(Protocol):
    """How to step a held run, wait, and reach the user's saver, store and functions."""

    is_async: bool
    stopping: bool
    """Whether the run is being given up: no particle begins another super-step."""

    def open(self, app: Any, input: Any, config: RunnableConfig, options: Mapping[str, Any]) -> Any:
        """A held run: nothing happens until it is pulled."""
        ...

    async def next(self, run: Any) -> Any:
        """The next stream event; raises StopAsyncIteration at the end."""
        ...

    async def close(self, run: Any) -> None:
        """End a held run at its super-step edge, without an error in its trace."""
        ...

    async def gather(self, jobs: Iterable[Coroutine[Any, Any, None]], deadline: float | None = None) -> None:
        """Run all at once; the first error is raised after the others have ended.

        At the deadline (`time.monotonic`) those that can be are broken off; nothing is raised for them.
        """
        ...

    async def saved(self, saver: ParticleSaver, thread_id: str, checkpoint_id: str) -> None:
        """Wait for LangGraph's background save of this checkpoint."""
        ...

    async def load(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> CheckpointTuple | None: ...

    async def state(self, app: Any, saver: ParticleSaver, thread_id: str) -> Any:
        """Values of the state channels at the newest checkpoint of ``saver``, without writes that wait on it."""
        ...

    async def put(self, saver: BaseCheckpointSaver, *args: Any) -> None: ...

    async def put_writes(self, saver: BaseCheckpointSaver, *args: Any) -> None: ...

    async def store_batch(self, store: BaseStore, ops: Sequence[Any]) -> None: ...

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a user's function, which may block or be a coroutine function."""
        ...


class AsyncEngine:
    """On the running event loop.

    Parameters
    ----------
    patient: on cancellation, let every particle reach its next super-step edge; if not, all are cancelled at once.
    """

    is_async = True

    def __init__(self, *, patient: bool = False) -> None:
        self.patient = patient
        self.stopping = False

    def open(self, app: Any, input: Any, config: RunnableConfig, options: Mapping[str, Any]) -> Any:
        return app.astream(input, config, **options).__aiter__()

    async def next(self, run: Any) -> Any:
        return await owned_next(run)

    async def close(self, run: Any) -> None:
        if run.ag_frame is None or run.ag_running:
            await run.aclose()
            return
        try:
            with suppress(StopAsyncIteration):
                await run.athrow(GraphInterrupt())
            async for _ in run:  # to its end, of which what others have wrapped it in learns only like this
                pass
        except GraphInterrupt:
            pass
        finally:
            await run.aclose()

    async def gather(self, jobs: Iterable[Coroutine[Any, Any, None]], deadline: float | None = None) -> None:
        todo = list(jobs)
        if not todo:
            return
        if len(todo) == 1 and deadline is None and not self.patient:
            await todo[0]
            return
        tasks = [asyncio.create_task(job) for job in todo]
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            if self.patient:
                self.stopping = True
                await asyncio.wait(tasks)
            raise
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def saved(self, saver: ParticleSaver, thread_id: str, checkpoint_id: str) -> None:
        for turn in range(int(SAVE_TIMEOUT * 1000)):
            if saver.is_saved(thread_id, checkpoint_id):
                return
            await asyncio.sleep(0 if turn < 100 else 0.001)
        raise _lost(checkpoint_id)

    async def load(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> CheckpointTuple | None:
        return await saver.aget_tuple(config)

    async def state(self, app: Any, saver: ParticleSaver, thread_id: str) -> Any:
        return (await _with_saver(app, saver).aget_state(_head(saver, thread_id))).values

    async def put(self, saver: BaseCheckpointSaver, *args: Any) -> None:
        await saver.aput(*args)

    async def put_writes(self, saver: BaseCheckpointSaver, *args: Any) -> None:
        await saver.aput_writes(*args)

    async def store_batch(self, store: BaseStore, ops: Sequence[Any]) -> None:
        await store.abatch(ops)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        result = await asyncio.to_thread(function, *args)
        return await result if inspect.isawaitable(result) else result


def owned_next(generator: AsyncGenerator[T, None]) -> Awaitable[T]:
    """The next item of a generator that its caller closes.

    An event loop that shuts down closes every async generator it knows of, all at once; one that another
    generator is just closing then fails. So the loop is not told of those that are owned.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return generator.__anext__()
    finally:
        sys.set_asyncgen_hooks(*hooks)


class Owned(AsyncIterator[T]):
    """Iterates a generator that its caller closes, see `owned_next`."""

    def __init__(self, generator: AsyncGenerator[T, None]) -> None:
        self._generator = generator

    def __anext__(self) -> Awaitable[T]:
        return owned_next(self._generator)


class ThreadEngine:
    """Without an event loop: one thread per particle, sized to the population.

    ``apart``: never the caller's own thread, whose Ctrl-C would else wait for tasks that are held.
    """

    is_async = False

    def __init__(self, threads: int, *, apart: bool = False) -> None:
        self.threads = threads
        self._apart = apart
        self.stopping = False

    def open(self, app: Any, input: Any, config: RunnableConfig, options: Mapping[str, Any]) -> Any:
        return app.stream(input, config, **options)

    async def next(self, run: Any) -> Any:
        try:
            return next(run)
        except StopIteration:
            raise StopAsyncIteration from None

    async def close(self, run: Any) -> None:
        while inspect.getgeneratorstate(run) == inspect.GEN_RUNNING:
            time.sleep(0.001)  # noqa: ASYNC251 - no loop here. Ctrl-C left a thread that is stepping it to its next edge
        try:
            if run.gi_frame is not None and inspect.getgeneratorstate(run) == inspect.GEN_SUSPENDED:
                with suppress(StopIteration):
                    run.throw(GraphInterrupt())
                for _ in run:
                    pass
        except GraphInterrupt:
            pass
        finally:
            run.close()

    async def gather(self, jobs: Iterable[Coroutine[Any, Any, None]], deadline: float | None = None) -> None:
        todo = list(jobs)
        if len(todo) == 1 and not self._apart:
            complete(todo[0])
            return
        with ThreadPoolExecutor(self.threads, thread_name_prefix="amc-particle") as pool:
            try:
                futures = [pool.submit(contextvars.copy_context().run, complete, job) for job in todo]
                ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
                self.stopping = any(future.exception() is not None for future in ended)
            except BaseException:  # Ctrl-C arrives here, in the main thread
                self.stopping = True
                for job in todo:
                    if inspect.getcoroutinestate(job) == inspect.CORO_CREATED:
                        job.close()
                raise
        for future in futures:
            future.result()

    async def saved(self, saver: ParticleSaver, thread_id: str, checkpoint_id: str) -> None:
        if not saver.wait_saved(thread_id, checkpoint_id, SAVE_TIMEOUT):
            raise _lost(checkpoint_id)

    async def load(self, saver: BaseCheckpointSaver, config: RunnableConfig) -> CheckpointTuple | None:
        return saver.get_tuple(config)

    async def state(self, app: Any, saver: ParticleSaver, thread_id: str) -> Any:
        return _with_saver(app, saver).get_state(_head(saver, thread_id)).values

    async def put(self, saver: BaseCheckpointSaver, *args: Any) -> None:
        saver.put(*args)

    async def put_writes(self, saver: BaseCheckpointSaver, *args: Any) -> None:
        saver.put_writes(*args)

    async def store_batch(self, store: BaseStore, ops: Sequence[Any]) -> None:
        store.batch(ops)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        result = function(*args)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise ConfigurationError(
                f"{getattr(function, '__name__', function)!r} is asynchronous: call the app with ainvoke/astream, "
                "or give a synchronous function"
            )
        return result


def _head(saver: ParticleSaver, thread_id: str) -> RunnableConfig:
    """The newest checkpoint by its id: LangGraph then leaves out the writes of tasks that have ended since."""
    head = saver.head(thread_id)
    configurable: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": ""}
    return {"configurable": configurable if head is None else {**configurable, "checkpoint_id": head.id}}


def _with_saver(app: Any, saver: BaseCheckpointSaver) -> Any:
    app = copy.copy(app)
    app.checkpointer = saver
    return app


def complete(job: Awaitable[T]) -> T:
    """Run a coroutine that never suspends to its end, without an event loop."""
    step = job.__await__()
    try:
        next(step)
    except StopIteration as stop:
        return stop.value
    raise AMCError("a synchronous run tried to wait on an event loop; use ainvoke/astream")


def _lost(checkpoint_id: str) -> AMCError:
    return AMCError(f"checkpoint {checkpoint_id} of a particle was not saved within {SAVE_TIMEOUT:.0f} s")
