"""Opening the trace of a run: the span of all of it, below what is current or as a trace of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext

from langgraph_amc.runtime.lineages import CHAIN
from langgraph_amc.runtime.tracing import RunTrace
from langgraph_amc.telemetry import Telemetry, names, spans


class Hidden:
    """A run that somebody has decided not to sample: what others trace inside belongs to it, and is left out."""

    def __init__(self, root: Span) -> None:
        self.root = root

    def stepping(self, particle: str) -> AbstractContextManager[None]:
        return spans.current(self.root)

    def judging(self, particles: Sequence[str]) -> AbstractContextManager[None]:
        return spans.current(self.root)

    def rewarding(self, particle: str) -> AbstractContextManager[None]:
        return spans.current(self.root)

    def closing(self, particle: str) -> AbstractContextManager[None]:
        return spans.current(self.root)

    def where(self) -> None:
        """Nowhere."""

    def effect(self, particle: str, tool: str, key: str) -> AbstractContextManager[None]:
        return spans.current(self.root)


def open_trace(telemetry: Telemetry, name: str, input: Any, facts: Mapping[str, Any]) -> RunTrace | Hidden | None:
    """Start the span of a run below the one that is current; ``None`` where nobody traces.

    ``facts``: attributes known at the start, by which samplers may choose.
    """
    around = spans.here()
    alone = spans.own_trace.get()
    spans.own_trace.set(False)  # runs inside this one are parts of it
    root = spans.tracer(telemetry.tracer_provider).start_span(
        f"{names.RUN} {name}",
        context=Context() if alone else None,
        attributes=CHAIN
        | {names.OPERATION: names.RUN, names.WORKFLOW: name, names.AGENT: name}
        | spans.given(facts)
        | _apart_from(around if alone else None),
        links=[spans.link(around, "evaluation")] if alone and around.is_valid else (),
    )
    if root.is_recording():
        return RunTrace(root, telemetry, input)
    own = root.get_span_context()
    return Hidden(root) if own.is_valid and own.span_id != around.span_id else None


def _apart_from(around: SpanContext | None) -> dict[str, Any]:
    """What the link to the span around says, for viewers that drop links."""
    if around is None or not around.is_valid:
        return {}
    return {names.LINKED_TRACE: f"{around.trace_id:032x}", names.LINKED_SPAN: f"{around.span_id:016x}"}
