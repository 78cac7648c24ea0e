"""One candidate: whether it may be tried, how it did against the champion, and what is kept of those not taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evaluate.optimizing.history import Outcome, Trial
from langgraph_amc.evaluate.optimizing.rollouts import VALIDATION, LibraryRollouts
from langgraph_amc.evaluate.optimizing.study import Study
from langgraph_amc.skills.archive import Entry, front
from langgraph_amc.skills.edits import alike, apply, fitted, text_of
from langgraph_amc.skills.gate import Verdict, compare
from langgraph_amc.skills.leaks import leak
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Edit, Proposal, Rejected, SkillError
from langgraph_amc.trajectories.types import Trajectory

Floats = NDArray[np.float64]
JOINT = "joint"
"""Proposer of two proposals together, each of which looked better but was not shown to be."""


@dataclass(slots=True)
class Search:
    """Where the search stands.

    Attributes
    ----------
    champion, rewards: the best library, and its rewards [validation tasks, repeats].
    archive: what was measured on all validation tasks: the start, the champions, and candidates of the present one.
    runs: of the champion on training tasks. stopped: why the search cannot go on, if so.
    """

    champion: SkillLibrary
    rewards: Floats
    archive: list[Entry]
    runs: list[Trajectory] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    stopped: str = ""

    def take(self, library: SkillLibrary, rewards: Floats) -> None:
        """A new champion: runs of the old one no longer say what goes wrong."""
        self.champion, self.rewards, self.runs = library, rewards, []
        self.archive = [
            *(entry for entry in self.archive if entry.proposal is None),
            Entry(library.digest, None, by_task(rewards)),
        ]

    def pass_over(self, trial: Trial) -> None:
        """A candidate that was not taken."""
        self.rejected.append(Rejected(trial.proposal, trial.reason))
        if trial.rewards and trial.verdict is not None:
            made = apply(self.champion, trial.proposal.edits)
            self.archive.append(Entry(made.digest, trial.proposal, trial.by_task, trial.verdict.difference))

    def front(self) -> tuple[Entry, ...]:
        """Those in the archive that are best on some tasks."""
        return front(self.archive)


async def attempt(
    study: Study, search: Search, rollouts: LibraryRollouts, proposal: Proposal, number: int, place: int
) -> Trial:
    """Refuse what must not be tried; else run it, on a part of the validation tasks first."""

    def ended(outcome: Outcome, reason: str, verdict: Verdict | None = None, rewards: Floats | None = None) -> Trial:
        champion = library.digest if outcome == "accepted" else search.champion.digest
        means = () if rewards is None else tuple(by_task(rewards).tolist())
        return Trial(number, place, proposal, outcome, reason, champion, verdict, means)

    library = search.champion
    try:
        proposal, library = _fitted(library, proposal)
    except SkillError as error:
        return ended("stale", f"it does not fit the champion: {error}")
    if reason := leak(proposal.edits, (task.reference for task in rollouts.tasks.values())):
        return ended("refused", reason)
    title, tasks = f"round {number + 1}, candidate {place + 1}", study.validating()
    if (part := study.screened) < len(tasks):
        rewards = await rollouts.rewards(VALIDATION, library, tasks[:part], study.measured, title)
        seen = compare(search.rewards[:part], rewards, alpha=study.level, seed=study.seed)
        if not seen.difference >= 0:  # or nothing is known of it
            return ended("rejected", f"given up after {part} validation tasks: {seen.reason}", seen)
    rewards = await rollouts.rewards(VALIDATION, library, tasks, study.measured, title)
    verdict = compare(search.rewards, rewards, alpha=study.level, seed=study.seed)
    bar = max((entry.difference for entry in _parts(search, proposal)), default=0.0)
    if verdict.accepted and verdict.difference < bar:
        return ended("rejected", f"no better than one of its parts alone ({bar:+.3f}); {verdict.reason}", verdict)
    return ended("accepted" if verdict.accepted else "rejected", verdict.reason, verdict, rewards)


def joined(search: Search) -> Proposal | None:
    """The two best candidates that looked better than the champion and could not be shown to be, as one.

    Only such as are best on some tasks (the archive's front): two small gains together may be large enough to see.
    """
    promising = [e for e in front(search.archive) if e.proposal is not None and e.difference > 0]
    promising = [e for e in promising if e.proposal is not None and e.proposal.proposer != JOINT]
    promising.sort(key=lambda entry: entry.difference, reverse=True)
    tried = {rejected.proposal.key for rejected in search.rejected}
    for one, other in combinations(promising, 2):
        assert one.proposal is not None and other.proposal is not None  # noqa: PT018  # for the type checker
        both = Proposal((*one.proposal.edits, *other.proposal.edits), JOINT)
        if both.key in tried:
            continue
        try:
            return _fitted(search.champion, both)[0]
        except SkillError:
            continue
    return None


def unlike(proposals: Iterable[Proposal], rejected: Sequence[Rejected]) -> tuple[Proposal, ...]:
    """The proposals that are like none of the rejected and like none before them, whoever proposes."""
    known = [old.proposal for old in rejected]
    found: list[Proposal] = []
    for proposal in proposals:
        if proposal.edits and not any(_alike(proposal, old) for old in (*known, *found)):
            found.append(proposal)
    return tuple(found)


def by_task(rewards: Floats) -> Floats:
    """Means over repeats, [tasks]; NaN for a task without any."""
    known = ~np.isnan(rewards)
    counts = known.sum(axis=1)
    means: Floats = np.where(known, rewards, 0.0).sum(axis=1) / np.maximum(counts, 1)
    means[counts == 0] = np.nan
    return means


def _fitted(library: SkillLibrary, proposal: Proposal) -> tuple[Proposal, SkillLibrary]:
    """The proposal as it is to be made to this library, and the library after it; SkillError where it cannot be."""
    edits: list[Edit] = []
    for edit in proposal.edits:
        edits.append(fitted(library, edit))
        library = apply(library, edits[-1:])
    return Proposal(tuple(edits), proposal.proposer), library


def _parts(search: Search, proposal: Proposal) -> list[Entry]:
    """What was measured alone of what is tried together."""
    if proposal.proposer != JOINT:
        return []
    keys = {text_of([edit]) for edit in proposal.edits}
    return [e for e in search.archive if e.proposal is not None and {text_of([x]) for x in e.proposal.edits} <= keys]


def _alike(one: Proposal, other: Proposal) -> bool:
    if len(one.edits) != len(other.edits):
        return False
    return all(any(alike(a, b) for b in other.edits) for a in one.edits)
