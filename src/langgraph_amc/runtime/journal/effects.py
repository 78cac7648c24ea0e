"""The outbox of a run with a journal: the intent is on disk before an effect, its outcome after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_amc.runtime.journal.coding import dump, to_json
from langgraph_amc.runtime.journal.errors import JournalError
from langgraph_amc.runtime.journal.writer import Writer
from langgraph_amc.runtime.outbox import Outcome, Recorded


class JournalOutbox:
    """Implements `langgraph_amc.runtime.outbox.Outbox`; what an earlier process began is known here."""

    def __init__(self, run: int, writer: Writer, serde: SerializerProtocol, stored: Iterable[Any] = ()) -> None:
        self._run, self._writer, self._serde = run, writer, serde
        self._lock = threading.Lock()
        self._known = {row.key: _recorded(row, serde) for row in stored}

    def begin(self, key: str, tool: str, arguments: Mapping[str, Any]) -> Recorded | None:
        known, ticket = self._begin(key, tool, arguments)
        self._writer.wait(ticket)
        return known

    async def abegin(self, key: str, tool: str, arguments: Mapping[str, Any]) -> Recorded | None:
        known, ticket = self._begin(key, tool, arguments)
        await self._writer.await_(ticket)
        return known

    def done(self, key: str, result: Any) -> None:
        self._writer.wait(self._end(key, "done", result))

    def failed(self, key: str, error: Any) -> None:
        self._writer.wait(self._end(key, "failed", error))

    async def adone(self, key: str, result: Any) -> None:
        await self._writer.await_(self._end(key, "done", result))

    async def afailed(self, key: str, error: Any) -> None:
        await self._writer.await_(self._end(key, "failed", error))

    # -- inside ----------------------------------------------------------------------------------

    def _begin(self, key: str, tool: str, arguments: Mapping[str, Any]) -> tuple[Recorded | None, int]:
        text = to_json(arguments, f"the arguments of {tool}")
        with self._lock:
            if (known := self._known.get(key)) is not None:
                return known, 0
            row = (self._run, key, tool, text, "unknown", None, None, time.time(), None)
            ticket = self._writer.put([("effect", row)])
            self._known[key] = Recorded("unknown")
        return None, ticket

    def _end(self, key: str, outcome: Outcome, value: Any) -> int:
        kind, data = dump(self._serde, value, "the result of an effect")
        with self._lock:
            if key not in self._known:
                raise JournalError(f"effect {key} was never begun")
            ticket = self._writer.put([("effect ends", (outcome, kind, data, time.time(), self._run, key))])
            self._known[key] = _outcome(outcome, value)
        return ticket


def _recorded(row: Any, serde: SerializerProtocol) -> Recorded:
    return _outcome(row.outcome, None if row.type is None else serde.loads_typed((row.type, bytes(row.result))))


def _outcome(outcome: Outcome, value: Any) -> Recorded:
    return Recorded(outcome, error=value) if outcome == "failed" else Recorded(outcome, result=value)
