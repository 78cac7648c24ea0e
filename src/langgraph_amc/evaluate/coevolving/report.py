"""What a run of co-evolution has come to: its trials of skills, its validations, and start against end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from langgraph_amc.coevolve.standing import Challenger
from langgraph_amc.evaluate.coevolving.sharing import Sharing
from langgraph_amc.evaluate.evolving.report import GenerationReport, HeldOut, ValidationReport
from langgraph_amc.skills.edits import describe
from langgraph_amc.skills.gate import Verdict
from langgraph_amc.skills.types import Rejected


@dataclass(frozen=True, slots=True)
class Trial:
    """A challenger that was tried: its edits in words, from generation ``since`` to ``until``, and what the gate said.

    ``kept``: whether its library became the champion's; of several that pass at once one does.
    """

    since: int
    until: int
    edits: tuple[str, ...]
    reasons: tuple[str, ...]
    verdict: Verdict
    kept: bool


@dataclass(frozen=True, slots=True)
class Coevolution:
    """A finished run.

    Attributes
    ----------
    skills: folder of the library it ended with. model: of the tuned model; ``None`` where no weights were tuned.
    best: after how many generations weights and skills together were best on the validation tasks; the last without.
    refused: edits that were never tried because they repeat the reference of a task, each with what it repeats.
    held_out: start and end on the held-out tasks, ``None`` without such tasks.
    sharing: who was told by which rollouts. rollouts, failed: of this call. found: that had ended in an earlier one.
    """

    skills: str
    model: str | None
    library: str
    weights: str
    generations: tuple[GenerationReport, ...]
    trials: tuple[Trial, ...]
    refused: tuple[str, ...]
    validations: tuple[ValidationReport, ...]
    best: int
    stopped: str
    held_out: HeldOut | None
    sharing: Sharing
    rollouts: int
    found: int
    failed: int
    tokens: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``; NaN and infinities are ``None``."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        return plain

    def to_text(self) -> str:
        """Lines for a terminal."""
        done = len(self.generations)
        lines = [f"{done} generation{'s' * (done != 1)}; {self.stopped}"]
        for trial in self.trials:
            said = "kept" if trial.kept else "dropped"
            lines.append(
                f"generations {trial.since + 1} to {trial.until + 1}: {said} {', '.join(trial.edits)}: "
                f"{trial.verdict.reason}"
            )
        lines += [f"never tried: {said}" for said in self.refused]
        if self.validations:
            measured = ", ".join(f"{v.done}: {v.reward.mean:.3f}" for v in self.validations)
            lines.append(f"validation after generation … {measured}; best after {self.best}")
        if self.held_out is not None:
            h = self.held_out
            d = h.difference
            lines += [
                f"held out, {h.tasks} tasks × {h.repeats}, mean reward with 95 % interval:",
                f"  start  {h.base}",
                f"  end    {h.tuned}",
                f"  end − start  {d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]",
            ]
        lines += [
            self.sharing.to_text(),
            f"{self.rollouts:,} rollouts in this call ({self.failed:,} failed; {self.found:,} are kept from before), "
            f"{self.tokens:,} tokens, {self.seconds:,.0f} seconds",
            f"the skills are in {self.skills}",
        ]
        if self.model is not None:
            lines.append(f"the model is in {self.model}")
        return "\n".join(lines)


def refused_of(refused: Iterable[Rejected]) -> tuple[str, ...]:
    """What is told of proposals that must not be tried."""
    return tuple(f"{', '.join(map(describe, r.proposal.edits))}: {r.reason}" for r in refused)


def trials_of(
    since: int, until: int, challengers: tuple[Challenger, ...], verdicts: tuple[Verdict, ...], champion: str
) -> tuple[Trial, ...]:
    """What is told of a trial's end; ``champion``: digest after it."""
    return tuple(
        Trial(
            since,
            until,
            tuple(describe(edit) for edit in challenger.proposal.edits),
            tuple(edit.reason for edit in challenger.proposal.edits),
            verdict,
            verdict.accepted and challenger.library.digest == champion,
        )
        for challenger, verdict in zip(challengers, verdicts, strict=True)
    )
