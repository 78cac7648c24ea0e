"""A skill's body as sections: the text before the first heading, and one part per heading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
LEVEL = 2
"""Of a heading that is added."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the text up to the next one of any level.

    Attributes
    ----------
    level: of the heading, 1 to 6; 0 is the text before all headings.
    title: the heading's words. text: what stands below it. source: both as they stand in the file, line by line.
    """

    level: int
    title: str
    text: str
    source: str


def split(body: str) -> tuple[Section, ...]:
    """The sections of a body; headings inside fenced code are code."""
    found: list[tuple[int, str, list[str]]] = [(0, "", [])]
    for line, code, _ in _lines(body):
        heading = None if code else _HEADING.fullmatch(line)
        if heading is not None and heading[2]:
            found.append((len(heading[1]), heading[2], [line]))
        else:
            found[-1][2].append(line)
    sections = [
        Section(level, title, "\n".join(lines[bool(level) :]).strip("\n"), "\n".join(lines))
        for level, title, lines in found
    ]
    return tuple(section for section in sections if section.level or section.text)


def leaves_code_open(text: str) -> bool:
    """Whether a code block begins in the text that does not end in it."""
    return bool(text) and [after for _, _, after in _lines(text)][-1]


def _lines(text: str) -> Iterator[tuple[str, bool, bool]]:
    """Each line, whether it belongs to a fenced code block, fences too, and whether one is open after it."""
    fence = ""
    for line in text.split("\n"):
        opened = _FENCE.match(line)
        before = fence
        if fence:
            closes = opened is not None and opened[1].startswith(fence) and not line.strip(" `~")
            fence = "" if closes else fence
        elif opened is not None:
            fence = opened[1]
        yield line, bool(before or opened), bool(fence)


def join(sections: Iterable[Section]) -> str:
    """The body made of these sections; those that were not changed stand in it as before, to the last blank."""
    return "\n".join(section.source for section in sections).strip("\n")


def with_text(section: Section, text: str) -> Section:
    """The section with its heading as it stands and another text."""
    heading = section.source.split("\n", 1)[0]
    return replace(section, text=text, source=f"{heading}\n\n{text}\n" if section.level else f"{text}\n")


def titled(title: str, text: str) -> Section:
    """A new section; without a title, a text for the beginning."""
    plain = " ".join(title.split())
    empty = Section(LEVEL if plain else 0, plain, "", f"{'#' * LEVEL} {plain}")
    return with_text(empty, text)


def before_another(section: Section) -> Section:
    """The section with an empty line at its end."""
    return replace(section, source=section.source.rstrip("\n") + "\n")


def same_title(one: str, other: str) -> bool:
    """Whether two headings are the same but for case and white space."""
    return " ".join(one.split()).casefold() == " ".join(other.split()).casefold()
