"""Spans as they are used here: current for a block of a coroutine or function, never across a generator's yield.

A span that stays current while a generator is suspended leaks into whoever iterates it. So what lives longer than one
block is started and ended by hand, and only `current` for the blocks that belong to it. Without an SDK everything here
is OpenTelemetry's own no-op.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.span import TraceFlags

from langgraph_amc.telemetry import names

own_trace: ContextVar[bool] = ContextVar("amc_own_trace", default=False)
"""Set where the next run is to be a trace of its own, linked to the span around it: one of many of an evaluation."""


@dataclass(frozen=True, slots=True)
class RunSpans:
    """Where the trace of a run is, for what is found out about it later: the span of it all, and of its particles.

    ``particles``: by name, those that were traced.
    """

    run: SpanContext
    particles: Mapping[str, SpanContext]


_provider: ContextVar[TracerProvider | None] = ContextVar("amc_tracer_provider", default=None)
"""That of the run around, where it has one of its own."""


def tracer(provider: TracerProvider | None = None) -> Tracer:
    """The tracer of this library: of this provider, else of that of the run around, else of the global one."""
    provider = provider or _provider.get()
    return _global_tracer() if provider is None else _tracer(provider)


@functools.cache
def _global_tracer() -> Tracer:
    return _tracer(None)  # it finds a provider that is set later


def _tracer(provider: TracerProvider | None) -> Tracer:
    return trace.get_tracer(names.SCOPE, version("langgraph-amc"), provider)


@contextmanager
def span(name: str, attributes: Mapping[str, Any] | None = None, *, links: Sequence[Link] = ()) -> Iterator[Span]:
    """A span around a block of a function or coroutine; it is the parent of those started inside.

    An error marks it with its type; its message may hold content and is left out. A cancellation is no error.
    """
    with ended(tracer().start_span(name, attributes=given(attributes or {}), links=links)) as started:
        yield started


def past(name: str, seconds: float, attributes: Mapping[str, Any]) -> None:
    """A span of what has just ended and took so long."""
    now = time.time_ns()
    tracer().start_span(name, attributes=given(attributes), start_time=now - int(seconds * 1e9)).end(now)


@contextmanager
def ended(started: Span, provider: TracerProvider | None = None) -> Iterator[Span]:
    """Make a span current for a block and end it behind it."""
    try:
        with current(started, provider):
            yield started
    except Exception as error:
        failed(started, error)
        raise
    finally:
        started.end()


@contextmanager
def current(started: Span, provider: TracerProvider | None = None) -> Iterator[None]:
    """Make a span current for a block, and its provider that of spans inside; it goes on after it."""
    token = otel.attach(trace.set_span_in_context(started))
    inside = _provider.set(provider or _provider.get())
    try:
        yield
    finally:
        _provider.reset(inside)
        otel.detach(token)


def here() -> SpanContext:
    """The span that is current."""
    return trace.get_current_span().get_span_context()


def unsampled(parent: Span) -> Span:
    """What to make current where everything that others trace inside is to be left out."""
    around = parent.get_span_context()
    return NonRecordingSpan(SpanContext(around.trace_id, around.span_id, False, TraceFlags(TraceFlags.DEFAULT)))


def evaluated(on: Span, name: str, score: float, when: int | None = None) -> None:
    """Tell of a score, as the conventions have it; ``when``: nanoseconds since the epoch, by default now."""
    on.add_event(names.EVALUATION, {names.EVALUATION_NAME: name, names.EVALUATION_SCORE: float(score)}, when)


def failed(started: Span, error: BaseException | str) -> None:
    """Mark a span as an error of this type."""
    kind = error if isinstance(error, str) else type(error).__qualname__
    started.set_attribute(names.ERROR, kind)
    started.set_status(Status(StatusCode.ERROR, kind))


def link(to: SpanContext, kind: str, **more: Any) -> Link:
    """A link that says what it stands for."""
    return Link(to, {names.LINK_TYPE: kind, **more})


def given(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that are None or no finite number, which viewers drop or choke on."""
    return {
        k: v for k, v in attributes.items() if v is not None and not (isinstance(v, float) and not math.isfinite(v))
    }


def log_weight(value: float) -> dict[str, Any]:
    """A log-weight, or that it is not finite: the particle is impossible."""
    finite = math.isfinite(value)
    return {names.LOG_WEIGHT_FINITE: finite, **({names.LOG_WEIGHT: value} if finite else {})}
