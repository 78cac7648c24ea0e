"""A library: a folder of Agent Skills, ``<name>/SKILL.md``, read whole, immutable in memory, written so that git sees
only what changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import yaml

from langgraph_amc.skills.types import Skill, SkillError
from langgraph_amc.skills.validation import SKILL_FILE

BEGIN, END = "<skills>", "</skills>"
"""Around what a library puts into a prompt."""
LARGEST = 4 << 20
"""Bytes of a skill's file."""
_LONGEST_HEAD = 1 << 16
_FENCE = "---"
_UNREADABLE = (yaml.YAMLError, RecursionError, TypeError, LookupError, AttributeError, ArithmeticError, ValueError)
"""What PyYAML raises for text it cannot read, ``2024-13-45`` and ``!!bool x`` among it."""
_FULL = "Skills: instructions that hold for all of your work. Follow those that fit the situation."
_INDEX = (
    "Skills you can read: when the situation fits a description, read that skill with the tool {tool} before you act, "
    "and follow it."
)


class _Plain(yaml.SafeLoader):
    """YAML without aliases: a few lines of them stand for gigabytes, or for something that holds itself."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias, *name: write out what it stands for")
        return super().compose_node(parent, index)


@dataclass(frozen=True, slots=True)
class SkillLibrary:
    """Skills by name, in alphabetical order.

    Raises SkillError where two have the same name.
    """

    skills: tuple[Skill, ...] = ()

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.skills, key=lambda skill: skill.name))
        object.__setattr__(self, "skills", ordered)
        for one, other in pairwise(ordered):
            if one.name == other.name:
                raise SkillError(f"two skills are called {one.name!r}: rename one")

    def __iter__(self) -> Iterator[Skill]:
        return iter(self.skills)

    def __len__(self) -> int:
        return len(self.skills)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in order."""
        return tuple(skill.name for skill in self.skills)

    def get(self, name: str) -> Skill:
        """A skill by its name; SkillError if there is none."""
        for skill in self.skills:
            if skill.name == name:
                return skill
        raise SkillError(f"there is no skill {name!r}; there are: {', '.join(self.names) or 'none'}")

    def put(self, skill: Skill) -> SkillLibrary:
        """The library with this skill, instead of the one of the same name if there is one."""
        return SkillLibrary((*(s for s in self.skills if s.name != skill.name), skill))

    def without(self, name: str) -> SkillLibrary:
        """The library without a skill; SkillError if there is none."""
        gone = self.get(name)
        return SkillLibrary(tuple(skill for skill in self.skills if skill is not gone))

    @property
    def digest(self) -> str:
        """Twenty-four hex digits of everything in it."""
        said = [
            [s.name, s.description, s.body, _plain(s), sorted((n, c.hex()) for n, c in s.files.items())]
            for s in self.skills
        ]
        text = json.dumps(said, ensure_ascii=False, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()

    def text(self) -> str:
        """All skills in full, as they are put into a prompt; empty for an empty library."""
        return _block(_FULL, (f"## {skill.name}\n{skill.description}\n\n{skill.body.strip()}" for skill in self.skills))

    def index(self, tool: str = "read_skill") -> str:
        """Names and descriptions alone, for progressive disclosure; ``tool`` is what reads a skill."""
        return _block(_INDEX.format(tool=tool), (f"- {skill.name}: {skill.description}" for skill in self.skills), "\n")

    @classmethod
    def read(cls, folder: str | Path) -> SkillLibrary:
        """Read a folder of skills; one that is missing or empty is an empty library.

        Raises SkillError that names every invalid skill and what is wrong with it.
        """
        skills, problems = [], []
        for place in skill_folders(Path(folder)):
            try:
                skills.append(read_skill(place))
            except SkillError as error:
                problems.append(str(error))
        if problems:
            raise SkillError("; ".join(problems))
        return cls(tuple(skills))

    def write(self, folder: str | Path) -> Path:
        """Make a folder hold exactly this library; files that stay the same are not touched.

        Skills that are no longer in it are removed; whatever is no skill stays. Each file is replaced as a whole.
        Raises SkillError where it cannot be written.
        """
        root = Path(folder)
        try:
            root.mkdir(parents=True, exist_ok=True)
            for place in skill_folders(root):
                if place.name not in self.names and (place / SKILL_FILE).is_file():
                    shutil.rmtree(place)
            for skill in self.skills:
                _write_skill(skill, root / skill.name)
        except OSError as error:
            raise SkillError(f"the library cannot be written to {root} ({error.strerror or error})") from error
        return root


def skill_folders(root: Path) -> list[Path]:
    """The folders in ``root`` that hold a skill, or something in its place, by name.

    Raises SkillError where ``root`` is no folder.
    """
    if not root.exists():
        return []
    if not root.is_dir():
        raise SkillError(f"{root} is a file: give the folder that holds the skills' folders")
    if (root / SKILL_FILE).is_file():
        raise SkillError(f"{root} is one skill: give the folder around it, {root.parent}")
    return sorted(place for place in root.iterdir() if place.is_dir() and _own_file(place) is not None)


def _own_file(folder: Path) -> Path | None:
    """What is called like a skill's file there, in whatever case, be it a file or not."""
    called = [place for place in folder.iterdir() if place.name.casefold() == SKILL_FILE.casefold()]
    return max(called, key=lambda place: place.name == SKILL_FILE, default=None)


def read_skill(folder: Path) -> Skill:
    """Read one skill's folder. Raises SkillError with the file and what is wrong."""
    path = folder / SKILL_FILE
    found = _own_file(folder)
    if found is not None and found.name != SKILL_FILE:
        raise SkillError(f"{found} is not called {SKILL_FILE}: rename it")
    _check_links(folder)
    if not path.is_file():
        raise SkillError(f"{path} is no file: write the skill's front matter and Markdown there")
    if (size := path.stat().st_size) > LARGEST:
        raise SkillError(f"{path} has {size:,} bytes, {LARGEST:,} are allowed: put data into files beside it")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SkillError(f"{path} cannot be read as UTF-8 text ({error})") from error
    skill = parse(text, path)
    if skill.name != folder.name:
        raise SkillError(f"{path}: its name is {skill.name!r} and its folder is {folder.name!r}: make them equal")
    files = {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != path
    }
    return replace(skill, files=files)


def _check_links(folder: Path) -> None:
    """Refuse links by which a skill could show an agent, and copy, what lies elsewhere; all is read from here only."""
    here = folder.resolve()
    for place in sorted(folder.rglob("*")):
        if not place.is_symlink():
            continue
        try:
            inside = place.resolve(strict=True).is_relative_to(here) and not place.is_dir()
        except (OSError, RuntimeError):  # it leads nowhere, or in a circle
            inside = False
        if not inside:
            raise SkillError(f"{place} is a link that leads to no file of the skill: put the file itself there")


def parse(text: str, source: object = SKILL_FILE) -> Skill:
    """A skill from the text of its file, without further files. Raises SkillError that names ``source``."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    end = next((i for i, line in enumerate(lines) if i and line.rstrip() == _FENCE), None)
    if lines[0].rstrip() != _FENCE or end is None:
        raise SkillError(f"{source}: it has no front matter: begin it with a line ---, name, description, a line ---")
    head = "\n".join(lines[1:end])
    if len(head) > _LONGEST_HEAD:
        raise SkillError(f"{source}: its front matter has {len(head):,} characters, {_LONGEST_HEAD:,} are allowed")
    try:
        fields = yaml.load(head, _Plain)  # noqa: S506  # a SafeLoader
    except _UNREADABLE as error:
        raise SkillError(
            f"{source}: its front matter is no YAML of use ({' '.join(str(error).split())[:500]})"
        ) from error
    if not isinstance(fields, dict):
        raise SkillError(f"{source}: its front matter is a mapping with name and description")
    name, description = fields.pop("name", None), fields.pop("description", None)
    try:
        return Skill(name, description, "\n".join(lines[end + 1 :]).strip("\n"), fields)
    except SkillError as error:
        raise SkillError(f"{source}: {error}") from error


def render(skill: Skill) -> str:
    """The text of a skill's file, which `parse` reads back as the same skill."""
    head = yaml.safe_dump(
        {"name": skill.name, "description": skill.description, **_plain(skill)},
        sort_keys=False,
        allow_unicode=True,
        width=1 << 16,
    )
    body = skill.body.strip("\n")
    return f"{_FENCE}\n{head}{_FENCE}\n" + (f"\n{body}\n" if body else "")


def _plain(skill: Skill) -> dict[str, object]:
    return dict(skill.fields)


def _block(title: str, parts: Iterable[str], between: str = "\n\n") -> str:
    said = between.join(parts)
    return f"{BEGIN}\n{title}\n\n{said}\n{END}" if said else ""


def _write_skill(skill: Skill, folder: Path) -> None:
    wanted = {SKILL_FILE: render(skill).encode("utf-8"), **skill.files}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.relative_to(folder).as_posix() not in wanted:
            file.unlink()
    for name, content in wanted.items():
        path = folder / name
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file_out:
                file_out.write(content)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
