"""A transcript's text as messages again, for who reads runs as evidence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_TURN = re.compile(r"<\|im_start\|>([^\n]*)\n(.*?)<\|im_end\|>\n?", re.S)
_BEGINNING = 0.25
"""Share of a shortened text that is its beginning."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: who says what."""

    role: str
    text: str


def turns(segments: Sequence[str]) -> tuple[Turn, ...]:
    """The messages in these segments; text of states without messages is one turn of nobody."""
    text = "".join(segments)
    found = tuple(Turn(role, said.strip()) for role, said in _TURN.findall(text))
    return found or ((Turn("", text.strip()),) if text.strip() else ())


def readable(segments: Sequence[str], most: int) -> str:
    """The messages under headings ``[role]``, at most so many characters: beginning and end where it is longer."""
    said = "\n".join(f"[{turn.role}]\n{turn.text}" if turn.role else turn.text for turn in turns(segments))
    if len(said) <= most:
        return said
    first = int(most * _BEGINNING)
    return f"{said[:first]}\n[… {len(said) - most:,} characters are left out …]\n{said[len(said) - (most - first) :]}"
