"""A processor that lets through whoever survives, and what it is not asked to judge."""

from __future__ import annotations

from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import langgraph_amc as amc
from langgraph_amc.telemetry import SurvivorsOnly, names

from .support import INPUT, agent, wrapped


def test_pruned_particles_without_descendants_are_left_out() -> None:
    kept, everything = InMemorySpanExporter(), InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SurvivorsOnly(SimpleSpanProcessor(kept)))
    provider.add_span_processor(SimpleSpanProcessor(everything))
    instrumentor = LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        app = wrapped(agent(), telemetry=amc.Telemetry(tracer_provider=provider))
        with provider.get_tracer("user").start_as_current_span("request"):
            app.invoke(INPUT)
    finally:
        instrumentor.uninstrument()
    result = amc.last_run(app)
    survivors = {name for p in result.particles for name in result.lineage(p.name)}
    assert survivors < set(result.ancestors)
    spans = kept.get_finished_spans()
    assert particles(spans, names.PARTICLE) == survivors
    assert particles(spans, names.SEGMENT) == survivors
    ids = {s.context.span_id for s in spans if s.context is not None}
    assert all(s.parent is None or s.parent.span_id in ids for s in spans)
    calls = sum(t.usage.calls for t in result.trajectories if t.particle in survivors)
    assert sum(s.name == "Model" for s in spans) == calls
    around = ("request", names.RUN, names.GENERATION, names.EVALUATE, names.RESAMPLE)
    told = [s.name for s in everything.get_finished_spans() if s.name.startswith(around)]
    assert sorted(told) == sorted(s.name for s in spans if s.name.startswith(around))


def test_what_has_not_ended_is_not_lost() -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SurvivorsOnly(SimpleSpanProcessor(kept)))
    tracer = provider.get_tracer("user")
    with tracer.start_as_current_span("alone"):
        pass
    run = tracer.start_span("invoke_workflow x", attributes={names.RUN_ID: "r"})
    amc_span = tracer.start_span("inside", context=None)
    amc_span.end()
    assert {s.name for s in kept.get_finished_spans()} == {"alone", "inside"}
    assert provider.force_flush()
    run.end()
    assert {s.name for s in kept.get_finished_spans()} == {"alone", "inside", "invoke_workflow x"}


def particles(spans: tuple[ReadableSpan, ...], kind: str) -> set[str]:
    return {str((s.attributes or {})[names.PARTICLE_ID]) for s in spans if s.name.startswith(kind + " ")}
