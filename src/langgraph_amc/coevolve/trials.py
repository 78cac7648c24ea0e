"""Trials of skills: how long, how many at a time, what the gate says at the end, and who is tried next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from langgraph_amc.coevolve.design import paired
from langgraph_amc.coevolve.standing import NOTE, Challenger, Skills
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.checks import finite, whole
from langgraph_amc.evolution.history import History, Record
from langgraph_amc.evolution.loop import Course
from langgraph_amc.skills.asking import asked
from langgraph_amc.skills.edits import apply
from langgraph_amc.skills.gate import Verdict, compare, fewest_tasks
from langgraph_amc.skills.leaks import leak
from langgraph_amc.skills.types import Evidence, Proposer, Rejected, SkillError
from langgraph_amc.telemetry import names, span


@dataclass(frozen=True, slots=True)
class Trials:
    """How skills are tried.

    Attributes
    ----------
    generations: that a trial lasts; the gate decides once, at its end, so that looking often gains nothing.
    challengers: libraries on trial at a time, beside the champion's.
    alpha: of the gate for a trial, shared among its challengers (Bonferroni).
    """

    generations: int = 4
    challengers: int = 1
    alpha: float = 0.05

    def __post_init__(self) -> None:
        whole("the generations of a trial", self.generations, 1)
        whole("challengers", self.challengers, 1)
        finite("alpha", self.alpha, above=0)
        if self.alpha >= 1:
            raise ConfigurationError(f"alpha is a probability below 1, e.g. 0.05, got {self.alpha}")

    def check(self, course: Course) -> None:
        """Raise ConfigurationError where no trial could ever accept anything."""
        tasks = min(self.generations * min(course.batch, len(course.tasks)), len(course.tasks))
        least = fewest_tasks(self.alpha / self.challengers)
        if tasks < least:
            raise ConfigurationError(
                f"a trial of {self.generations} generations runs {tasks} tasks, and with fewer than {least} no "
                f"challenger can reach alpha {self.alpha / self.challengers:g}: give more tasks, a larger batch, "
                "longer trials or a larger alpha"
            )


def verdicts_of(trials: Trials, history: History, skills: Skills, pending: Record) -> tuple[Verdict, ...]:
    """The gate's, where the trial ends with this generation; else none."""
    number = pending.update.generation.number
    if not skills.challengers or number + 1 - skills.since < trials.generations:
        return ()
    records = [*history.log.records[skills.since :], pending]
    designs = [np.array(record.notes[NOTE]["arms"], np.int64) for record in records]
    strategy = history.log.header.strategy
    alpha = trials.alpha / len(skills.challengers)
    verdicts = []
    for arm in range(1, len(skills.libraries)):
        tasks = [record.notes["tasks"] for record in records]
        _, champion, challenger = paired([r.rewards for r in records], designs, tasks, arm, strategy.antithetic)
        with span(names.SKILL_GATE, {names.SKILL_VERSION: skills.libraries[arm].digest}) as judged:
            verdict = compare(champion, challenger, alpha=alpha, seed=strategy.seed)
            judged.set_attribute(names.SKILL_GATE_PASSED, verdict.accepted)
        verdicts.append(verdict)
    return tuple(verdicts)


async def proposed(
    proposer: Proposer, skills: Skills, evidence: Evidence, most: int, references: Iterable[Any] = ()
) -> tuple[tuple[Challenger, ...], tuple[Rejected, ...]]:
    """New challengers, and proposals that are refused because they repeat one of the ``references``.

    A proposal that does not fit the library, or was rejected before, is passed over.
    """
    if not evidence:
        return (), ()
    answers = tuple(references)
    known = {r.proposal.key for r in skills.rejected} | {skills.champion.digest}
    found: list[Challenger] = []
    refused: list[Rejected] = []
    for proposal in await asked(proposer, skills.champion, evidence, skills.rejected, most):
        try:
            library = apply(skills.champion, proposal.edits)
        except SkillError:
            continue
        if {proposal.key, library.digest} & known or len(found) >= most:
            continue
        known |= {proposal.key, library.digest}
        if reason := leak(proposal.edits, answers):
            refused.append(Rejected(proposal, reason))
        else:
            found.append(Challenger(library, proposal))
    return tuple(found), tuple(refused)
