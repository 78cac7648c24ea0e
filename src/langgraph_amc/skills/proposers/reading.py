"""Strict reading of what a model proposed: whole JSON or nothing, and no edit whose evidence is not in the runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_amc.skills.turns import turns
from langgraph_amc.skills.types import OPS, Citation, Edit
from langgraph_amc.trajectories.types import Trajectory

_FENCED = re.compile(r"\A```[\w-]*[ \t]*\n(.*?)\n[ \t]*```\Z", re.S)
_SHORTEST_QUOTE = 3
_TEXTS = ("op", "skill", "section", "text", "description", "reason")


class UnreadableError(Exception):
    """An answer that is not of the form asked for; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The edits of an answer, and of each that was thrown away, why."""

    edits: tuple[Edit, ...]
    dropped: tuple[str, ...]


def read_edits(answer: str, runs: Mapping[str, Trajectory], limit: int) -> Reading:
    """Edits whose evidence holds. Raises UnreadableError for an answer of another form."""
    listed = _object(answer).get("edits")
    if not isinstance(listed, list):
        raise UnreadableError('it has no list "edits"')
    edits, dropped = [], []
    for number, item in enumerate(listed[:limit], start=1):
        try:
            edits.append(_edit(item, runs))
        except UnreadableError as error:
            dropped.append(f"edit {number}: {error}")
    return Reading(tuple(edits), tuple(dropped))


def read_groups(answer: str) -> list[list[int]]:
    """Groups of numbers. Raises UnreadableError for an answer of another form."""
    groups = _object(answer).get("groups")
    if not isinstance(groups, list) or not all(
        isinstance(group, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in group)
        for group in groups
    ):
        raise UnreadableError('it has no list "groups" of lists of numbers')
    return groups


def _object(answer: str) -> dict[str, Any]:
    text = answer.strip()
    fenced = _FENCED.match(text)
    try:
        found = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("it is not one whole JSON object") from error
    if not isinstance(found, dict):
        raise UnreadableError("it is not one whole JSON object")
    return found


def _edit(item: Any, runs: Mapping[str, Trajectory]) -> Edit:
    if not isinstance(item, dict):
        raise UnreadableError("it is no object")
    fields: dict[str, Any] = {name: item.get(name) or "" for name in _TEXTS}
    if wrong := [name for name, value in fields.items() if not isinstance(value, str)]:
        raise UnreadableError(f"{', '.join(wrong)} is no text")
    if fields["op"] not in OPS:
        raise UnreadableError(f"its op is {fields['op']!r}")
    supports = _citations(item.get("supports"), runs)
    if not supports:
        raise UnreadableError("none of the words it quotes stands in the run it names")
    return Edit(**fields, supports=supports, contradicts=_citations(item.get("contradicts"), runs))


def _citations(listed: Any, runs: Mapping[str, Trajectory]) -> tuple[Citation, ...]:
    """Those whose quote really stands in the run."""
    found = []
    for item in listed if isinstance(listed, list) else ():
        run = runs.get(str(item.get("run")).strip()) if isinstance(item, dict) else None
        quote = item.get("quote") if isinstance(item, dict) else None
        if run is None or not isinstance(quote, str) or len(quote.strip()) < _SHORTEST_QUOTE:
            continue
        if _bare(quote) in _bare(_said(run)):
            found.append(Citation(run.task_id or "", run.run_id, run.particle, quote.strip()))
    return tuple(dict.fromkeys(found))


def _said(run: Trajectory) -> str:
    return "\n".join([*(turn.text for turn in turns(run.segments)), run.error or ""])


def _bare(text: str) -> str:
    return " ".join(text.split()).casefold()
