"""The number in a judge's answer, read strictly: an answer that says anything but one number has none.

A judge's score becomes a particle's weight, so a misread answer is worse than none. An answer holds a score if it is

- a JSON object whose ``"score"`` is a number, as the whole answer or its last line, in a code fence or not;
- or a last line ``Score: 7``, where ``7/10`` and ``7 out of 10`` count if the scale ends at 10, and ``85%`` if it
  goes from 0 to 1 or to 100;
- or nothing but the number itself, written in the same way.

The number is a plain ASCII decimal on the scale, its ends included. Whatever else the answer calls a score has to be
the same number. Everything else is *missing*: never 0, never clipped to the scale.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_amc.errors import ConfigurationError

_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_AMOUNT = rf"(?P<number>{_NUMBER})(?:\s*(?P<percent>%)|(?:\s*/\s*|\s+out\s+of\s+)(?P<top>{_NUMBER}))?"
_MARK = r"(?:\*\*|__|`)?"
_BARE = re.compile(_AMOUNT, re.ASCII)
_LINE = re.compile(
    rf"[#>\s]*{_MARK}(?:(?:final|overall)\s+)?score\s*{_MARK}\s*[:=]\s*{_MARK}\s*{_AMOUNT}{_MARK}", re.ASCII | re.I
)
_STATED = re.compile(
    r"score[\"'*_`\s]*(?:(?:is|of|was|at|[:=])[\"'*_`\s]*)+(?P<number>[+\-−–]?[\d.,]*\d(?:e[+-]?\d+)?)", re.I
)
_LAST_FENCE = re.compile(r"(?:\A|\n)```[\w-]*[ \t]*\n(?P<inside>(?:(?!```).)*)\n[ \t]*```\Z", re.S)
_SMALLEST_PERCENT = 1.0
"""Below it, as in ``0.85%``, a percent sign may as well be a slip."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The numbers a judge may answer with, both ends included."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigurationError(f"a scale is a pair (low, high) of finite numbers, got ({self.low}, {self.high})")

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer says: its ``score`` on the scale, else what the ``problem`` with it is."""

    score: float | None
    problem: str | None = None


def read_text(answer: str, scale: Scale) -> Reading:
    """The score that an answer in words states."""
    text = answer.strip()
    if not text:
        return Reading(None, "it is empty")
    fence = _LAST_FENCE.search(text)
    last = (text.rpartition("\n")[2] if fence is None else fence["inside"]).strip()
    fields = _json_object(text) or _json_object(last)
    if fields is not None:
        found = read_fields(fields, scale)
        literal = None if found.score is None else fields["score"]
    else:
        match = _LINE.fullmatch(last) or _BARE.fullmatch(text if fence is None or fence.start() else last)
        if match is None:
            return Reading(None, "it does not end with one score in the form asked for")
        found, literal = _read_amount(match, scale), float(match["number"])
    if literal is not None and _contradicts(text, float(literal)):
        return Reading(None, "it states more than one score")
    return found


def read_fields(fields: Mapping[str, Any], scale: Scale) -> Reading:
    """The score in a JSON object, for example in the arguments of a tool call."""
    score = fields.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float):
        return Reading(None, 'its "score" is no number' if "score" in fields else 'it has no "score"')
    return _on_scale(score, scale)


def _on_scale(score: float, scale: Scale) -> Reading:
    if not scale.low <= score <= scale.high:  # NaN is nowhere
        return Reading(None, f"its score does not lie on the scale from {scale}")
    return Reading(float(score) + 0.0)  # no −0


def _read_amount(match: re.Match[str], scale: Scale) -> Reading:
    """The number on the scale that ``7``, ``7/10`` or ``85%`` stands for."""
    number = float(match["number"])
    if match["top"] is not None and float(match["top"]) != scale.high:
        return Reading(None, f"its score is out of another number than the scale's {scale.high:g}")
    if match["percent"] is None:
        return _on_scale(number, scale)
    if scale.low != 0 or scale.high not in (1, 100) or 0 < abs(number) < _SMALLEST_PERCENT:
        return Reading(None, f"it gives a percentage, on a scale from {scale}")
    return _on_scale(number / 100 if scale.high == 1 else number, scale)


def _contradicts(text: str, score: float) -> bool:
    """Whether the answer calls another number a score as well."""
    stated = [match["number"] for match in _STATED.finditer(text)]
    return any(not re.fullmatch(_NUMBER, number) or float(number) != score for number in stated)


def _json_object(text: str) -> dict[str, Any] | None:
    """A JSON object, if the text is one: complete, without double keys, NaN or infinity."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key comes twice")
    return fields


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
