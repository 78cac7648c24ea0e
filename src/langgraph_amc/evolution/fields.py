"""Fields of stored records, checked as they are read: an error names the damaged one, and what it holds."""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from langgraph_amc.evolution.errors import HistoryError


def an_object(data: object, what: str) -> dict[str, Any]:
    """The JSON object that ``what`` must be."""
    if not isinstance(data, dict):
        raise HistoryError(f"{what} is no object, but {reprlib.repr(data)}")
    return data


def nested(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that is an object."""
    return an_object(_there(data, name), f"the field {name!r}")


def number(data: Mapping[str, Any], name: str, least: float = -math.inf) -> float:
    """A field that is a finite number of at least ``least``."""
    fits = is_number(found := _there(data, name)) and found >= least
    return found if fits else _wrong(name, f"a number of at least {least:g}", found)


def number_or_none(data: Mapping[str, Any], name: str) -> float | None:
    """A field that is a finite number, or null."""
    return None if _there(data, name) is None else number(data, name)


def whole(data: Mapping[str, Any], name: str, least: int = 0) -> int:
    """A field that is an integer of at least ``least``."""
    fits = is_whole(found := _there(data, name)) and found >= least
    return found if fits else _wrong(name, f"an integer of at least {least}", found)


def text(data: Mapping[str, Any], name: str) -> str:
    """A field that is text."""
    found = _there(data, name)
    return found if isinstance(found, str) else _wrong(name, "text", found)


def items(data: Mapping[str, Any], name: str, fits: Callable[[Any], bool], what: str) -> list[Any]:
    """A field that is a list of what ``fits``."""
    found = _there(data, name)
    if not isinstance(found, list):
        _wrong(name, f"a list of {what}", found)
    for item in found:
        if not fits(item):
            _wrong(name, f"a list of {what}", item)
    return found


def is_number(value: Any) -> TypeGuard[float]:
    """Whether JSON gave a finite number."""
    if is_whole(value):
        return abs(value) <= sys.float_info.max
    return isinstance(value, float) and math.isfinite(value)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether JSON gave an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def _there(data: Mapping[str, Any], name: str) -> Any:
    if name not in data:
        raise HistoryError(f"the field {name!r} is missing")
    return data[name]


def _wrong(name: str, what: str, found: object) -> Any:
    raise HistoryError(f"the field {name!r} must be {what}, and holds {reprlib.repr(found)}")
