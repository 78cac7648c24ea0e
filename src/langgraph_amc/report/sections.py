"""What a report is made of: plain, frozen data that the page, ``report.json`` and the plots all draw from.

A section is one thing to look at, with a title and a lead: one or two sentences that say what is seen, for a reader
who knows no sequential Monte Carlo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, TypeAlias

FORMAT = 1
"""Of ``report.json``; goes up when a field changes its meaning or goes."""

Numbers: TypeAlias = tuple[float | None, ...]
Role = Literal["main", "other", "faded", "reference"]
"""How much a series stands out: what it is about, what it is compared with, what is over, what to hold it against."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and what there is to say under it; ``strong``: what the reader came for."""

    label: str
    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a chart.

    Attributes
    ----------
    low, high: bounds of an interval around ``y``, or empty.
    line: whether the points are joined.
    """

    name: str
    x: Numbers
    y: Numbers
    role: Role = "main"
    low: Numbers = ()
    high: Numbers = ()
    line: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What all have in common."""

    kind: ClassVar[str] = "text"
    title: str
    lead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves(Section):
    """A chart over numbers; ``marks`` are vertical lines, each with what happened there."""

    kind: ClassVar[str] = "curves"
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    marks: tuple[tuple[float, str], ...] = ()
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(Section):
    """Shares of a whole at several points: ``shares[i][k]`` is what ``names[k]`` has at ``x[i]``, in [0, 1]."""

    kind: ClassVar[str] = "stack"
    x_label: str
    x: tuple[float, ...]
    names: tuple[str, ...]
    shares: tuple[Numbers, ...]
    main: tuple[str | None, ...] = ()
    """The name that stands out at each point."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of several parts."""

    label: str
    parts: tuple[float, ...]
    role: Role = "other"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars(Section):
    """Horizontal bars; ``parts`` names what each is made of. ``reference``: a length to compare with."""

    kind: ClassVar[str] = "bars"
    unit: str
    parts: tuple[str, ...]
    bars: tuple[Bar, ...]
    reference: tuple[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval; ``group`` heads those that follow it."""

    label: str
    mean: float | None
    low: float | None
    high: float | None
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest(Section):
    """Intervals side by side; ``zero`` is where nothing would differ, ``None`` where there is no such place."""

    kind: ClassVar[str] = "forest"
    x_label: str
    rows: tuple[Interval, ...]
    zero: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Section):
    """Rows of cells, numbers or text; ``strong`` are the rows that stand out."""

    kind: ClassVar[str] = "table"
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    strong: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a text, line by line (``"+"`` added, ``"-"`` removed, ``" "`` kept), and whether it was taken."""

    title: str
    lines: tuple[tuple[str, str], ...]
    accepted: bool
    evidence: tuple[Fact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes(Section):
    """Changes of texts."""

    kind: ClassVar[str] = "changes"
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class State:
    """Where a particle stood after one of its steps: a node of the tree.

    Attributes
    ----------
    id, parent: like ``"p3@5"``, particle p3 after 5 steps.
    lane: the row it is drawn in.
    text: what this step added to the transcript.
    share: its part of the weight, in [0, 1]. weighed: whether it was weighed here, or that is what it had before.
    selected: whether the winner descends from it, or is it.
    fate: what became of it here. why: the same in words, with the reason.
    """

    id: str
    parent: str | None
    particle: str
    step: int
    lane: int
    text: str
    value: float | None
    reward: float | None
    share: float | None
    weighed: bool
    selected: bool
    fate: str
    why: str


@dataclass(frozen=True, slots=True)
class Branch:
    """One particle; usage is its own, since it parted from its parent."""

    name: str
    parent: str | None
    forked_at: int | None
    status: str
    steps: int
    value: float | None
    reward: float | None
    share: float | None
    calls: int
    tokens: int
    cost: float | None
    selected: bool
    error: str | None


@dataclass(frozen=True, slots=True)
class Weighing:
    """One check: who was compared, and who goes on how often (``offspring``; empty where nobody was replaced)."""

    step: int
    particles: tuple[str, ...]
    values: Numbers
    shares: Numbers
    ess: float
    sharpness: float
    offspring: tuple[int, ...]
    withheld: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Genealogy(Section):
    """The tree of a run."""

    kind: ClassVar[str] = "genealogy"
    winner: str | None
    states: tuple[State, ...]
    branches: tuple[Branch, ...]
    weighings: tuple[Weighing, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is shown.

    Attributes
    ----------
    about: what the report is of, in a few words. answer: the plain-language account that comes first.
    facts: what is needed to find or repeat it.
    """

    about: str
    title: str
    answer: tuple[Fact, ...]
    sections: tuple[Section, ...]
    warnings: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``; NaN and infinities are ``None``."""
        return {
            "format": FORMAT,
            "about": self.about,
            "title": self.title,
            "answer": [asdict(fact) for fact in self.answer],
            "warnings": list(self.warnings),
            "facts": [asdict(fact) for fact in self.facts],
            "sections": [{"kind": section.kind, **_finite(asdict(section))} for section in self.sections],
        }


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value
