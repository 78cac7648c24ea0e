"""Rewards that a run's particles are given when it is over, written into its trace.

Nothing can be added to a span that has ended, so each is a span of its own, `amc.reward`, below the one it is about.
Particles are never shown them, so their score has another name than that of the rewards that a run observes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext

from langgraph_amc.runtime.trace_guard import Guard
from langgraph_amc.runtime.tracing import EVALUATOR, kind_of
from langgraph_amc.telemetry import Score, Telemetry, names, spans
from langgraph_amc.telemetry.scores import score_of


class Grades:
    """Writes the true rewards of one run down, a particle at a time.

    Parameters
    ----------
    where: the run's spans (`AMCResult.trace`); ``None`` where it was not traced, and nothing is written.
    telemetry: the run's.
    """

    def __init__(self, where: spans.RunSpans | None, telemetry: Telemetry) -> None:
        self._where = where
        self._telemetry = telemetry
        self._guard = Guard()
        self._open: Span | None = None
        self._scores: list[Score] = []

    @contextmanager
    def rewarding(self, particle: str) -> Iterator[None]:
        """The reward of this particle is asked for."""
        if self._where is None:
            yield
            return
        with self._guard.around(self._rewarding, self._where, particle):
            yield

    def graded(self, particle: str, reward: float | None, error: str | None = None) -> None:
        """Inside `rewarding`: it was given, or is missing because of an error."""
        if (span := self._open) is None or self._where is None:
            return
        with self._guard.caught():
            if error is not None:
                spans.failed(span, kind_of(error))
            if reward is not None:
                self._evaluated(span, self._where.particles[particle], reward)

    def answered(self, particle: str, reward: float | None) -> None:
        """This particle's answer was the run's; everything has been graded, so whoever keeps scores is handed them."""
        with self._guard.caught():
            if self._where is not None and reward is not None:
                span = self._start(self._where.run, particle)
                self._evaluated(span, self._where.run, reward)
                span.end()
            if self._telemetry.scores is not None and self._scores:
                self._telemetry.scores.send(self._scores)

    @contextmanager
    def _rewarding(self, where: spans.RunSpans, particle: str) -> Iterator[None]:
        about, provider = where.particles.get(particle), self._telemetry.tracer_provider
        if about is None:
            with spans.current(spans.unsampled(NonRecordingSpan(where.run)), provider):
                yield
            return
        started = self._open = self._start(about, particle)
        try:
            with spans.ended(started, provider):
                yield
        finally:
            self._open = None

    def _start(self, below: SpanContext, particle: str) -> Span:
        context = trace.set_span_in_context(NonRecordingSpan(below))
        facts = EVALUATOR | {names.PARTICLE_ID: particle}
        return spans.tracer(self._telemetry.tracer_provider).start_span(names.REWARD, context, attributes=facts)

    def _evaluated(self, span: Span, about: SpanContext, reward: float) -> None:
        """The event is on the new span, a viewer's score on the old one, which it can be given to at any time."""
        spans.evaluated(span, names.TRUE_REWARD, reward)
        self._scores.append(score_of(about, names.TRUE_REWARD, reward))
