"""Where the skills of a run stand, and how that is written into its history and read back."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from langgraph_amc.evolution.errors import HistoryError
from langgraph_amc.evolution.history import Log
from langgraph_amc.skills.gate import Verdict
from langgraph_amc.skills.library import SkillLibrary, parse, render
from langgraph_amc.skills.types import Citation, Edit, Proposal, Rejected, SkillError

NOTE = "skills"
"""Key in a history's notes, and in what its first line says of the run."""


@dataclass(frozen=True, slots=True)
class Challenger:
    """A library that is tried beside the champion's, and the proposal that made it."""

    library: SkillLibrary
    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Skills:
    """The skills between two generations.

    Attributes
    ----------
    champion: what runs carry that are not part of a trial. challengers: on trial ``since`` this generation.
    accepted: proposals that the gate took, in order. rejected: those that it did not.
    """

    champion: SkillLibrary
    challengers: tuple[Challenger, ...] = ()
    since: int = 0
    accepted: tuple[Proposal, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    @property
    def libraries(self) -> tuple[SkillLibrary, ...]:
        """By arm: the champion's first."""
        return (self.champion, *(c.library for c in self.challengers))

    def decided(self, verdicts: tuple[Verdict, ...]) -> Skills:
        """After a trial: the best of the accepted challengers is the champion; those that were not are rejected.

        What passed beside a better one is neither: it may be proposed again, on top of the new champion.
        """
        taken = [i for i, verdict in enumerate(verdicts) if verdict.accepted]
        best = max(taken, key=lambda i: verdicts[i].difference, default=None)
        rejected = tuple(
            Rejected(challenger.proposal, verdict.reason)
            for challenger, verdict in zip(self.challengers, verdicts, strict=True)
            if not verdict.accepted
        )
        after = replace(self, challengers=(), rejected=(*self.rejected, *rejected))
        if best is None:
            return after
        won = self.challengers[best]
        return replace(after, champion=won.library, accepted=(*self.accepted, won.proposal))

    def refusing(self, refused: tuple[Rejected, ...]) -> Skills:
        """After proposals that must not be tried: they are not proposed again either."""
        return replace(self, rejected=(*self.rejected, *refused))

    def challenged(self, challengers: tuple[Challenger, ...], since: int) -> Skills:
        """With a new trial."""
        return replace(self, challengers=challengers, since=since)


@dataclass(frozen=True, slots=True)
class Note:
    """What a generation's line says of skills.

    Attributes
    ----------
    arms: [plots, columns] as lists. libraries: digest by arm. verdicts: of the trial that ended with it, else empty.
    asked: whether the proposer was asked after it. champion: digest after it. challengers: of the trial that begins
        after it, else empty. refused: proposals of that time which must not be tried.
    """

    arms: list[list[int]]
    libraries: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    asked: bool
    champion: str
    challengers: tuple[Challenger, ...]
    refused: tuple[Rejected, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "arms": self.arms,
            "libraries": list(self.libraries),
            "verdicts": [{k: v if v == v else None for k, v in asdict(verdict).items()} for verdict in self.verdicts],
            "asked": self.asked,
            "champion": self.champion,
            "challengers": [
                {"library": library_to_json(c.library), "proposal": proposal_to_json(c.proposal)}
                for c in self.challengers
            ],
            "refused": [{"proposal": proposal_to_json(r.proposal), "reason": r.reason} for r in self.refused],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Note:
        verdicts = tuple(map(_verdict, data["verdicts"]))
        challengers = tuple(
            Challenger(library_from_json(c["library"]), proposal_from_json(c["proposal"])) for c in data["challengers"]
        )
        refused = tuple(
            Rejected(proposal_from_json(r["proposal"]), r["reason"])
            for r in data.get("refused", ())  # histories written before there was this check have none
        )
        return cls(
            data["arms"], tuple(data["libraries"]), verdicts, data["asked"], data["champion"], challengers, refused
        )


def _verdict(told: Mapping[str, Any]) -> Verdict:
    known: dict[str, Any] = {name: math.nan if value is None else value for name, value in told.items()}
    return Verdict(**known)


def replay_skills(log: Log) -> Skills:
    """The skills after a history's last generation, from the history alone.

    Raises HistoryError where its notes are damaged, or do not follow from one another.
    """
    number = -1
    try:
        skills = Skills(library_from_json(log.header.about[NOTE]))
        for number, record in enumerate(log.records):
            note = Note.from_json(record.notes[NOTE])
            if tuple(library.digest for library in skills.libraries) != note.libraries:
                raise HistoryError("other libraries were tried than the generations before it say")
            skills = followed(skills, note, number)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # a SkillError is a ValueError
        raise HistoryError(f"generation {number} says nothing usable of skills: {error!r}") from error
    return skills


def followed(skills: Skills, note: Note, number: int) -> Skills:
    """The skills after generation ``number``, which ended with this note."""
    if note.verdicts:
        skills = skills.decided(note.verdicts)
    if note.champion != skills.champion.digest:
        raise HistoryError(f"generation {number} names another champion than its verdicts give")
    skills = skills.refusing(note.refused)
    return skills.challenged(note.challengers, number + 1) if note.challengers else skills


def library_to_json(library: SkillLibrary) -> dict[str, Any]:
    """Each skill's file and its further files, by name."""
    return {
        skill.name: {
            "file": render(skill),
            "files": {name: base64.b64encode(content).decode() for name, content in skill.files.items()},
        }
        for skill in library
    }


def library_from_json(data: Mapping[str, Any]) -> SkillLibrary:
    """The library that `library_to_json` described. Raises SkillError where it is none."""
    skills = []
    for name, told in data.items():
        skill = replace(
            parse(told["file"], name), files={path: base64.b64decode(text) for path, text in told["files"].items()}
        )
        if skill.name != name:
            raise SkillError(f"the skill {name!r} calls itself {skill.name!r}")
        skills.append(skill)
    return SkillLibrary(tuple(skills))


def proposal_to_json(proposal: Proposal) -> dict[str, Any]:
    """Plain data."""
    return asdict(proposal)


def proposal_from_json(data: Mapping[str, Any]) -> Proposal:
    """The proposal that `proposal_to_json` described."""
    edits = []
    for told in data["edits"]:
        cited = {k: tuple(Citation(**c) for c in told[k]) for k in ("supports", "contradicts")}
        edits.append(Edit(**{**told, **cited}))
    return Proposal(tuple(edits), data["proposer"])
