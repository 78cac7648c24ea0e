"""What the Agent Skills format allows, checked all at once: every problem is told, not only the first.

The format: https://agentskills.io/specification. Beyond it a description holds no angle brackets, which would look
like markup in the prompt it is put into.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph_amc.skills.types import Skill

NAME_LENGTH, DESCRIPTION_LENGTH, COMPATIBILITY_LENGTH = 64, 1024, 500
SKILL_FILE = "SKILL.md"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TEXTS = ("license", "compatibility", "allowed-tools")


def problems_of(skill: Skill) -> list[str]:
    """What is wrong with a skill; nothing if it is valid."""
    found = [*_name(skill.name), *_description(skill.description), *_fields(skill.fields), *_files(skill.files)]
    if not isinstance(skill.body, str):
        found.append("its body is text")
    elif re.match(r"---\s*(\n|$)", skill.body):
        found.append("its body begins with a line of ---, which would be read as front matter")
    return found


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


def _name(name: Any) -> list[str]:
    if not isinstance(name, str) or not name:
        return ["it needs a name"]
    found = []
    if len(name) > NAME_LENGTH:
        found.append(f"its name has {len(name)} characters, {NAME_LENGTH} are allowed")
    if not _NAME.fullmatch(name):
        found.append("its name is made of a-z, 0-9 and single hyphens between them")
    return found


def _description(text: Any) -> list[str]:
    if not isinstance(text, str) or not text.strip():
        return ["it needs a description: what it is for and when to use it"]
    found = []
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
