"""Outcomes of effects as JSON, for the outbox: tool messages, commands and plain values, and errors.

What is read back comes from a database: no pickle, LangGraph's serialiser only builds types of its safe list,
and of an error's type only one that the program has loaded already.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.effects.errors import EffectFailedError
from langgraph_amc.runtime.effects.identity import jsonable
from langgraph_amc.runtime.outbox import Outbox

INTERRUPTED = {"interrupted": True}
"""The tool asked a human, or bubbled up otherwise: it is run again, as LangGraph does, in an entry of its own."""

_SERDE = JsonPlusSerializer(allowed_msgpack_modules=None)


class ResultLostError(Exception):
    """The outcome was stored without its value, whose type has no safe form."""


def encode(value: Any) -> dict[str, Any]:
    """``value`` as JSON, made of dicts, lists and text; only its type's name where it cannot be read back as it is."""
    if _is_json(value):
        return {"json": json.dumps(value)}
    if type(value) is tuple:  # which the serialiser makes a list
        items = [encode(item) for item in value]
        lost = next((item for item in items if "lost" in item), None)
        return {"tuple": items} if lost is None else lost
    try:
        kind, data = _SERDE.dumps_typed(value)
        back = _SERDE.loads_typed((kind, data))
        kept = type(back) is type(value) and _SERDE.dumps_typed(back) == (kind, data)
    except Exception:  # serialisers raise what the values' own methods raise
        kept = False
    return {"kind": kind, "data": base64.b64encode(data).decode()} if kept else {"lost": type(value).__qualname__}


def decode(stored: dict[str, Any]) -> Any:
    """The inverse; raises `ResultLostError` where only the type was kept."""
    if "json" in stored:
        return json.loads(stored["json"])
    if "tuple" in stored:
        return tuple(decode(item) for item in stored["tuple"])
    if "lost" in stored:
        raise ResultLostError(stored["lost"])
    return _SERDE.loads_typed((stored["kind"], base64.b64decode(stored["data"])))


def _is_json(value: Any) -> bool:
    """Whether JSON gives back the very same; NaN and other key types do not come back."""
    if type(value) is dict:
        return all(type(k) is str and _is_json(v) for k, v in value.items())
    if type(value) is list:
        return all(_is_json(v) for v in value)
    return value is None or type(value) in (bool, int, str) or (type(value) is float and value - value == 0)


def encode_error(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    parts = {"module": kind.__module__, "type": kind.__qualname__, "text": str(error), "args": jsonable(error.args)}
    return {"error": json.dumps(parts)}


def decode_error(stored: dict[str, Any]) -> Exception:
    """An exception of the same type where that is loaded and takes its arguments, else `EffectFailedError`."""
    parts = json.loads(stored["error"])
    kind: Any = sys.modules.get(parts["module"])
    for name in parts["type"].split("."):
        kind = getattr(kind, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            error = kind(*parts["args"])
            if type(error) is kind and str(error) == parts["text"]:
                return error
        except Exception:  # noqa: S110 - its constructor wants something else: told below
            pass
    return EffectFailedError(parts["type"], parts["text"])


def settle_effect(outbox: Outbox, key: str, result: Any = None, *, error: Exception | None = None) -> None:
    """Tell the outbox what became of an effect with unknown outcome; a resumed run goes on with it.

    ``result`` is what the tool would have returned (text is enough for a tool a model calls); ``error`` says that
    it did not take place, and is raised in the tool's stead.
    """
    if error is not None:
        outbox.failed(key, encode_error(error))
        return
    stored = encode(result)
    if "lost" in stored:
        raise ConfigurationError(f"a result of type {stored['lost']} cannot be stored: give text, numbers or a message")
    outbox.done(key, stored)
