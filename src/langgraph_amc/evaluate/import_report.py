"""What an import brought in, and what it could not use, by reason; never the content of anything."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from langgraph_amc.trajectories.transcript import printable
from langgraph_amc.trajectories.types import Usage


@dataclass(frozen=True, slots=True)
class Left:
    """Something that could not be used, how often, and the id or the line of one example."""

    reason: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import brought in.

    Attributes
    ----------
    imported: trajectories that are new in the store; ``known`` were there already, ``updated`` of them are judged now.
    judged, unjudged: of all that were read, with and without an outcome; ``failed``: runs that broke, among both.
    mean_return: of the judged ones, in reward units; ``None`` if there are none.
    left_out: what is not in the store, by reason.
    notes: what is in the store, and worth knowing about.
    """

    imported: int
    known: int
    updated: int
    judged: int
    unjudged: int
    failed: int
    mean_return: float | None
    usage: Usage
    left_out: tuple[Left, ...] = ()
    notes: tuple[Left, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)

    def to_text(self) -> str:
        """The report to read: one line of counts, then one line per reason."""
        mean = "unknown" if self.mean_return is None else f"{self.mean_return:.3f}"
        lines = [
            f"{self.imported} trajectories imported ({self.known} known already, {self.updated} of them newly judged): "
            f"{self.judged} judged, {self.unjudged} without a reward, {self.failed} failed; mean return {mean}; "
            f"{self.usage.input_tokens} tokens in, {self.usage.output_tokens} out"
        ]
        lines += [f"left out: {left.count} × {left.reason}, e.g. {left.example}" for left in self.left_out]
        lines += [f"note: {note.count} × {note.reason}, e.g. {note.example}" for note in self.notes]
        return "\n".join(lines)


@dataclass(slots=True)
class Tally:
    """Counts by reason, each with its first example."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, example: str) -> None:
        self.counts[reason] += 1
        self.examples.setdefault(reason, printable(example)[:255])

    def result(self) -> tuple[Left, ...]:
        return tuple(Left(reason, count, self.examples[reason]) for reason, count in self.counts.most_common())
