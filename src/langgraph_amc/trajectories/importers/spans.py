"""The one model of a trace that every format is read into: spans, and scores given to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from langgraph_amc.trajectories.types import Usage

Kind = Literal["llm", "tool", "other"]

TRUNCATED = "truncated content"
REDACTED = "redacted content"
UNKNOWN = "unknown form of messages"
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading a record of another shape than documented may raise; it is counted, never raised further."""


@dataclass(frozen=True, slots=True)
class ParticleOf:
    """What a run of langgraph-amc says of a particle: ``parent`` and where it was cloned, and what became of it."""

    id: str
    parent: str | None = None
    forked_at: int | None = None
    outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """One logged call, whatever the tool that logged it calls it: span, run, observation.

    Attributes
    ----------
    start, end: seconds since the epoch; ``end`` is ``None`` while it runs.
    state_in, state_out: messages of the app's state, or of an update to it; ``None`` where none are logged.
    asked, answered: messages a model was called with, and its answer; of model calls only.
    node, step, pushed: LangGraph node it ran in, the super-step, and whether a ``Send`` started it, so that its
        input is no state; ``None`` and False outside LangGraph's nodes.
    session: thread or session the trace belongs to.
    problem: why messages that it should have are unusable, e.g. `TRUNCATED`.
    summary: whether it only sums up its trace, and counts where nothing else of that is logged.
    particle, run: whose life it is, and the id of the run, where langgraph-amc itself was traced.
    """

    trace: str
    id: str
    parent: str | None
    name: str
    kind: Kind
    start: float
    end: float | None
    state_in: tuple[Any, ...] | None = None
    state_out: tuple[Any, ...] | None = None
    asked: tuple[Any, ...] | None = None
    answered: tuple[Any, ...] | None = None
    node: str | None = None
    step: int | None = None
    pushed: bool = False
    session: str | None = None
    error: str | None = None
    interrupted: bool = False
    usage: Usage | None = None
    problem: str | None = None
    summary: bool = False
    particle: ParticleOf | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """Feedback on a span, or with ``span`` ``None`` on a whole trace (``trace`` then says which).

    ``value`` is what the log has: a number, a bool, or a label.
    """

    key: str
    value: Any
    span: str | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Unusable:
    """A record that could not be read: ``reason`` is one of few, ``where`` an id or a line, never its content."""

    reason: str
    where: str


@dataclass(frozen=True)
class Trace:
    """The spans of one trace as a tree."""

    id: str
    spans: tuple[Span, ...]
    _by_id: dict[str, Span] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {span.id: span for span in self.spans})

    @cached_property
    def _children(self) -> dict[str | None, list[Span]]:
        found: dict[str | None, list[Span]] = defaultdict(list)
        for span in sorted(self.spans, key=lambda s: (s.start, s.end or s.start)):
            found[span.parent].append(span)
        return found

    def parent(self, span: Span) -> Span | None:
        """The span it is part of; ``None`` for a root and where the parent is not in the log."""
        return None if span.parent is None else self._by_id.get(span.parent)

    def tops(self) -> list[Span]:
        """Spans whose parents are not in the log, oldest first."""
        return sorted((s for s in self.spans if self.parent(s) is None), key=lambda s: s.start)

    def below(self, span: Span) -> Iterator[Span]:
        """The span and all below it, parents first, oldest first."""
        todo, seen = [span], set()
        while todo:
            span = todo.pop()
            if span.id in seen:  # a broken log may go in circles
                continue
            seen.add(span.id)
            yield span
            todo.extend(reversed(self._children[span.id]))

    def above(self, span: Span) -> Iterator[Span]:
        """What it is part of, innermost first."""
        seen = {span.id}
        while (up := self.parent(span)) is not None and up.id not in seen:
            seen.add(up.id)
            yield up
            span = up


def traces(spans: Iterable[Span]) -> list[Trace]:
    """Spans put together into their traces, in order of appearance; of two with one id the later counts."""
    grouped: dict[str, dict[str, Span]] = defaultdict(dict)
    for span in spans:
        grouped[span.trace][span.id] = span
    return [
        Trace(name, tuple([s for s in found.values() if not s.summary] or found.values()))
        for name, found in grouped.items()
    ]


def invocations(trace: Trace) -> tuple[list[Span], list[Unusable]]:
    """The spans that are invocations of an app, and the ids of parts whose own root is not in the log.

    A graph is what is right above a span that ran in one of LangGraph's nodes; in traces without nodes, what is at
    the top and has a model call below it, or logs the messages of a state.
    """
    roots: list[Span] = []
    lost: list[Unusable] = []
    for top in trace.tops():
        found = list(_graphs(trace, top)) or [top]
        if top.node is not None or (top.kind != "other" and top.parent is not None):
            lost.append(Unusable("no root", trace.id))
        elif found == [top] and not _talks(trace, top):
            lost.append(Unusable(_problem(trace, top) or "no messages", trace.id))
        else:
            roots.extend(found)
    return roots, list(dict.fromkeys(lost))


def _graphs(trace: Trace, top: Span) -> Iterator[Span]:
    found = {}
    for span in trace.below(top):
        up = trace.parent(span)
        if span.node is not None and up is not None and up.node is None:
            found[up.id] = up
    yield from found.values()


def _talks(trace: Trace, top: Span) -> bool:
    return bool(top.state_in or top.state_out) or any(s.kind == "llm" for s in trace.below(top))


def _problem(trace: Trace, top: Span) -> str | None:
    return next((s.problem for s in trace.below(top) if s.problem), None)


def is_sublist(part: Sequence[Any], whole: Sequence[Any]) -> int | None:
    """Where ``part`` stands in ``whole`` for the last time, ``None`` if nowhere or if it is empty."""
    size = len(part)
    starts = range(len(whole) - size, -1, -1) if size else range(0)
    return next((start for start in starts if list(whole[start : start + size]) == list(part)), None)
