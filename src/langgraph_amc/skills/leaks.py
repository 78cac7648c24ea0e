"""Copied answers: text of an edit that also stands in the reference of a held-out task.

A proposer sees training runs only, but references of different tasks may overlap, and a model may know a public set by
heart. Runs of `LENGTH` words are compared, without case and punctuation; a reference that is shorter counts as a whole
from `SHORTEST` words on, as single words stand in any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from langgraph_amc.skills.edits import text_of
from langgraph_amc.skills.types import Edit

LENGTH, SHORTEST = 8, 3
_WORD = re.compile(r"\w+")


def leak(edits: Iterable[Edit], references: Iterable[Any]) -> str:
    """Why these edits must not be tried, if they repeat the reference of a task; else the empty text."""
    found = copied(text_of(edits), references)
    return "" if found is None else f"it repeats the reference of a task: “{found}”"


def copied(text: str, references: Iterable[Any]) -> str | None:
    """The first run of words that the text shares with a reference, ``None`` if there is none.

    Parameters
    ----------
    references: of tasks; all text in them counts, however they are nested.
    """
    words = _words(text)
    for reference in references:
        for said in _texts(reference):
            own = _words(said)
            n = min(LENGTH, len(own))
            if n < SHORTEST:
                continue
            known = {tuple(own[i : i + n]) for i in range(len(own) - n + 1)}
            for i in range(len(words) - n + 1):
                if tuple(words[i : i + n]) in known:
                    return " ".join(words[i : i + n])
    return None


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, Iterable) and not isinstance(value, bytes):
        for inner in value:
            yield from _texts(inner)
