"""JSON as the store and the exchange files write it: strict, canonical, and exact to read back."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from langgraph_amc.errors import AMCError


class NotJSONError(AMCError, TypeError):
    """A value that JSON cannot hold."""


def dumps(value: Any, what: str, *, readable: bool = False) -> str:
    """``value`` as one line of canonical JSON; ``what`` names it in the error.

    ASCII only, so that every database holds it, or ``readable`` where UTF-8 can.

    LangChain messages and other pydantic models are written as the dicts that LangChain reads back, and
    dataclasses as dicts; NaN, infinities and other objects are refused with `NotJSONError`.
    """
    try:
        line = json.dumps(
            value,
            default=_plain,
            allow_nan=False,
            ensure_ascii=not readable,
            sort_keys=True,
            separators=(",", ":"),
        )
        line.encode()
        return line
    except UnicodeEncodeError:  # a lone surrogate in somebody's text
        return dumps(value, what)
    except (TypeError, ValueError, RecursionError) as exc:
        raise NotJSONError(f"{what} cannot be stored as JSON: {exc}") from exc


def _plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is not a JSON value")
