"""What a run of optimising has come to: the library, what became of every proposal, and old against new held out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evaluate.optimizing.history import Trial
from langgraph_amc.evaluate.statistics import Estimate, estimate, paired
from langgraph_amc.skills.diff import evidence_lines, markdown
from langgraph_amc.skills.edits import describe
from langgraph_amc.skills.library import SkillLibrary

Floats = NDArray[np.float64]
_OUTCOMES = ("accepted", "rejected", "refused", "stale")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Old and new library on the same held-out tasks, with the same seeds; 95 % intervals over tasks.

    Attributes
    ----------
    looks: for how many libraries the held-out tasks have been looked at; from the second on they are no longer fresh.
    """

    tasks: int
    repeats: int
    old: Estimate
    new: Estimate
    difference: Estimate
    looks: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A library on the archive's front: no other is as good on every validation task and better on one.

    Attributes
    ----------
    library: its digest. mean: reward on the validation tasks. best_on: tasks on which no other is better.
    edits: what makes it out of the last champion; none where it was champion, or what the run started from.
    """

    library: str
    mean: float
    best_on: int
    edits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Optimization:
    """A finished run.

    Attributes
    ----------
    skills: folder of the new library; the one that the run started from is not touched. changes: its Markdown diff.
    trials: every proposal and what became of it, in order. stopped: why there was no further one.
    validation_old, validation_new: on the validation tasks; the new one was chosen on them, so it flatters itself.
    held_out: ``None`` without held-out tasks, or where nothing changed.
    archive: best on some tasks. rollouts, found, failed, unjudged: of this call; ``found`` had ended in an earlier one.
    answers: model answers that came from the disk. tokens: paid in this call.
    """

    skills: str
    changes: str
    changed: bool
    trials: tuple[Trial, ...]
    rounds: int
    stopped: str
    validation_old: Estimate | None
    validation_new: Estimate | None
    held_out: HeldOut | None
    archive: tuple[Candidate, ...]
    rollouts: int
    found: int
    failed: int
    unjudged: int
    answers: int
    tokens: int
    seconds: float

    @property
    def accepted(self) -> tuple[Trial, ...]:
        """What the new library is made of."""
        return tuple(trial for trial in self.trials if trial.outcome == "accepted")

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``; NaN and infinities are ``None``."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        return plain

    def to_text(self) -> str:
        """Lines for a terminal."""
        counts: Counter[str] = Counter(trial.outcome for trial in self.trials)
        told = ", ".join(f"{counts[name]} {name}" for name in _OUTCOMES if counts[name])
        proposed = f"{_many(len(self.trials), 'proposal')}{f' ({told})' if told else ''}"
        lines = [f"{_many(self.rounds, 'round')}, {proposed}; {self.stopped}"]
        for trial in self.accepted:
            edits = ", ".join(describe(edit) for edit in trial.proposal.edits)
            lines.append(f"  + {edits}: {trial.reason}")
        if self.validation_old is not None and self.validation_new is not None:
            lines.append(f"validation  {self.validation_old}  →  {self.validation_new} (chosen on these tasks)")
        if (h := self.held_out) is not None:
            d = h.difference
            lines += [
                f"held out, {h.tasks} tasks × {h.repeats}, mean reward with 95 % interval:",
                f"  old skills  {h.old}",
                f"  new skills  {h.new}",
                f"  new − old   {d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]",
            ]
            if h.looks > 1:
                lines.append(f"  the held-out tasks were looked at for {h.looks} libraries: they are no longer fresh")
        lines.append(
            f"{_many(self.rollouts, 'rollout')} ({self.failed:,} failed, {self.unjudged:,} without a reward, "
            f"{self.found:,} found from before), {self.tokens:,} tokens, {self.seconds:,.0f} seconds"
        )
        lines.append(f"the new skills are in {self.skills}" if self.changed else "the skills stay as they are")
        return "\n".join(lines)


def held_out_report(old: Floats, new: Floats, looks: int) -> HeldOut:
    """Old against new, [tasks, repeats] each."""
    tasks, repeats = old.shape
    return HeldOut(tasks, repeats, estimate(old), estimate(new), paired(new, old), looks)


def changes(
    base: SkillLibrary, now: SkillLibrary, trials: Sequence[Trial], held_out: HeldOut | None, ended: str = ""
) -> str:
    """The Markdown that a reviewer reads: what was taken with its evidence, the diff, what was not taken and why.

    ``ended``: why the search did, told where nothing was taken.
    """
    taken = [trial for trial in trials if trial.outcome == "accepted"]
    text = markdown(base, now, [edit for trial in taken for edit in trial.proposal.edits])
    parts = [text, "## Why these were taken", ""]
    nothing = f"Nothing was taken: {ended}." if ended else "Nothing was taken."
    parts += [f"- {_edits(trial)}: {trial.reason}" for trial in taken] or [nothing]
    if held_out is not None:
        parts += ["", "## Held-out tasks", "", _table(held_out)]
    if others := [trial for trial in trials if trial.outcome != "accepted"]:
        parts += ["", "## Not taken", ""]
        for trial in others:
            parts += [f"- {_edits(trial)}: {trial.outcome}, {trial.reason}"]
            parts += [
                f"  {line}" for edit in trial.proposal.edits for line in (_quoted(edit.text), *evidence_lines(edit))
            ]
    return "\n".join([*parts, ""])


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _edits(trial: Trial) -> str:
    return " and ".join(describe(edit) for edit in trial.proposal.edits)


def _quoted(text: str) -> str:
    return f"> {' '.join(text.split())}"


def _table(h: HeldOut) -> str:
    d = h.difference
    return "\n".join(
        [
            f"| {h.tasks} tasks × {h.repeats} | mean reward, 95 % interval |",
            "|---|---|",
            f"| old skills | {h.old} |",
            f"| new skills | {h.new} |",
            f"| new − old | {d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}] |",
        ]
    )
