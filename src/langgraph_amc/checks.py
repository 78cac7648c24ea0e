"""Checks of what a user gave: numbers, texts and addresses, refused with an error that says what to give."""

from __future__ import annotations

import math
import numbers
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from langgraph_amc.errors import ConfigurationError

T = TypeVar("T")


def is_number(value: object) -> bool:
    """Whether this is a finite number that a float can hold; a truth value is none."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def is_whole(value: object, least: int = 0) -> bool:
    """Whether this is a whole number of at least so much; a truth value is none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least


def check_whole(name: str, value: object, least: int = 0) -> None:
    """Raises ConfigurationError for anything but a whole number of at least so much."""
    if not is_whole(value, least):
        raise ConfigurationError(f"{name} is a whole number of at least {least}, got {value!r}")


def check_text(name: str, value: object) -> None:
    """Raises ConfigurationError for anything but text or None."""
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"{name} is text, or None for none, got {value!r}")


def check_path(name: str, value: object) -> Path:
    """A path; raises ConfigurationError for anything but one, or its text."""
    if not isinstance(value, str | os.PathLike) or not str(value).strip() or "\0" in str(value):
        raise ConfigurationError(f"{name} is a path, got {value!r}")
    return Path(value)


def check_items(name: str, value: object, kind: type[T]) -> list[T]:
    """The items of a collection; raises ConfigurationError where it is none, or holds something else."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise ConfigurationError(f"{name} is a list of {kind.__name__} objects, got {type(value).__name__}")
    items: list[Any] = list(value)
    for item in items:
        if not isinstance(item, kind):
            raise ConfigurationError(f"{name} is a list of {kind.__name__} objects, one is {type(item).__name__}")
    return items


def without_password(address: str) -> str:
    """An address without the user and password in it, to be shown, logged or raised."""
    return re.sub(r"(?<=://)[^/?#\s]*@", "", address)
