"""The spans of a run's particles: one from birth to end, and one from each check to the next.

A segment's span waits for its weight: it is ended when the particle has been weighed, with the time at which it was
over. A clone's spans link to the segment that its parent ended at where the clone was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.trace import Link, Span, SpanContext

from langgraph_amc.telemetry import names, spans

CHAIN: dict[str, Any] = {names.KIND: "CHAIN"}
Start = Callable[[str, Span | None, Mapping[str, Any], Sequence[Link]], Span]
"""Starts a span: its name, parent (``None``: the run), attributes and links."""


@dataclass(slots=True)
class Segment:
    """``ended``: nanoseconds since the epoch; ``None`` while the particle runs."""

    span: Span
    outcome: str = "survived"
    ended: int | None = None
    weighed: bool = False


@dataclass(slots=True)
class Life:
    """``links``: where the particle goes on from, for its first segment. ``facts``: attributes of all its spans."""

    span: Span
    links: tuple[Link, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    traced: bool = True
    over: bool = False


class Lineages:
    """Starts and ends the spans of particles; not safe for threads by itself.

    Parameters
    ----------
    hidden: is made current where a particle is not traced.
    most: how many particles are traced at a time; ``None``: all.
    """

    def __init__(self, start: Start, hidden: Span, most: int | None) -> None:
        self._start = start
        self._hidden = hidden
        self._most = most
        self._lives: dict[str, Life] = {}
        self._segments: dict[str, Segment] = {}
        self._last: dict[str, SpanContext] = {}
        self._at: dict[tuple[str, int], SpanContext] = {}
        """Segments by their particles and the boundaries passed in them."""

    def born(self, particle: str, parent: str | None, boundary: int) -> None:
        """A founder, or a clone of a particle (``p3@2``: of an earlier state) as it stood at a boundary."""
        facts: dict[str, Any] = {names.GRAPH_NODE: particle}
        links: tuple[Link, ...] = ()
        if parent is not None:
            name = parent.partition("@")[0]
            facts |= {names.PARENT_ID: name, names.FORKED_AT: boundary, names.GRAPH_PARENT: name}
            source = self._at.get((name, boundary)) or self._last.get(name)
            if source is not None:
                links = (spans.link(source, "ancestor", **{names.PARTICLE_ID: name}),)
        self._live(particle, links, facts)

    def alive(self, particle: str) -> Life | None:
        """The particle that is about to run on; one that had ended goes on behind its effects."""
        life = self._lives.get(particle)
        if life is not None and life.over:
            links = (spans.link(self._last[particle], "continues"),) if particle in self._last else ()
            life = self._live(particle, links, life.facts)
        return life

    def traced(self, particle: str) -> Span | None:
        """The span of a particle, where it has one and it has not ended."""
        life = self._lives.get(particle)
        return life.span if life is not None and life.traced and not life.over else None

    def traced_all(self) -> dict[str, SpanContext]:
        """Of every particle that was traced, its last span."""
        return {name: life.span.get_span_context() for name, life in self._lives.items() if life.traced}

    def last(self, particle: str) -> Span | None:
        """The span of a particle, ended or not, or what hides it."""
        life = self._lives.get(particle)
        return None if life is None else life.span

    def segment(self, particle: str) -> Segment | None:
        """The segment of a particle that runs or waits for its weight."""
        return self._segments.get(particle)

    def open(self, particle: str, life: Life, generation: Span | None, number: int) -> Segment:
        """The particle runs on from here."""
        self.close(particle)
        facts = CHAIN | life.facts | {names.PARTICLE_ID: particle, names.GENERATION_NUMBER: number}
        span = self._start(f"{names.SEGMENT} {particle}", generation, facts, life.links)
        life.links = ()
        self._last[particle] = span.get_span_context()
        segment = self._segments[particle] = Segment(span)
        return segment

    def passed(self, particle: str, boundary: int) -> Span | None:
        """The particle has come to a boundary; the span of the segment it is in."""
        segment = self._segments.get(particle)
        if segment is None:
            return None
        self._at[particle, boundary] = segment.span.get_span_context()
        return segment.span

    def close(self, particle: str, outcome: str | None = None) -> None:
        """End a particle's segment, at the time at which it was over."""
        segment = self._segments.pop(particle, None)
        if segment is not None:
            segment.span.set_attribute(names.OUTCOME, outcome or segment.outcome)
            segment.span.end(segment.ended)

    def close_weighed(self) -> None:
        """End the segments of all who have been weighed; who is late goes on in his."""
        for particle in [name for name, segment in self._segments.items() if segment.weighed]:
            self.close(particle)

    def over(self, particle: str, outcome: str, facts: Mapping[str, Any]) -> None:
        """The end of a particle, and of its segment."""
        self.close(particle, outcome)
        life = self._lives.get(particle)
        if life is None or life.over:
            return
        life.over = True
        if life.traced:
            life.span.set_attributes({names.OUTCOME: outcome, **facts})
            life.span.end()

    def all_over(self, outcome: str) -> None:
        """Whoever has not ended does so with the run."""
        for particle in list(self._segments):
            self.close(particle, outcome)
        for particle in list(self._lives):
            self.over(particle, outcome, {})

    def _live(self, particle: str, links: tuple[Link, ...], facts: dict[str, Any]) -> Life:
        traced = self._most is None or sum(x.traced and not x.over for x in self._lives.values()) < self._most
        span = self._hidden
        if traced:
            about = CHAIN | {names.PARTICLE_ID: particle} | facts
            span = self._start(f"{names.PARTICLE} {particle}", None, about, links)
        life = self._lives[particle] = Life(span, links, facts, traced)
        return life


@contextmanager
def timed(segment: Segment | None, broken_off: tuple[type[BaseException], ...]) -> Iterator[None]:
    """Note when a segment is over, and how."""
    outcome = "survived"
    try:
        yield
    except broken_off:
        outcome = "cancelled"
        raise
    except BaseException:
        outcome = "abandoned"
        raise
    finally:
        if segment is not None:
            segment.outcome, segment.ended = outcome, time.time_ns()
