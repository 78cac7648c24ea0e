"""The identity of a call: the same when its super-step is run again, another for every other call.

It must not depend on checkpoint or task ids: after a crash, super-steps whose checkpoints were not stored are
run again and get new ones. What stays is where in the graph the call is made (super-step, path, namespace),
the tool and its arguments, and the model's tool call id; calls without one are counted within one execution of
their task.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from pydantic import BaseModel

SCRATCHPAD = "__pregel_scratchpad"
"""LangGraph's per-execution object: another one each time a task runs, retries included."""

_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}")


def jsonable(value: Any) -> Any:
    """``value`` as JSON data, the same in every process; what has no such form is named by its type."""
    if value is None or isinstance(value, bool | int | str):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return value if value - value == 0 else repr(value)  # NaN and infinities are not JSON
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted((jsonable(v) for v in value), key=canonical)
    if isinstance(value, BaseModel):
        return jsonable(value.model_dump())
    if isinstance(value, enum.Enum):
        return jsonable(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return hashlib.blake2b(value, digest_size=16).hexdigest()
    if isinstance(value, UUID | PurePath):
        return str(value)
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def canonical(value: Any) -> str:
    """One text per JSON value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def place_of(step: int, tool: str, config: RunnableConfig) -> str:
    """Where in the run a call of ``tool`` is made; ``step`` is the super-step of the root graph."""
    metadata = config.get("metadata") or {}
    namespace = re.sub(r":[^|]*", "", str(metadata.get("langgraph_checkpoint_ns", "")))
    path = _UUID.sub("", canonical(jsonable(metadata.get("langgraph_path", ()))))
    return canonical([step, metadata.get("langgraph_step"), namespace, path, tool])


class Ordinals:
    """Tells equal calls apart: by count within one execution of a task, and by task."""

    def __init__(self) -> None:
        self._executions: dict[int, tuple[Any, Counter[str]]] = {}
        self._tasks: dict[str, list[str]] = {}

    def next(self, call: str, config: RunnableConfig, *, counted: bool) -> tuple[int, int]:
        """``counted``: whether equal calls of one execution are different ones (no tool call id)."""
        ordinal = 0
        if counted:
            scratchpad = (config.get("configurable") or {}).get(SCRATCHPAD)
            # the scratchpad is kept, so that its id() is not given to another
            _, counts = self._executions.setdefault(id(scratchpad), (scratchpad, Counter()))
            ordinal = counts[call]
            counts[call] += 1
        # Equal calls of two tasks of one super-step are interchangeable: the order of arrival tells them apart.
        task = str((config.get("metadata") or {}).get("langgraph_checkpoint_ns", ""))
        claims = self._tasks.setdefault(f"{call}#{ordinal}", [])
        if task not in claims:
            claims.append(task)
        return ordinal, claims.index(task)


def key_of(run_id: str, particle: str, call: str, ordinal: tuple[int, int]) -> str:
    """The idempotency key, 36 characters."""
    text = canonical([run_id, particle, call, *ordinal])
    return "amc-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
