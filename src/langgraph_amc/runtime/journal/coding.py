"""Values as the journal stores them: through the app's own serialiser, never through pickle."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from langgraph_amc.runtime.journal.errors import JournalError, UnserialisableStateError

Typed = tuple[str, bytes]
"""What a serialiser makes of a value: the name of the form, and the bytes."""

_plain = JsonPlusSerializer(allowed_msgpack_modules=None)


def dump(serde: SerializerProtocol, value: Any, where: str) -> Typed:
    """Serialise ``value``; ``where`` names it in the error."""
    try:
        kind, data = serde.dumps_typed(value)
    except Exception as error:  # serialisers raise whatever they like
        path, part = _culprit(serde, value)
        raise UnserialisableStateError(where, path, part, str(error)) from error
    if kind.startswith("pickle"):
        path, part = _culprit(serde, value)
        raise UnserialisableStateError(where, path, part, "the serialiser would pickle it")
    return kind, data


def dump_parts(serde: SerializerProtocol, value: Any, parts: Callable[[], Iterable[tuple[str, Any]]]) -> Typed:
    """`dump` for a value made of named parts: the error names the part."""
    try:
        kind, data = serde.dumps_typed(value)
    except Exception:
        kind, data = "", b""
    if not kind or kind.startswith("pickle"):
        for name, part in parts():
            dump(serde, part, name)
        return dump(serde, value, "the state of a particle")
    return kind, data


def pack(value: Any) -> bytes:
    """Bytes of a nest of plain lists, mappings, strings, numbers and bytes."""
    return _plain.dumps_typed(value)[1]


def unpack(data: bytes) -> Any:
    return _plain.loads_typed(("msgpack", data))


def to_json(value: Any, what: str) -> str:
    """JSON in which numbers may be infinite or NaN, and may be numpy's."""
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError) as error:
        raise JournalError(f"{what} cannot be written as JSON: {error}") from error


def _number(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_encoder = json.JSONEncoder(default=_number, separators=(",", ":"))


def _culprit(serde: SerializerProtocol, value: Any, path: str = "") -> tuple[str, Any]:
    """The smallest part of ``value`` that cannot be serialised, and where it is."""
    for name, part in _parts(value):
        if not _takes(serde, part):
            return _culprit(serde, part, path + name)
    return path, value


def _takes(serde: SerializerProtocol, value: Any) -> bool:
    try:
        return not serde.dumps_typed(value)[0].startswith("pickle")
    except Exception:
        return False


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, BaseModel):
        yield from ((f".{name}", part) for name, part in value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value))
