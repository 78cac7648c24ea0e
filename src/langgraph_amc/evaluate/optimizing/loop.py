"""The loop: collect runs of the champion, have edits proposed, try each against the champion, keep what the gate takes.

It decides and yields events; rollouts, proposals and the history do the rest. What the history holds is not done again:
a run that is gone on with goes through the same steps and finds them done.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evaluate.optimizing.answers import asking_as
from langgraph_amc.evaluate.optimizing.history import History, HistoryError, Proposed, Trial
from langgraph_amc.evaluate.optimizing.rollouts import VALIDATION, LibraryRollouts
from langgraph_amc.evaluate.optimizing.spending import Plan, plan, short_of_money
from langgraph_amc.evaluate.optimizing.study import Study
from langgraph_amc.evaluate.optimizing.trying import Search, attempt, by_task, joined, unlike
from langgraph_amc.skills.archive import Entry
from langgraph_amc.skills.asking import asked
from langgraph_amc.skills.edits import apply
from langgraph_amc.skills.evidence import gather
from langgraph_amc.skills.gate import fewest_tasks
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Evidence, Proposal, Proposer
from langgraph_amc.telemetry import names, span
from langgraph_amc.trajectories.types import Trajectory

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Planned:
    """What the run may take, by what the first task took."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Measured:
    """The library that the run starts from was measured: ``rewards`` [validation tasks, repeats]."""

    rewards: Floats


@dataclass(frozen=True, slots=True)
class Collected:
    """A round's evidence is there."""

    round: int
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Tried:
    """A proposal was dealt with; ``champion`` and its ``rewards`` are those after it."""

    trial: Trial
    champion: SkillLibrary
    rewards: Floats


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run is over. ``rounds``: how many were begun. ``archive``: best on some tasks, the champion among them."""

    rounds: int
    reason: str
    champion: SkillLibrary
    archive: tuple[Entry, ...]


Event = Planned | Measured | Collected | Proposed | Tried | Stopped


async def optimise(
    study: Study,
    base: SkillLibrary,
    rollouts: LibraryRollouts,
    proposer: Proposer,
    history: History,
    more: Sequence[Trajectory] = (),
) -> AsyncGenerator[Event, None]:
    """Search from ``base``, from wherever the history is; ``more``: runs from elsewhere that are evidence too.

    Raises OutOfBudgetError and whatever the rollouts and the proposer raise; what was done until then is kept.
    """
    tasks = study.validating()
    title = "the skills as they are, validation tasks"
    await rollouts.rewards(VALIDATION, base, tasks[:1], study.measured, title)
    yield Planned(plan(study, rollouts))
    reason = "" if history.lines else short_of_money(study, rollouts, len(tasks) * study.measured + study.collected)
    if reason:
        yield Stopped(0, reason, base, ())
        return
    first = await rollouts.rewards(VALIDATION, base, tasks, study.measured, title)
    yield Measured(first)
    search = Search(base, first, [Entry(base.digest, None, by_task(first))])
    course = _Course(study, search, rollouts, proposer, history, more)
    idle = number = 0
    while not (reason := _enough(study, search, idle, number)):
        before = search.champion
        async for event in course.round(number):
            yield event
        idle = 0 if search.champion is not before else idle + 1
        number += 1
    yield Stopped(number, reason, search.champion, search.front())


def ceiling(study: Study, rewards: Floats) -> str:
    """Why nothing can be shown to be better than these rewards [tasks, repeats], if nothing can."""
    known = rewards[~np.isnan(rewards)]
    top = study.success
    if top is None and known.size and known.min() >= 0 and known.max() <= 1:
        top = 1.0
    if top is None:
        return ""
    room = int(np.sum(np.where(np.isnan(rewards), -np.inf, rewards).min(axis=1) < top))
    need = fewest_tasks(study.level)
    if room >= need:
        return ""
    return (
        f"saturated: {room} of {len(rewards)} validation tasks leave something to gain, and to show a gain takes "
        f"{need}; give harder tasks, or more of them"
    )


def _enough(study: Study, search: Search, idle: int, number: int) -> str:
    """Why there is no further round, if so."""
    if search.stopped:
        return search.stopped
    if reason := ceiling(study, search.rewards):
        return reason
    if number >= study.rounds:
        return "all rounds are done" if study.rounds > 1 else "its one round is done"
    if study.patience is not None and idle >= study.patience:
        return f"{idle} rounds in a row brought no better library"
    return ""


@dataclass(slots=True)
class _Course:
    """A round, again and again."""

    study: Study
    search: Search
    rollouts: LibraryRollouts
    proposer: Proposer
    history: History
    more: Sequence[Trajectory]

    async def round(self, number: int) -> AsyncGenerator[Event, None]:
        """Collect, propose, try."""
        study, search = self.study, self.search
        proposals = self.history.proposals(number)
        if proposals is None and self._short(study.collected):
            return
        runs = study.training(number)
        search.runs += await self.rollouts.trajectories(search.champion, runs, f"round {number + 1}, training tasks")
        evidence = gather([*search.runs, *self.more], success=study.success)
        yield Collected(number, evidence)
        if proposals is None:
            proposals = await self._proposed(number, evidence)
            self.history.append(Proposed(number, proposals))
        yield Proposed(number, proposals)
        for place, proposal in enumerate(proposals):
            if self.history.trial(number, place) is None and self._short(0):
                return
            yield await self._tried(number, place, proposal)
        if (joint := joined(search)) is not None and not self._short(0):
            yield await self._tried(number, len(proposals), joint)

    async def _proposed(self, number: int, evidence: Evidence) -> tuple[Proposal, ...]:
        study, search = self.study, self.search
        with asking_as(study.seed, "propose", number), span(names.SKILL_PROPOSAL):
            found = await asked(self.proposer, search.champion, evidence, search.rejected, study.candidates)
        return unlike(found, search.rejected)[: study.candidates]

    async def _tried(self, number: int, place: int, proposal: Proposal) -> Tried:
        """Deal with one proposal, or find that it was."""
        study, search, history = self.study, self.search, self.history
        trial = history.trial(number, place)
        if trial is None:
            with span(names.SKILL_GATE) as gate:
                trial = await attempt(study, search, self.rollouts, proposal, number, place)
                gate.set_attribute(names.SKILL_GATE_PASSED, trial.outcome == "accepted")
            history.append(trial)
        if trial.outcome == "accepted":
            library = apply(search.champion, trial.proposal.edits)
            tasks = study.validating()
            search.take(
                library, await self.rollouts.rewards(VALIDATION, library, tasks, study.measured, "the new champion")
            )
        elif trial.outcome != "stale":
            search.pass_over(trial)
        if search.champion.digest != trial.champion:
            raise HistoryError(
                f"after round {number + 1}, proposal {place + 1} the champion is {search.champion.digest}, not "
                f"{trial.champion} as in {history.path}: the history was changed"
            )
        return Tried(trial, search.champion, search.rewards)

    def _short(self, further: int) -> bool:
        """Whether the budget does not pay for so many rollouts, a candidate and the comparison at the end."""
        self.search.stopped = short_of_money(self.study, self.rollouts, further)
        return bool(self.search.stopped)
