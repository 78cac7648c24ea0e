"""What changed between two libraries, as Markdown that a reviewer can read: the diff and the evidence of each edit."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from langgraph_amc.skills.edits import describe
from langgraph_amc.skills.library import SkillLibrary, render
from langgraph_amc.skills.types import Citation, Edit
from langgraph_amc.skills.validation import SKILL_FILE

_SHOWN = 5
"""Citations that are listed of an edit."""


def unified(old: SkillLibrary, new: SkillLibrary) -> str:
    """A unified diff of all files that are text, as git shows it; empty if nothing changed."""
    before, after = _texts(old), _texts(new)
    parts: list[str] = []
    for path in sorted({*before, *after}):
        a, b = before.get(path), after.get(path)
        if a == b:
            continue
        lines = difflib.unified_diff(
            (a or "").splitlines(),
            (b or "").splitlines(),
            "/dev/null" if a is None else f"a/{path}",
            "/dev/null" if b is None else f"b/{path}",
            lineterm="",
        )
        parts += lines
    return "\n".join(parts)


def evidence_lines(edit: Edit) -> list[str]:
    """An edit as a Markdown list item, with its reason and the runs it rests on."""
    for_it, against = edit.support, edit.opposition
    lines = [f"- **{describe(edit)}**: {for_it} task{'s' * (for_it != 1)} for it, {against} against it"]
    if edit.reason:
        lines.append(f"  - why: {' '.join(edit.reason.split())}")
    lines += _cited("for", edit.supports) + _cited("against", edit.contradicts)
    return lines


def markdown(old: SkillLibrary, new: SkillLibrary, edits: Iterable[Edit] = ()) -> str:
    """The edits with their evidence, and the diff."""
    listed = [line for edit in edits for line in evidence_lines(edit)]
    changed = unified(old, new)
    fence = "`" * max(3, _longest_run(changed) + 1)
    shown = f"{fence}diff\n{changed}\n{fence}" if changed else "Nothing changed."
    return "\n".join(["# Changed skills", "", *listed, *([""] if listed else []), shown, ""])


def _cited(what: str, citations: Sequence[Citation]) -> list[str]:
    lines = []
    for c in citations[:_SHOWN]:
        quote = f": “{' '.join(c.quote.split())}”" if c.quote else ""
        lines.append(f"  - {what}: task {c.task}, run {c.run}, {c.particle}{quote}")
    if len(citations) > _SHOWN:
        lines.append(f"  - {what}: {len(citations) - _SHOWN} more")
    return lines


def _texts(library: SkillLibrary) -> dict[str, str]:
    found = {}
    for skill in library:
        found[f"{skill.name}/{SKILL_FILE}"] = render(skill)
        for name, content in skill.files.items():
            found[f"{skill.name}/{name}"] = content.decode("utf-8", "replace")
    return found


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
