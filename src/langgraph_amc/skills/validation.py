"""What the Agent Skills format allows, checked all at once: every problem is told, not only the first.

The format: https://agentskills.io/specification. Beyond it a description holds no angle brackets, which would look
like markup in the prompt it is put into.
"""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph_amc.skills.types import Skill

NAME_LENGTH, DESCRIPTION_LENGTH, COMPATIBILITY_LENGTH = 64, 1024, 500
BODY_LENGTH = 1_000_000
"""Far above what any prompt holds: a file of data, not instructions."""
SKILL_FILE = "SKILL.md"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TEXTS = ("license", "compatibility", "allowed-tools")
_UNWRITABLE = re.compile("[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")
"""Control characters, and halves of a pair, which UTF-8 cannot write."""
_TAG = re.compile(r"<\s*/?\s*skills\s*/?\s*>", re.IGNORECASE)
"""What a prompt holds the skills between, and where they go: in a body it would end the block, or nest it."""


def problems_of(skill: Skill) -> list[str]:
    """What is wrong with a skill; nothing if it is valid."""
    found = [*_name(skill.name), *_description(skill.description), *_fields(skill.fields), *_files(skill.files)]
    return [*found, *_body(skill.body)]


def problems_in(folder: str | Path) -> list[str]:
    """What is wrong with a library's folder, each problem with the file it is in; nothing if it is valid."""
    from langgraph_amc.skills.library import read_skill, skill_folders
    from langgraph_amc.skills.types import SkillError

    found = []
    try:
        folders = skill_folders(Path(folder))
    except SkillError as error:
        return [str(error)]
    for place in folders:
        try:
            read_skill(place)
        except SkillError as error:
            found.append(str(error))
    return found


def _body(text: Any) -> list[str]:
    if not isinstance(text, str):
        return ["its body is text"]
    found = _characters("body", text)
    if len(text) > BODY_LENGTH:
        found.append(f"its body has {len(text):,} characters, {BODY_LENGTH:,} are allowed")
    if re.match(r"---\s*(\n|$)", text):
        found.append("its body begins with a line of ---, which would be read as front matter")
    if tag := _TAG.search(text):
        found.append(f"its body holds {tag[0]!r}, which marks the skills in a prompt: write it in words")
    return found


def _characters(what: str, text: str) -> list[str]:
    wrong = _UNWRITABLE.search(text)
    return [] if wrong is None else [f"its {what} holds the character {wrong[0]!r}: leave it out"]


def _name(name: Any) -> list[str]:
    if name is not None and not isinstance(name, str):
        return [f"its name is text, not {name!r}: put it in quotes"]
    if not name:
        return ["it needs a name"]
    found = []
    if len(name) > NAME_LENGTH:
        found.append(f"its name has {len(name)} characters, {NAME_LENGTH} are allowed")
    if not _NAME.fullmatch(name):
        found.append("its name is made of a-z, 0-9 and single hyphens between them")
    return found


def _description(text: Any) -> list[str]:
    if text is not None and not isinstance(text, str):
        return [f"its description is text, not {text!r:.60}: put it in quotes"]
    if not text or not text.strip():
        return ["it needs a description: what it is for and when to use it"]
    found = _characters("description", text)
    if len(text) > DESCRIPTION_LENGTH:
        found.append(f"its description has {len(text)} characters, {DESCRIPTION_LENGTH} are allowed")
    if "<" in text or ">" in text:
        found.append("its description holds an angle bracket: write it in words")
    return found


def _fields(fields: Any) -> list[str]:
    found = [f"{name} belongs to the skill itself" for name in ("name", "description") if name in fields]
    found += [f"{name} is text" for name in _TEXTS if name in fields and not isinstance(fields[name], str)]
    compatibility = fields.get("compatibility")
    if isinstance(compatibility, str) and not 1 <= len(compatibility) <= COMPATIBILITY_LENGTH:
        found.append(f"compatibility has 1 to {COMPATIBILITY_LENGTH} characters")
    metadata = fields.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(key, str) for key in metadata):
        found.append("metadata is a mapping of names to values")
    try:
        json.dumps(fields, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):
        found.append("its front matter holds a name that is no text, or something that holds itself")
    return found


def _files(files: Any) -> list[str]:
    found = []
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name or path.parts == (SKILL_FILE,):
            found.append(f"{name!r} is no path of a further file inside the skill's folder")
        if not isinstance(content, bytes):
            found.append(f"the content of {name!r} is bytes")
    return found
