"""What this room speaks of: skills, edits of them, the evidence an edit rests on, and who proposes edits."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from langgraph_amc.errors import AMCError
from langgraph_amc.trajectories.types import Trajectory

if TYPE_CHECKING:
    from langgraph_amc.skills.library import SkillLibrary

Op = Literal["add section", "replace section", "delete section", "create skill", "delete skill"]
OPS: tuple[Op, ...] = get_args(Op)


class SkillError(AMCError, ValueError):
    """A skill, a library or an edit that is not valid; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One Agent Skill, as ``<name>/SKILL.md`` holds it; valid by construction.

    Attributes
    ----------
    name: 1 to 64 of ``a-z``, ``0-9`` and ``-``, also the folder's name.
    description: what it is for and when to use it, at most 1,024 characters; all that is seen before it is read.
    body: Markdown.
    fields: what else stands in the front matter (``license``, ``metadata``, …), kept as it is.
    files: the folder's other files by their path in it, e.g. ``references/units.md``; kept as they are.

    Raises SkillError for anything that the format does not allow.
    """

    name: str
    description: str
    body: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict, hash=False)
    files: Mapping[str, bytes] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        from langgraph_amc.skills.validation import problems_of

        if problems := problems_of(self):
            raise SkillError(f"the skill {self.name!r} is not valid: " + "; ".join(problems))


@dataclass(frozen=True, slots=True)
class Citation:
    """A stored run that speaks for or against an edit.

    Attributes
    ----------
    task, run, particle: which. quote: words that stand in its transcript.
    """

    task: str
    run: str
    particle: str
    quote: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a library, with what it rests on.

    Attributes
    ----------
    op: what is done. skill: to which.
    section: the heading that is added, replaced or deleted; empty is the text before the first heading. Of a created
        skill, the heading of its one section, or empty where ``text`` is a body with headings of its own.
    text: the section's text without its heading; of a created skill, its body or that section's text.
    description: of a created skill.
    reason: why, in a sentence.
    supports, contradicts: runs that speak for it and against it.
    """

    op: Op
    skill: str
    section: str = ""
    text: str = ""
    description: str = ""
    reason: str = ""
    supports: tuple[Citation, ...] = ()
    contradicts: tuple[Citation, ...] = ()

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise SkillError(f"an edit is one of {', '.join(OPS)}, got {self.op!r}")
        for name in ("skill", "section", "text", "description", "reason"):
            if not isinstance(value := getattr(self, name), str):
                raise SkillError(f"the {name} of an edit is text, got {value!r:.60}")

    @property
    def key(self) -> str:
        """Sixteen hex digits: the same for edits that differ in white space, case, reason or evidence only.

        A section that is added and a skill that is created with it are the same edit of different libraries.
        """
        kind = self.op if self.op.startswith("delete") else "write"
        said = "\x1f".join(_bare(part) for part in (kind, self.skill, self.section, self.text))
        return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    @property
    def support(self) -> int:
        """How many tasks speak for it: many runs of one task are one task."""
        return len({citation.task for citation in self.supports})

    @property
    def opposition(self) -> int:
        """How many tasks speak against it."""
        return len({citation.task for citation in self.contradicts})


@dataclass(frozen=True, slots=True)
class Proposal:
    """Edits that are tried together; ``proposer``: whose."""

    edits: tuple[Edit, ...]
    proposer: str

    def __post_init__(self) -> None:
        if wrong := [edit for edit in self.edits if not isinstance(edit, Edit)]:
            raise SkillError(f"a proposal is made of edits, got {wrong[0]!r:.60}")

    @property
    def key(self) -> str:
        """Of all its edits, in any order."""
        said = "".join(sorted(edit.key for edit in self.edits))
        return self.edits[0].key if len(self.edits) == 1 else hashlib.blake2b(said.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two runs of one task that ended differently.

    Attributes
    ----------
    better, worse: by their return.
    shared: segments that both begin with; more than one where they are siblings of one AMC run, which split at the
        boundary after them: all that differs has come since.
    """

    task: str
    better: Trajectory
    worse: Trajectory
    shared: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What runs have shown (`skills.evidence.gather`): of a task either a contrast, or runs that are all alike.

    Attributes
    ----------
    contrasts: sharpest first. failures: the worst run of tasks of which none succeeded. successes: of tasks that all
        did.
    """

    contrasts: tuple[Contrast, ...] = ()
    failures: tuple[Trajectory, ...] = ()
    successes: tuple[Trajectory, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.contrasts or self.failures or self.successes)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A proposal that was not taken, and why."""

    proposal: Proposal
    reason: str


class Proposer(Protocol):
    """Reads evidence and proposes edits; it decides nothing."""

    @property
    def name(self) -> str:
        """How it is called in histories and reports."""
        ...

    async def propose(
        self, library: SkillLibrary, evidence: Evidence, rejected: Sequence[Rejected], limit: int
    ) -> tuple[Proposal, ...]:
        """At most ``limit`` proposals, the best supported first, none of them like a rejected one.

        Raises whatever its model raises; an answer that cannot be used brings no proposal and a warning.
        """
        ...


def _bare(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()
