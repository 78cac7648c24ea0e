"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from langgraph_amc.trajectories.types import Usage


def share(part: float) -> str:
    """A part of a whole, in per cent."""
    percent = 100 * part
    if 0 < percent < 0.1:
        return "under 0.1 %"
    return f"{percent:.1f} %" if percent < 10 and percent != round(percent) else f"{percent:.0f} %"


def number(value: float) -> str:
    """Three digits, or a whole number as it is."""
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e6 else f"{value:.3g}"


def money(dollars: float) -> str:
    """US dollars; small amounts with their first two digits."""
    if dollars >= 1 or dollars == 0:
        return f"${dollars:,.2f}"
    return f"${dollars:.4f}" if dollars >= 0.001 else f"${dollars:.2g}"


def span(seconds: float) -> str:
    """A length of time."""
    if seconds < 10:
        return f"{seconds:.1f} seconds"
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"


def many(count: int, one: str, more: str = "") -> str:
    """A count of things, with the noun that goes with it."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def used(usage: Usage) -> str:
    """What was used, with its price where that is known."""
    spent = many(usage.tokens, "token")
    if usage.cost:
        spent += f" ({money(usage.cost)})"
    return spent


def listed(names: Sequence[str]) -> str:
    """Names in a sentence."""
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " and " + names[-1]
