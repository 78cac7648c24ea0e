"""Gathering identical requests that arrive together, and sharing out what one request for all of them cost.

`gather_async` and `gather_sync` collect callers with the same key for a moment, run one function for all of
them, and hand each caller its own part. The asynchronous form runs in a task of its own, so that a cancelled
caller takes nobody with it; only when all have gone is the request cancelled too.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from opentelemetry.trace import SpanContext

from langgraph_amc.telemetry import names, span
from langgraph_amc.telemetry.spans import here, link

T = TypeVar("T")

_LONGEST = 20
"""At most this many windows, however many callers keep arriving."""


class _AsyncBatch:
    def __init__(self) -> None:
        self.waiters: list[asyncio.Future[Any]] = []
        self.callers: dict[asyncio.Future[Any], SpanContext] = {}
        self.seen = 0


_async: dict[tuple[asyncio.AbstractEventLoop, str], _AsyncBatch] = {}
_running: set[asyncio.Task[None]] = set()


async def gather_async(key: str, window: float, run: Callable[[int], Awaitable[Sequence[T | Exception]]]) -> T:
    """Join the callers of this event loop that share ``key``; ``run(k)`` answers all k of them.

    Parameters
    ----------
    window: seconds to wait for others; extended while they keep arriving or the loop is behind.
    run: the first caller's is used; it returns one result per caller, in order of arrival. A result that is
        an exception is raised in its caller.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[T] = loop.create_future()
    batch = _async.get((loop, key))
    if batch is None:
        batch = _async[loop, key] = _AsyncBatch()
        task = loop.create_task(_collect(loop, key, batch, window, run))
        _running.add(task)
        task.add_done_callback(_running.discard)
    batch.waiters.append(waiter)
    batch.callers[waiter] = here()
    return await waiter


async def _collect(
    loop: asyncio.AbstractEventLoop,
    key: str,
    batch: _AsyncBatch,
    window: float,
    run: Callable[[int], Awaitable[Sequence[Any]]],
) -> None:
    try:
        await _settle(loop, batch, window)
        del _async[loop, key]
        waiters = [w for w in batch.waiters if not w.done()]
        if waiters:
            await _answer(loop, waiters, run, [batch.callers[w] for w in waiters])
    finally:  # a closing loop cancels this task: nobody may be left waiting
        if _async.get((loop, key)) is batch:
            del _async[loop, key]
        for waiter in batch.waiters:
            waiter.cancel()


async def _settle(loop: asyncio.AbstractEventLoop, batch: _AsyncBatch, window: float) -> None:
    """Wait until a whole window has passed without a new caller on a loop that keeps time."""
    deadline = loop.time() + _LONGEST * window
    calm = False
    while not calm and loop.time() < deadline:
        due = loop.time() + window
        await asyncio.sleep(window)
        calm = len(batch.waiters) == batch.seen and loop.time() - due < window
        batch.seen = len(batch.waiters)


async def _answer(
    loop: asyncio.AbstractEventLoop,
    waiters: list[asyncio.Future[Any]],
    run: Callable[[int], Awaitable[Sequence[Any]]],
    callers: Sequence[SpanContext],
) -> None:
    request = loop.create_task(_call(run, callers))

    def on_done(_: asyncio.Future[Any]) -> None:
        if all(w.cancelled() for w in waiters):
            request.cancel()

    for waiter in waiters:
        waiter.add_done_callback(on_done)
    await asyncio.wait([request])
    if request.cancelled():
        return
    error = request.exception()
    results = [error] * len(waiters) if error is not None else request.result()
    for waiter, result in zip(waiters, results, strict=True):
        if waiter.done():
            continue
        if isinstance(result, BaseException):
            waiter.set_exception(result)
        else:
            waiter.set_result(result)


async def _call(run: Callable[[int], Awaitable[Sequence[T]]], callers: Sequence[SpanContext]) -> Sequence[T]:
    with _together(callers):
        return await run(len(callers))


def _together(callers: Sequence[SpanContext]) -> AbstractContextManager[Any]:
    """A span around one request for several callers: below the first one's, linked to those of all."""
    if len(callers) == 1:
        return nullcontext()
    links = [link(caller, "caller") for caller in callers if caller.is_valid]
    return span(names.COALESCED, {names.KIND: "CHAIN", names.COALESCED_CALLS: len(callers)}, links=links)


_sync: dict[str, list[tuple[Future[Any], SpanContext]]] = {}
_sync_lock = threading.Lock()


def gather_sync(key: str, window: float, run: Callable[[int], Sequence[T | Exception]]) -> T:
    """The same for threads: the first one waits for the others and runs the request."""
    own: Future[T] = Future()
    with _sync_lock:
        batch = _sync.get(key)
        leads = batch is None
        if batch is None:
            batch = _sync[key] = []
        batch.append((own, here()))
    if leads:
        _lead(key, batch, window, run)
    return own.result()


def _lead(
    key: str, batch: list[tuple[Future[Any], SpanContext]], window: float, run: Callable[[int], Sequence[Any]]
) -> None:
    try:
        deadline = time.monotonic() + _LONGEST * window
        seen = 0
        while seen < len(batch) and time.monotonic() < deadline:
            seen = len(batch)
            time.sleep(window)
        with _sync_lock:
            del _sync[key]
        with _together([caller for _, caller in batch]):
            results: Sequence[Any] = run(len(batch))
    except BaseException as error:  # an interrupted leader must not leave its followers waiting
        with _sync_lock:
            if _sync.get(key) is batch:
                del _sync[key]
        for future, _ in batch:
            future.set_exception(error)
        return
    for (future, _), result in zip(batch, results, strict=True):
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)


def share(total: int, weights: Sequence[float]) -> list[int]:
    """Split a whole number in proportion to weights; the parts add up to it (largest remainders)."""
    mass = sum(weights)
    exact = [total * w / mass for w in weights] if mass > 0 else [total / len(weights)] * len(weights)
    parts = [int(x) for x in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: parts[i] - exact[i])
    for i in by_remainder[: total - sum(parts)]:
        parts[i] += 1
    return parts
