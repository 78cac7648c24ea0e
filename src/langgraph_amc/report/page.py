"""One HTML file with everything in it: no network, no markup from what agents, tools or users have written.

The data sits in the page as JSON in which ``<``, ``>`` and ``&`` are escaped, so that no text can end its element; the
page's script puts it on the screen as text only. The content security policy names the page's own script and style by
their hashes and allows nothing else, so that even markup that got in could neither run nor load anything.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from html import escape
from importlib.resources import files

from langgraph_amc.report.sections import Fact, Genealogy, Report, Section, State

SCRIPTS = ("dom.js", "transcript.js", "tree.js", "charts.js", "main.js")
TEXT = 1_200_000
"""Characters of transcripts that a page holds. What is longer is cut, the longest first; the data file has all."""
LEAST = 160
"""Characters of a text that are kept at least."""


def to_html(report: Report) -> str:
    """The page."""
    shown = replace(report, sections=tuple(map(_shortened, report.sections)))
    style, script = _style(), _script()
    return _filled(
        {
            "policy": _policy(style, script),
            "title": _text(report.title),
            "style": style,
            "about": _text(report.about),
            "headline": _text(report.title),
            "answer": _answer(report),
            "facts": _facts(report.facts),
            "data": embedded(shown),
            "script": script,
        }
    )


def embedded(report: Report) -> str:
    """The data as JSON that can stand inside a script element."""
    data = report.to_json()
    # these stand in the page already
    del data["answer"], data["warnings"], data["facts"]
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # a lone surrogate becomes an escape of JSON's own
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _text(text: str) -> str:
    """Text that may be anything, as HTML that is UTF-8."""
    return escape(text).encode("utf-8", "replace").decode()


def _answer(report: Report) -> str:
    styles = {True: ' class="strong"', False: ""}
    facts = "".join(
        f"<dt>{_text(fact.label)}</dt>\n<dd{styles[fact.strong]}>{_text(fact.text)}</dd>\n" for fact in report.answer
    )
    warnings = "".join(f'<p class="warning">{_text(text)}</p>\n' for text in report.warnings)
    return f'<div class="answer"><dl>\n{facts}</dl></div>\n{warnings}'


def _facts(facts: tuple[Fact, ...]) -> str:
    told = "".join(f"<div><dt>{_text(f.label)}</dt><dd>{_text(f.text)}</dd></div>" for f in facts)
    return f"<dl>{told}</dl>"


def _filled(parts: Mapping[str, str]) -> str:
    """The template with its places filled, in one pass: what is put in is not looked at again."""
    template = files(__package__).joinpath("page/page.html").read_text(encoding="utf-8")
    pieces = re.split(r"<!--(\w+)-->", template)
    return "".join(parts[piece] if k % 2 else piece for k, piece in enumerate(pieces))


@cache
def _style() -> str:
    return files(__package__).joinpath("page/style.css").read_text(encoding="utf-8")


@cache
def _script() -> str:
    sources = [files(__package__).joinpath("page", name).read_text(encoding="utf-8") for name in SCRIPTS]
    return '(() => {\n"use strict";\n' + "\n".join(sources) + "})();\n"


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _shortened(section: Section) -> Section:
    """A tree whose texts fit."""
    if not isinstance(section, Genealogy):
        return section
    limit = longest([len(state.text) for state in section.states], TEXT)
    return replace(section, states=tuple(_cut(state, limit) for state in section.states))


def longest(lengths: list[int], room: int) -> int:
    """The length to which texts have to be cut so that together they fit, the longest first."""
    left, rest = room, len(lengths)
    for length in sorted(lengths):
        if length * rest > left:
            return max(LEAST, left // rest)
        left, rest = left - length, rest - 1
    return max(lengths, default=0)


def _cut(state: State, limit: int) -> State:
    if len(state.text) <= limit:
        return state
    # both ends: an answer's first words, and what came of it
    head, tail = state.text[: 2 * limit // 3], state.text[-(limit // 3) :]
    left_out = len(state.text) - len(head) - len(tail)
    return replace(state, text=f"{head}\n… {left_out:,} characters are left out here …\n{tail}")
