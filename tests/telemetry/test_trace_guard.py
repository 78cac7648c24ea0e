"""What the user has set up for tracing can break, and the run does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Sampler

import langgraph_amc as amc
from langgraph_amc.runtime.trace_guard import Guarded

from .support import INPUT, wrapped


class Starts(SpanProcessor):
    """Raises when a span starts, from the given one on."""

    def __init__(self, good: int = 0) -> None:
        self.good = good

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.good -= 1
        if self.good < 0:
            raise RuntimeError("start")


class Ends(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("end")


class Samples(Sampler):
    def should_sample(self, *args: Any, **more: Any) -> Any:
        raise RuntimeError("sample")

    def get_description(self) -> str:
        return "broken"


class Exports(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        raise RuntimeError("export")


def tracing(*processors: SpanProcessor, sampler: Sampler | None = None) -> amc.Telemetry:
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    for processor in processors:
        provider.add_span_processor(processor)
    return amc.Telemetry(tracer_provider=provider)


def as_without(found: amc.AMCResult) -> bool:
    plain = wrapped().invoke(INPUT).amc
    return (found.winner.name, found.checks) == (plain.winner.name, plain.checks)


@pytest.mark.parametrize(
    "telemetry",
    [tracing(Starts()), tracing(Starts(9)), tracing(Ends()), tracing(sampler=Samples())],
    ids=["start", "later", "end", "sampler"],
)
def test_a_processor_or_sampler_that_raises_costs_the_trace_and_not_the_run(telemetry: amc.Telemetry) -> None:
    with pytest.warns(RuntimeWarning, match="raised RuntimeError.*; the run goes on without it") as warned:
        found = wrapped(telemetry=telemetry).invoke(INPUT).amc
    ours = [w for w in warned if "goes on without it" in str(w.message)]
    assert len(ours) <= 2, "once for what makes spans current, once for what writes events down"
    assert as_without(found)


@pytest.mark.parametrize("kind", [SimpleSpanProcessor, BatchSpanProcessor])
def test_an_exporter_that_raises_is_the_processors_own_affair(kind: Any) -> None:
    processor = kind(Exports())
    assert as_without(wrapped(telemetry=tracing(processor)).invoke(INPUT).amc)
    processor.shutdown()  # it complains here, and not in whatever test runs when its time is up


def test_errors_of_what_is_traced_go_through_and_are_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    seen: list[BaseException] = []

    class Spans:
        @contextmanager
        def stepping(self, particle: str) -> Iterator[None]:
            try:
                yield
            except BaseException as error:
                seen.append(error)
                raise

        closing = judging = rewarding = effect = stepping

    broken = KeyError("its own")
    with pytest.raises(KeyError) as raised, Guarded(Spans()).stepping("p0"):
        raise broken
    assert seen == [broken]
    assert raised.value is broken
    assert not [w for w in recwarn.list if "goes on without it" in str(w.message)]
