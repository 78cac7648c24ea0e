"""One run as a trace: a callback of its events, and what makes spans current while things happen (docs/tracing.md).

Nothing is current but for the block it belongs to, so that no span leaks out of a generator. What a particle does lies
below its `amc.particle`, from its birth to its end, since LangGraph runs it as one stream; what was found out about it
at each check lies below the `amc.generation`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from langgraph.errors import GraphBubbleUp
from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.trace import Span

from langgraph_amc.runtime import watching
from langgraph_amc.runtime.lineages import CHAIN, Lineages, timed
from langgraph_amc.runtime.showing import gen_ai_messages
from langgraph_amc.telemetry import Score, Telemetry, captures_content, names, spans
from langgraph_amc.telemetry.scores import score_of

EVALUATOR: dict[str, Any] = {names.KIND: "EVALUATOR"}
TOOL: dict[str, Any] = {names.KIND: "TOOL"}
_BROKEN_OFF = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


class RunTrace:
    """The trace of one run."""

    def __init__(self, root: Span, telemetry: Telemetry, input: Any) -> None:
        self.root = root
        self._provider = telemetry.tracer_provider
        self._tracer = spans.tracer(telemetry.tracer_provider)
        self._detail = telemetry.detail
        self._sink = telemetry.scores
        self._scores: list[Score] = []
        self._around = otel.get_current()
        self._hidden = spans.unsampled(root)
        self._particles = Lineages(self._start, self._hidden, telemetry.particles)
        self._content = captures_content()
        self._lock = threading.RLock()
        self._generation: Span | None = None
        self._number = -1
        self._resampling: Span | None = None
        self._judging: Span | None = None
        self._value: str = "value"
        if self._content and (asked := gen_ai_messages(input)):
            root.set_attribute(names.INPUT_MESSAGES, asked)

    def __call__(self, event: watching.RunEvent) -> None:
        """Write down what happened."""
        with self._lock:
            match event:
                case watching.RunStarted():
                    self._value = event.value or "value"
                case watching.ParticleStarted():
                    if self._detail == "particle":
                        self._particles.born(event.particle, event.parent, event.boundary)
                case watching.GenerationStarted():
                    self._next_generation(event)
                case watching.ParticleStepped():
                    self._stepped(event)
                case watching.Scored():
                    self._scored(event)
                case watching.Weighed():
                    self._weighed(event)
                case watching.Resampled():
                    self._resampled(event)
                case watching.Withheld():
                    self._resample(event.boundary, {names.PERFORMED: False, names.WITHHELD: event.reason})
                case watching.ParticlePruned():
                    self._particles.over(event.particle, "pruned", _usage(event.usage))
                case watching.ParticleEnded():
                    self._ended(event)
                case watching.EffectSettled():
                    self._settled(event)
                case watching.ParticleChosen():
                    self._close_generation()
                case watching.RunEnded():
                    self._end(event)

    # -- current while things happen -----------------------------------------------------------------

    @contextmanager
    def stepping(self, particle: str) -> Iterator[None]:
        """See `watching.Spans`."""
        with self._lock:
            life = self._particles.alive(particle)
            segment = None
            if life is not None and life.traced:
                segment = self._particles.open(particle, life, self._generation, max(self._number, 0))
        here = self._hidden if life is None else life.span
        with timed(segment, _BROKEN_OFF), spans.current(here, self._provider):
            yield

    def closing(self, particle: str) -> AbstractContextManager[None]:
        """See `watching.Spans`; instrumentors may look for a parent only when they are told of an end."""
        life = self._particles.last(particle)
        return spans.current(self._hidden if life is None else life, self._provider)

    @contextmanager
    def judging(self, particles: Sequence[str]) -> Iterator[None]:
        """See `watching.Spans`."""
        if self._detail == "run":
            with spans.current(self._hidden):
                yield
            return
        facts = {names.VALUE_FUNCTION: self._value, names.BATCH: len(particles)}
        self._judging = self._start(names.EVALUATE, self._generation, EVALUATOR | facts)
        with spans.ended(self._judging, self._provider):
            yield

    @contextmanager
    def rewarding(self, particle: str) -> Iterator[None]:
        """See `watching.Spans`."""
        life = self._particles.traced(particle)
        if life is None:
            with spans.current(self._hidden):
                yield
            return
        started = self._start(names.REWARD, life, EVALUATOR | {names.PARTICLE_ID: particle})
        with spans.ended(started, self._provider):
            yield

    @contextmanager
    def effect(self, particle: str, tool: str, key: str) -> Iterator[None]:
        """See `watching.Spans`; it lies below whatever is current in the tool's node."""
        facts = {names.EFFECT_TOOL: tool, names.EFFECT_KEY: key, names.PARTICLE_ID: particle}
        around = trace.get_current_span() if self._detail == "particle" else self.root
        span = self._start(f"{names.EFFECT} {tool}", around, TOOL | facts)
        span.set_attribute(names.EFFECT_POLICY, "commit")
        state = "committed"
        try:
            with spans.current(span, self._provider):
                yield
        except GraphBubbleUp:  # it asks a person
            state = "interrupted"
            raise
        except Exception as error:
            state = "failed"
            spans.failed(span, error)
            raise
        except BaseException:
            state = "unknown"
            raise
        finally:
            span.set_attribute(names.EFFECT_STATE, state)
            span.end()

    def where(self) -> spans.RunSpans:
        """See `watching.Spans`."""
        return spans.RunSpans(self.root.get_span_context(), self._particles.traced_all())

    # -- particles -----------------------------------------------------------------------------------

    def _stepped(self, event: watching.ParticleStepped) -> None:
        segment = self._particles.passed(event.particle, event.boundary)
        if segment is not None:
            segment.set_attributes({names.BOUNDARY: event.boundary, names.NODES: event.nodes})
            if self._content and event.action:
                segment.set_attribute(names.ACTION, event.action)

    def _ended(self, event: watching.ParticleEnded) -> None:
        facts = spans.given({names.RETURN: event.reward, names.VALUE: event.value})
        facts |= spans.log_weight(event.log_weight)
        segment, life = self._particles.segment(event.particle), self._particles.traced(event.particle)
        for span in (None if segment is None else segment.span, life):
            if span is not None:
                span.set_attributes(facts)
                if event.status == "failed":
                    spans.failed(span, kind_of(event.error))
        if life is not None and event.reward is not None:
            self._evaluated(life, "reward", event.reward)
        self._particles.over(event.particle, event.status, _usage(event.usage))

    # -- generations ---------------------------------------------------------------------------------

    def _next_generation(self, event: watching.GenerationStarted) -> None:
        self._close_generation()
        if self._detail == "run":
            return
        self._number = event.generation
        facts = {names.GENERATION_NUMBER: event.generation, names.BOUNDARY: event.boundary}
        self._generation = self._start(
            names.GENERATION, self.root, CHAIN | facts | {names.PARTICLES: len(event.particles)}
        )

    def _close_generation(self) -> None:
        self._particles.close_weighed()
        for span in (self._resampling, self._generation):
            if span is not None:
                span.end()
        self._resampling = self._generation = None

    def _scored(self, event: watching.Scored) -> None:
        missing = [p for p, v in zip(event.particles, event.values, strict=True) if v != v]
        known = {p: v for p, v in zip(event.particles, event.values, strict=True) if v == v}
        for particle, value in known.items():
            if (segment := self._particles.segment(particle)) is not None:
                segment.span.set_attribute(names.VALUE, value)
                self._evaluated(segment.span, "value", value, segment.ended)
        if self._judging is not None:
            found: dict[str, Any] = {names.BATCH_PARTICLES: list(known), names.VALUES: list(known.values())}
            found |= {names.MISSING: missing}
            self._judging.set_attributes({k: v for k, v in found.items() if v} | _usage(event.usage))

    def _weighed(self, event: watching.Weighed) -> None:
        for particle, weight in zip(event.particles, event.log_weights, strict=True):
            if (segment := self._particles.segment(particle)) is not None:
                segment.weighed = True
                segment.span.set_attributes(spans.log_weight(weight))
        if self._generation is not None and event.live:
            found = {names.ESS_RATIO: event.ess, names.ESS: event.ess * event.live, names.SHARPNESS: event.sharpness}
            self._generation.set_attributes(spans.given(found))

    def _resampled(self, event: watching.Resampled) -> None:
        possible = {p: w for p, w in zip(event.particles, event.log_weights, strict=True) if w > -float("inf")}
        found = {
            names.PERFORMED: True,
            names.ESS_RATIO: event.ess,
            names.ANCESTORS: [event.particles[i] for i in event.ancestors],
            names.UNIQUE: len(set(event.ancestors)),
            names.COMPARED: list(possible),
            names.LOG_WEIGHTS: list(possible.values()),
            names.IMPOSSIBLE: [p for p in event.particles if p not in possible] or None,
            names.LOG_WEIGHT: event.log_weight,
        }
        self._resample(event.boundary, found)

    def _resample(self, boundary: int, facts: Mapping[str, Any]) -> None:
        if self._generation is not None:
            self._resampling = self._start(
                names.RESAMPLE, self._generation, CHAIN | {names.BOUNDARY: boundary} | spans.given(facts)
            )

    # -- the rest ------------------------------------------------------------------------------------

    def _settled(self, event: watching.EffectSettled) -> None:
        """Effects that happen have spans of their own, see `effect`; these have not happened."""
        record = event.record
        if record.state not in ("held", "dropped", "denied"):
            return
        life = self._particles.last(record.particle)  # or over: what it held is dropped when another is chosen
        if self._detail == "run" or life is self._hidden:
            return
        facts = {names.EFFECT_TOOL: record.tool, names.EFFECT_KEY: record.key, names.PARTICLE_ID: record.particle}
        facts |= {names.EFFECT_STATE: record.state, names.EFFECT_POLICY: record.policy}
        self._start(f"{names.EFFECT} {record.tool}", life, TOOL | facts).end()

    def _end(self, event: watching.RunEnded) -> None:
        outcome = "cancelled" if event.broken_off else "abandoned"
        self._particles.all_over(outcome)
        self._close_generation()
        if event.result is not None:
            self._answered(event.result)
        else:
            self.root.set_attribute(names.OUTCOME, outcome)
            if not event.broken_off:
                spans.failed(self.root, kind_of(event.error))
        self.root.end()
        if self._sink is not None and self._scores:
            self._sink.send(self._scores)

    def _answered(self, result: Any) -> None:
        winner = result.winner
        found = {names.BEST: winner.name, names.LOG_EVIDENCE: result.log_evidence, names.STOPPED: result.stopped}
        found |= {names.RETURN: winner.reward, names.VALUE: winner.value, names.OUTCOME: winner.trajectory.status}
        found |= {names.WINNER_TOKENS: winner.trajectory.usage.tokens, **_usage(result.usage)}
        self.root.set_attributes(spans.given(found))
        if self._content and (said := gen_ai_messages(winner.output)):
            self.root.set_attribute(names.OUTPUT_MESSAGES, said)
        for name, value in (("value", winner.value), ("reward", winner.reward)):
            if value is not None:
                self._evaluated(self.root, name, value)
        if winner.trajectory.status == "failed":
            spans.failed(self.root, kind_of(winner.trajectory.error))

    def _start(self, name: str, parent: Span | None, facts: Mapping[str, Any], links: Sequence[Any] = ()) -> Span:
        context = trace.set_span_in_context(parent or self.root, self._around)
        return self._tracer.start_span(name, context, attributes=spans.given(facts), links=links)

    def _evaluated(self, span: Span, name: str, value: float, when: int | None = None) -> None:
        """Tell of a score, as the conventions have it and to the viewer that keeps scores."""
        spans.evaluated(span, name, value, when)
        if self._sink is not None:
            self._scores.append(score_of(span.get_span_context(), name, value))


def kind_of(error: str | None) -> str:
    """The type of an error, of which type and message are told."""
    return (error or "error").partition(":")[0]


def _usage(usage: Any) -> dict[str, Any]:
    counted = {names.CALLS: usage.calls, names.COST: usage.cost}
    return spans.given({**counted, names.INPUT_TOKENS: usage.input_tokens, names.OUTPUT_TOKENS: usage.output_tokens})
