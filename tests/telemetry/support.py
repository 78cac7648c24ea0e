"""Apps to trace, and what every trace has to be, whoever looks at it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from langchain.agents import create_agent
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import langgraph_amc as amc
from langgraph_amc.telemetry import names
from tests.support.graphs import ScriptedModel, add
from tests.support.otlp_server import OTLPServer, WireSpan

SECRET = "the treasure lies under the oak"
INPUT: dict[str, Any] = {"messages": [("user", SECRET)]}
STEPS = 4


class Model(ScriptedModel):
    """Has a name, without which some instrumentors pass over its calls."""

    model: str = "scripted"


def agent(rounds: int = STEPS - 1, **options: Any) -> Any:
    """A model that calls tools for so many rounds, and answers."""
    return create_agent(Model(rounds=rounds), [add], **options)


def noise(seed: int = 0) -> Any:
    """V that knows nothing, so that resampling branches and prunes."""
    rng = np.random.default_rng(seed)
    return lambda transcripts: rng.random(len(transcripts))


def wrapped(app: Any = None, **settings: Any) -> Any:
    """The app as four particles, resampled at every step."""
    given = {"particles": 4, "value": noise(), "resample": amc.every(1), "seed": 1, "effects": {"*": "pure"}}
    return amc.wrap(app or agent(), **{**given, **settings})


@contextmanager
def exporting(**resource: str) -> Iterator[tuple[OTLPServer, TracerProvider]]:
    """A receiver, and a provider whose spans have arrived there behind the block."""
    with OTLPServer() as server:
        provider = TracerProvider(
            resource=Resource.create({"service.name": "test", **resource}), shutdown_on_exit=False
        )
        exporter = OTLPSpanExporter(endpoint=server.traces)
        provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=65536, schedule_delay_millis=50))
        try:
            yield server, provider
        finally:
            provider.shutdown()


@contextmanager
def nothing_leaks(caplog: Any) -> Iterator[None]:
    """Behind the block no span is current, and OpenTelemetry has not complained."""
    before = trace.get_current_span()
    with caplog.at_level(logging.WARNING, logger="opentelemetry"):
        yield
        assert trace.get_current_span() is before
        assert [r.getMessage() for r in caplog.records if r.name.startswith("opentelemetry")] == []


def check_trace(spans: Sequence[WireSpan]) -> WireSpan:
    """One trace with known parents and links, in which everything has ended when its root does; returns the root."""
    by_id = {span.id: span for span in spans}
    assert len(by_id) == len(spans)
    roots = [span for span in spans if not span.parent]
    assert len(roots) == 1, [span.name for span in roots]
    assert {span.trace for span in spans} == {roots[0].trace}
    assert [span.name for span in spans if span.parent and span.parent not in by_id] == []
    for span in spans:
        assert span.start <= span.end <= roots[0].end, span.name
        for link in span.links:
            assert (link.trace, link.span in by_id) == (roots[0].trace, True), span.name
            assert by_id[link.span].name.startswith((names.SEGMENT, names.PARTICLE)), span.name
    return roots[0]


def named(spans: Sequence[WireSpan], name: str) -> list[WireSpan]:
    """Spans of a kind, by the first word of their names."""
    return [span for span in spans if span.name.split(" ")[0] == name]


def above(spans: Sequence[WireSpan], span: WireSpan) -> list[str]:
    """Names of what a span lies below, innermost first."""
    by_id = {s.id: s for s in spans}
    found = []
    while span.parent in by_id:
        span = by_id[span.parent]
        found.append(span.name)
    return found
