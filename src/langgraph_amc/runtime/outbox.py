"""The outbox: what makes an effect happen once. The intent is stored before it, its outcome after it.

An effect that was begun and has no outcome is *unknown*: the process died (or was cancelled) while it was under
way, and nobody but the outside system knows whether it took place. It is never begun again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Outcome = Literal["done", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of an effect that was begun before.

    Attributes
    ----------
    outcome: ``"done"``, ``"failed"``, or ``"unknown"`` where it was begun and nothing was heard of it since.
    result: what ``done`` was given; JSON.
    error: what ``failed`` was given; JSON.
    """

    outcome: Outcome
    result: Any = None
    error: Any = None


class Outbox(Protocol):
    """Keeps effects by idempotency key; ``arguments``, results and errors are JSON values.

    The methods with an ``a`` are the same on an event loop. All are safe to call from several threads; of
    several calls of ``begin`` with one key, one is told to go ahead.
    """

    def begin(self, key: str, tool: str, arguments: Mapping[str, Any]) -> Recorded | None:
        """Store the intent, durably, and return ``None``: go ahead; or what is known of an earlier one."""
        ...

    def done(self, key: str, result: Any) -> None:
        """Store the result."""
        ...

    def failed(self, key: str, error: Any) -> None:
        """Store that the effect raised."""
        ...

    async def abegin(self, key: str, tool: str, arguments: Mapping[str, Any]) -> Recorded | None: ...

    async def adone(self, key: str, result: Any) -> None: ...

    async def afailed(self, key: str, error: Any) -> None: ...


class MemoryOutbox:
    """An outbox that lasts as long as its process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Recorded] = {}

    def begin(self, key: str, tool: str, arguments: Mapping[str, Any]) -> Recorded | None:
        with self._lock:
            known = self._known.get(key)
            if known is None:
                self._known[key] = Recorded("unknown")
            return known

    def done(self, key: str, result: Any) -> None:
        with self._lock:
            self._known[key] = Recorded("done", result=result)

    def failed(self, key: str, error: Any) -> None:
        with self._lock:
            self._known[key] = Recorded("failed", error=error)

    async def abegin(self, key: str, tool: str, arguments: Mapping[str, Any]) -> Recorded | None:
        return self.begin(key, tool, arguments)

    async def adone(self, key: str, result: Any) -> None:
        self.done(key, result)

    async def afailed(self, key: str, error: Any) -> None:
        self.failed(key, error)
