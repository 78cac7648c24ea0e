"""Other people's instrumentors: their spans lie below our particles, whatever drives the app and however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from langchain_core.tracers.langchain import LangChainTracer
from langsmith import Client
from openinference.instrumentation.langchain import LangChainInstrumentor as OpenInference
from opentelemetry import trace
from opentelemetry.instrumentation.genai.langchain import LangChainInstrumentor as Official
from opentelemetry.sdk.trace import TracerProvider

import langgraph_amc as amc
from langgraph_amc.telemetry import names
from tests.support.openai_server import OpenAIServer
from tests.support.otlp_server import WireSpan

from .support import INPUT, above, agent, check_trace, exporting, named, nothing_leaks, wrapped

Config = dict[str, Any]
Instrumentor = Callable[[TracerProvider], AbstractContextManager[Config]]


@contextmanager
def openinference(provider: TracerProvider) -> Iterator[Config]:
    yield from _instrumented(OpenInference(), provider)


@contextmanager
def official(provider: TracerProvider) -> Iterator[Config]:
    yield from _instrumented(Official(), provider)


def _instrumented(instrumentor: Any, provider: TracerProvider) -> Iterator[Config]:
    instrumentor.instrument(tracer_provider=provider)
    try:
        yield {}
    finally:
        instrumentor.uninstrument()


@contextmanager
def langsmith(provider: TracerProvider) -> Iterator[Config]:
    """LangSmith in its OpenTelemetry mode: nothing goes to its own server."""
    client = Client(
        api_url="http://127.0.0.1:9", api_key="none", tracing_mode="otel", otel_tracer_provider=provider, info={}
    )
    try:
        yield {"callbacks": [LangChainTracer(client=client)]}
    finally:
        client.flush()
        client.cleanup()


def threads(app: Any, config: Config) -> None:
    app.invoke(INPUT, config)


def on_a_loop(app: Any, config: Config) -> None:
    asyncio.run(app.ainvoke(INPUT, config))


def alone(app: Any, config: Config) -> None:
    app.invoke(INPUT, config)


def closed(app: Any, config: Config) -> None:
    events = app.stream(INPUT, config, stream_mode="values")
    next(events)
    events.close()


def forgotten(app: Any, config: Config) -> None:
    async def run() -> None:
        async for _ in app.astream(INPUT, config, stream_mode="values"):
            break
        await asyncio.sleep(0.05)  # the loop closes what is forgotten
        assert not trace.get_current_span().is_recording()

    asyncio.run(run())


MODELS = {openinference: "Model", official: "chat", langsmith: "Model"}


@pytest.mark.parametrize("run", [threads, on_a_loop, alone, closed, forgotten])
@pytest.mark.parametrize("instrumentor", [openinference, official, langsmith])
def test_their_spans_lie_below_our_particles(
    instrumentor: Instrumentor, run: Callable[[Any, Config], None], caplog: pytest.LogCaptureFixture
) -> None:
    with nothing_leaks(caplog), exporting() as (server, provider), instrumentor(provider) as config:
        settings: dict[str, Any] = {"particles": 1, "value": None} if run is alone else {}
        app = wrapped(agent(), telemetry=amc.Telemetry(tracer_provider=provider), **settings)
        run(app, config)
    check_trace(server.spans)
    theirs = [span for span in server.spans if span.scope != names.SCOPE]
    calls = [span for span in theirs if span.name.startswith(MODELS[instrumentor])]
    assert calls
    for span in theirs:
        ours = [name for name in above(server.spans, span) if name.startswith(names.PARTICLE)]
        assert len(ours) == 1, span.name
    assert not any(span.error for span in server.spans if span.scope == names.SCOPE)
    if run in (threads, on_a_loop):
        result = amc.last_run(app)
        by_particle = {
            name: sum(f"{names.PARTICLE} {name}" in above(server.spans, s) for s in calls) for name in result.ancestors
        }
        # one span for each model call, below the particle that made it: nothing is counted twice
        assert by_particle == {t.particle: t.usage.calls for t in result.trajectories}
        pruned = {t.particle for t in result.trajectories if t.status == "pruned"}
        assert pruned
        red = {name for s in theirs if s.error for name in above(server.spans, s) if name.startswith(names.PARTICLE)}
        if instrumentor is official and run is on_a_loop:  # docs/tracing.md says so
            assert red == {f"{names.PARTICLE} {name}" for name in pruned}
        else:
            assert red == set()


def test_sessions_are_one() -> None:
    with exporting() as (server, provider), openinference(provider):
        app = wrapped(agent(), telemetry=amc.Telemetry(tracer_provider=provider))
        app.invoke(INPUT)
    sessions = {s.attributes[names.SESSION] for s in server.spans if names.SESSION in s.attributes}
    assert sessions == {f"amc-{amc.last_run(app).run_id}"}


def test_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    """LiteLLM's own callback, with the setting that docs/tracing.md names."""
    import litellm
    from litellm.integrations.opentelemetry import OpenTelemetry, OpenTelemetryConfig

    monkeypatch.setenv("USE_OTEL_LITELLM_REQUEST_SPAN", "true")
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
    with OpenAIServer() as model, exporting() as (server, provider):
        callback = OpenTelemetry(OpenTelemetryConfig(exporter="in_memory"), tracer_provider=provider)
        monkeypatch.setattr(litellm, "callbacks", [callback])
        chat = amc.chat_model("openai/test", api_base=model.base_url, api_key="none")
        app = wrapped(_one_call(chat), particles=2, value=None, telemetry=amc.Telemetry(tracer_provider=provider))
        app.invoke(INPUT)
        asyncio.run(app.ainvoke(INPUT))
        _settle(server.spans, provider)
    ours = [s for s in server.spans if s.scope == names.SCOPE]
    theirs = [s for s in server.spans if s.scope != names.SCOPE]
    assert theirs
    known = {s.id for s in server.spans}
    assert all(s.parent in known for s in theirs)
    for span in theirs:
        assert any(name.startswith(names.RUN) for name in above(server.spans, span))
    assert len(named(ours, names.RUN)) == 2
    # two particles that ask the same at once share one request: its span says so
    shared = named(ours, names.COALESCED)
    assert shared
    for span in shared:
        assert span.attributes[names.COALESCED_CALLS] == 2
        assert len(span.links) == 2


def _one_call(model: Any) -> Any:
    from langgraph.graph import END, START, MessagesState, StateGraph

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def aask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    from langchain_core.runnables import RunnableLambda

    graph = StateGraph(MessagesState).add_node("ask", RunnableLambda(ask, aask))
    return graph.add_edge(START, "ask").add_edge("ask", END).compile()


def _settle(spans: list[WireSpan], provider: TracerProvider) -> None:
    """LiteLLM writes its spans from a thread of its own, a moment later."""
    import time

    for _ in range(100):
        provider.force_flush()
        if sum(s.scope != names.SCOPE for s in spans) >= 2:
            return
        time.sleep(0.05)
