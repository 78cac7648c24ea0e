"""Parts of stored results: plain JSON as `to_json` of a comparison, an evolution or a value report wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from langgraph_amc.report import words
from langgraph_amc.report.sections import Interval

Plain: TypeAlias = Mapping[str, Any]


def interval(label: str, estimate: Plain, group: str = "") -> Interval:
    """An `Estimate`."""
    return Interval(label, estimate["mean"], estimate["low"], estimate["high"], group)


def signed(estimate: Plain) -> str:
    """A difference with its interval."""
    if estimate["mean"] is None:
        return "unknown"
    return f"{estimate['mean']:+.3f} (95 % interval {estimate['low']:+.3f} to {estimate['high']:+.3f})"


def level(estimate: Plain) -> str:
    """A mean reward."""
    return "unknown" if estimate["mean"] is None else f"{estimate['mean']:.3f}"


def clear(estimate: Plain) -> int:
    """1 where an interval lies above 0, −1 where it lies below, else 0."""
    if estimate["low"] is None:
        return 0
    return int(estimate["low"] > 0) - int(estimate["high"] < 0)


def times(ratio: float) -> str:
    """How many times as much."""
    return f"{words.number(ratio)} times"
