"""Waiting for a change of shared state, alike for threads and for coroutines of any number of event loops.

Who waits takes an `Ear` under the lock that guards the state, looks at the state, and then waits; who changes
the state rings. asyncio's own primitives belong to one loop, and those of `threading` would block it.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress

Ear = Future[None]
"""Hears the next ring."""


class Bell:
    """Wakes everybody who listens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ears: set[Ear] = set()

    def listen(self) -> Ear:
        """An ear for the next ring."""
        ear: Ear = Future()
        with self._lock:
            self._ears.add(ear)
        return ear

    def ring(self) -> None:
        """Wake those who listen now."""
        with self._lock:
            ears, self._ears = self._ears, set()
        for ear in ears:
            with suppress(InvalidStateError):  # whoever had it was cancelled or ran out of time
                ear.set_result(None)

    def sleep(self, ear: Ear, seconds: float | None = None) -> bool:
        """Block this thread until the bell rings (true) or the time is over (false)."""
        try:
            wait([ear], seconds)
            return ear.done()
        finally:
            self._forget(ear)

    async def asleep(self, ear: Ear, seconds: float | None = None) -> bool:
        """The same without blocking the event loop."""
        try:
            await asyncio.wait([asyncio.wrap_future(ear)], timeout=seconds)
            return ear.done()
        finally:
            self._forget(ear)

    def _forget(self, ear: Ear) -> None:
        with self._lock:
            self._ears.discard(ear)
