"""Rules drawn from contrasts without any language model: what successful runs of a task did and failed ones did not.

A run is seen as a set of marks: tools it called, which it called before which, lines it wrote, lines it was told. A
mark that only the better run of a contrast has speaks for a rule to do so, one that only the worse has for a rule
against it. Tasks are counted on both sides; a rule needs `least` of them and more for it than against it. What stands
in the marks is quoted, never made up: the baseline for whatever a language model proposes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from langgraph_amc.checks import check_whole
from langgraph_amc.skills.edits import fits
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.merging import fresh, net
from langgraph_amc.skills.turns import Turn, turns
from langgraph_amc.skills.types import Citation, Edit, Evidence, Proposal, Rejected
from langgraph_amc.trajectories.types import Trajectory

Kind = Literal["told", "call", "order", "says"]
Mark = tuple[Kind, str]
SKILL = "lessons-from-runs"
DESCRIPTION = "Rules drawn from earlier runs, for every task of this kind. Read before the first step."
_ORDER: dict[Kind, int] = {"told": 0, "call": 1, "order": 2, "says": 3}
"""Of marks that are found in the same runs, the one that says most comes first."""
_CALL = re.compile(r"([A-Za-z_][\w.-]*) \{.*\}", re.S)
_LONGEST, _SHORTEST = 200, 8
"""Characters of a line that is worth quoting."""


@dataclass(slots=True)
class _Tally:
    """Runs that speak for a mark and against it, by what is wanted: to do it, or not to."""

    do: list[Citation] = field(default_factory=list)
    avoid: list[Citation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ExtractiveProposer:
    """Proposes one rule at a time, each a section of one skill.

    Attributes
    ----------
    least: tasks that have to speak for a rule.
    """

    least: int = 2

    def __post_init__(self) -> None:
        check_whole("least", self.least, 1)

    @property
    def name(self) -> str:
        """``"extractive"``."""
        return "extractive"

    async def propose(
        self, library: SkillLibrary, evidence: Evidence, rejected: Sequence[Rejected], limit: int
    ) -> tuple[Proposal, ...]:
        """The rules with the highest net support that have not been tried."""
        marks = sorted(_tallies(evidence).items(), key=lambda item: _ORDER[item[0][0]])
        rules = [rule for mark, tally in marks for rule in self._rules(mark, tally, library)]
        rules = sorted(fresh([rule for rule in rules if fits(library, rule)], rejected), key=net, reverse=True)
        # of rules that rest on the same tasks, one each first: their evidence cannot tell them apart
        first: dict[object, Edit] = {}
        for rule in rules:
            first.setdefault(_tasks(rule), rule)
        ordered = [*first.values(), *(rule for rule in rules if first[_tasks(rule)] is not rule)]
        return tuple(Proposal((rule,), self.name) for rule in ordered[:limit])

    def _rules(self, mark: Mark, tally: _Tally, library: SkillLibrary) -> Iterable[Edit]:
        for wanted, supports, contradicts in ((True, tally.do, tally.avoid), (False, tally.avoid, tally.do)):
            if not supports or (mark[0] == "told" and wanted) or (mark[0] in ("order", "says") and not wanted):
                continue
            title, text = _wording(mark, wanted)
            known = SKILL in library and title in library.get(SKILL).body
            edit = Edit(
                "add section" if SKILL in library else "create skill",
                SKILL,
                title,
                text,
                "" if SKILL in library else DESCRIPTION,
                f"{'better' if wanted else 'worse'} runs have it and their counterparts do not",
                tuple(supports),
                tuple(contradicts),
            )
            if not known and edit.support >= self.least and edit.support > edit.opposition:
                yield edit


def _tallies(evidence: Evidence) -> dict[Mark, _Tally]:
    """All marks that tell better from worse runs; in tasks whose runs are alike, those no run of the other kind has."""
    found: dict[Mark, _Tally] = defaultdict(_Tally)
    good: set[Mark] = set()
    bad: set[Mark] = set()
    for contrast in evidence.contrasts:
        better = _marks(contrast.better, contrast.shared)
        worse = _marks(contrast.worse, contrast.shared)
        good |= better
        bad |= worse
        for mark in better - worse:
            found[mark].do.append(_cite(contrast.better, mark))
        for mark in worse - better:
            found[mark].avoid.append(_cite(contrast.worse, mark))
    failures = [(run, _marks(run, 1)) for run in evidence.failures]
    successes = [(run, _marks(run, 1)) for run in evidence.successes]
    good |= {mark for _, marks in successes for mark in marks}
    bad |= {mark for _, marks in failures for mark in marks}
    for run, marks in failures:
        for mark in marks - good:
            found[mark].avoid.append(_cite(run, mark))
    for run, marks in successes:
        for mark in marks - bad:
            found[mark].do.append(_cite(run, mark))
    return found


def _marks(run: Trajectory, after: int) -> set[Mark]:
    """The marks of what came after the first segments, which all runs of the task or both siblings share."""
    said = turns(run.segments[after:])
    calls: list[str] = []
    found: set[Mark] = set()
    for turn in said:
        own = turn.role == "assistant"
        for line in _lines(turn):
            if own and (match := _CALL.fullmatch(line)):
                calls.append(match[1])
            elif _SHORTEST <= len(line) <= _LONGEST:
                found.add(("says" if own else "told", _general(line)))
    first = {name: i for i, name in reversed(list(enumerate(calls)))}
    found |= {("call", name) for name in first}
    for one, other in combinations(sorted(first, key=first.__getitem__), 2):
        found.add(("order", f"{one}\x1f{other}"))
    return found


def _lines(turn: Turn) -> list[str]:
    return [line.strip() for line in turn.text.split("\n") if line.strip()]


def _general(line: str) -> str:
    """The line without its numbers, which belong to the one task."""
    return re.sub(r"\d+(?:[.,]\d+)*", "…", line)


def _wording(mark: Mark, wanted: bool) -> tuple[str, str]:
    """Heading and text of the rule."""
    kind, what = mark
    if kind == "call" and wanted:
        return f"Call {what}", f"Call `{what}`: runs that succeeded did, runs of the same tasks that failed did not."
    if kind == "call":
        return f"Do not call {what}", f"Do not call `{what}`: runs that failed did, runs that succeeded did not."
    if kind == "order":
        one, other = what.split("\x1f")
        return f"Call {one} before {other}", f"Call `{one}` before `{other}`, as the runs that succeeded did."
    if kind == "says":
        return f"Say: {_short(what)}", f"Where it fits, say as the runs that succeeded did: “{what}”"
    return (
        f"Before you are told: {_short(what)}",
        f"Runs that failed were told “{what}”. Do what it asks for from the start, so that nobody has to say it.",
    )


def _short(text: str) -> str:
    plain = " ".join(text.replace("#", "").split())
    return plain if len(plain) <= 60 else plain[:59].rstrip() + "…"


def _cite(run: Trajectory, mark: Mark) -> Citation:
    quote = mark[1].replace("\x1f", " before ")
    return Citation(run.task_id or "", run.run_id, run.particle, quote)


def _tasks(edit: Edit) -> tuple[frozenset[str], frozenset[str]]:
    """The tasks that speak for and against an edit."""
    return frozenset(c.task for c in edit.supports), frozenset(c.task for c in edit.contradicts)
