"""Run the filter without an event loop, for populations whose coroutines never wait for anything.

The filter is written once, as an async generator. Where start, advance, score, fork and prune finish without
suspending (plain Python behind `async def`), each step can be pushed through by hand, so a synchronous caller
pays for no event loop and no thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator
from types import AsyncGeneratorType
from typing import Any, TypeVar

from langgraph_amc.errors import AMCError

E = TypeVar("E")
R = TypeVar("R")

_MAX_SUSPENSIONS = 1000


class SuspendedError(AMCError):
    """A coroutine waited for something although there is no event loop to wake it."""


def drive(events: AsyncGenerator[E, None]) -> Generator[E, None, None]:
    """The same events, synchronously; closing it early closes `events`, so that particles are pruned.

    Raises SuspendedError, also inside the population, if anything it awaits suspends.
    """
    try:
        while True:
            try:
                event = _run(events.__anext__())
            except StopAsyncIteration:
                return
            yield event
    finally:
        if not (isinstance(events, AsyncGeneratorType) and events.ag_running):  # running still: it will not stop
            _run(events.aclose())


def _run(step: Coroutine[Any, Any, R]) -> R:
    try:
        step.send(None)
    except StopIteration as finished:
        return finished.value
    error = SuspendedError(
        "The population waited for something (I/O, a lock, a sleep) inside drive(), which has no event loop: "
        "iterate particle_filter with 'async for' instead."
    )
    # Raise it where the coroutine waits, and again wherever its clean-up waits, so that everything is tried.
    for _ in range(_MAX_SUSPENSIONS):
        try:
            step.throw(error)
        except StopIteration:
            break
    raise error
