"""Making edits: a new library from an old one, or an error where an edit does not fit; nothing is skipped silently."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.sections import (
    Section,
    before_another,
    join,
    leaves_code_open,
    same_title,
    split,
    titled,
    with_text,
)
from langgraph_amc.skills.types import Edit, Skill, SkillError

SIMILAR = 0.8
"""Share of three-word runs that two edits' texts have in common from which they are the same in other words."""


def apply(library: SkillLibrary, edits: Iterable[Edit]) -> SkillLibrary:
    """The library after these edits, one after another.

    Raises SkillError where an edit's skill or section is missing or already there, it changes nothing, or the result
    is not valid.
    """
    for edit in edits:
        changed = _apply(library, edit)
        if changed == library:
            raise SkillError(f"the edit changes nothing ({describe(edit)})")
        library = changed
    return library


def fitted(library: SkillLibrary, edit: Edit) -> Edit:
    """The edit as it has to be made to this library, if that has changed since it was proposed.

    A skill that is to be created with one section, and is there by now, gets that section; one that is to get a section
    and is not there is created, if the edit describes it. Raises SkillError where the edit cannot be made.
    """
    if edit.op == "create skill" and edit.section.strip() and edit.skill in library:
        edit = replace(edit, op="add section")
    elif edit.op == "add section" and edit.description.strip() and edit.skill not in library:
        edit = replace(edit, op="create skill")
    apply(library, [edit])
    return edit


def fits(library: SkillLibrary, edit: Edit) -> bool:
    """Whether the edit, or its like of `fitted`, can be made."""
    try:
        fitted(library, edit)
    except SkillError:
        return False
    return True


def describe(edit: Edit) -> str:
    """An edit in a few words."""
    where = f" {edit.section!r} of" if "section" in edit.op else ""
    return f"{edit.op}{where} {edit.skill}"


def text_of(edits: Iterable[Edit]) -> str:
    """All text that edits would write: names, titles, texts and descriptions."""
    return "\n".join(part for edit in edits for part in (edit.skill, edit.section, edit.text, edit.description) if part)


def alike(one: Edit, other: Edit) -> bool:
    """Whether two edits are the same, or all but the same in other words."""
    if one.key == other.key:
        return True
    if (one.op.startswith("delete"), one.skill) != (other.op.startswith("delete"), other.skill):
        return False
    if one.op.startswith("delete"):
        return one.op == other.op and same_title(one.section, other.section)
    a, b = _shingles(one.text), _shingles(other.text)
    return bool(a | b) and len(a & b) >= SIMILAR * len(a | b)


def _apply(library: SkillLibrary, edit: Edit) -> SkillLibrary:
    if edit.op == "create skill":
        if edit.skill in library:
            raise SkillError(f"there is already a skill {edit.skill!r}: add a section to it")
        _check_code(edit)
        sections = _added([], edit) if edit.section.strip() else list(split(edit.text.strip("\n")))
        return library.put(Skill(edit.skill, edit.description, join(sections)))
    if edit.op == "delete skill":
        return library.without(edit.skill)
    skill = library.get(edit.skill)
    sections = list(split(skill.body))
    at = [i for i, section in enumerate(sections) if same_title(section.title, edit.section)]
    if len(at) > 1:
        raise SkillError(f"{edit.skill} has {len(at)} sections {edit.section!r}: give them different headings")
    if edit.op == "add section":
        if at:
            raise SkillError(f"{edit.skill} already has a section {edit.section!r}: replace it")
        sections = _added(sections, edit)
    elif not at:
        titles = ", ".join(repr(section.title) for section in sections) or "none"
        raise SkillError(f"{edit.skill} has no section {edit.section!r}; it has {titles}")
    elif edit.op == "replace section":
        sections[at[0]] = with_text(sections[at[0]], _text(edit))
    else:
        del sections[at[0]]
    return library.put(replace(skill, body=join(sections)))


def _added(sections: list[Section], edit: Edit) -> list[Section]:
    new = titled(edit.section, _text(edit))
    if not new.level:
        return [new, *sections]
    return [*sections[:-1], *(before_another(section) for section in sections[-1:]), new]


def _text(edit: Edit) -> str:
    """The text of a section; headings in it would make further sections, and the next edit would not find them."""
    text = edit.text.strip("\n")
    if not text.strip():
        raise SkillError(f"the edit has no text ({describe(edit)}): delete the section instead")
    if any(section.level for section in split(text)):
        raise SkillError(f"the text of a section holds no headings ({describe(edit)}): add a section for each")
    _check_code(edit)
    return text


def _check_code(edit: Edit) -> None:
    """What follows an open code block would be code: other sections, and other skills in the prompt."""
    if leaves_code_open(edit.text):
        raise SkillError(f"the text opens a code block and does not close it ({describe(edit)})")


def _shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return {tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2))} if words else set()
