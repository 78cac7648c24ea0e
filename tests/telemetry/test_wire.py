"""What a run looks like on the wire, however it is called and however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from langgraph.graph import END, START, MessagesState, StateGraph
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

import langgraph_amc as amc
from langgraph_amc.runtime import watching
from langgraph_amc.runtime.trace_opening import open_trace
from langgraph_amc.runtime.tracing import RunTrace
from langgraph_amc.telemetry import names
from tests.support.otlp_server import WireSpan

from .support import INPUT, SECRET, above, agent, check_trace, exporting, named, noise, nothing_leaks, wrapped


def invoke(app: Any) -> None:
    app.invoke(INPUT)


def ainvoke(app: Any) -> None:
    asyncio.run(app.ainvoke(INPUT))


def stream(app: Any) -> None:
    for _ in app.stream(INPUT):
        assert not trace.get_current_span().is_recording()


def astream(app: Any) -> None:
    async def run() -> None:
        async for _ in app.astream(INPUT):
            assert not trace.get_current_span().is_recording()

    asyncio.run(run())


WAYS = [invoke, ainvoke, stream, astream]


def traced(run: Callable[[Any], None], **settings: Any) -> tuple[list[WireSpan], amc.AMCResult]:
    with exporting() as (server, provider):
        given = settings.pop("telemetry", {})
        app = wrapped(**settings, telemetry=amc.Telemetry(tracer_provider=provider, **given))
        run(app)
    return server.spans, amc.last_run(app)


@pytest.mark.parametrize("run", WAYS)
def test_a_run_is_one_trace(run: Callable[[Any], None], caplog: pytest.LogCaptureFixture) -> None:
    with nothing_leaks(caplog):
        spans, result = traced(run)
    root = check_trace(spans)
    assert root.name == "invoke_workflow LangGraph"
    assert root.resource["service.name"] == "test"
    assert root.scope == names.SCOPE
    assert root.attributes[names.SESSION] == f"amc-{result.run_id}"
    assert root.attributes[names.BEST] == result.winner.name
    assert root.attributes[names.INPUT_TOKENS] == result.usage.input_tokens
    assert not any(span.error for span in spans)  # pruning is no error
    assert len(named(spans, names.EVALUATE)) >= len(result.checks)
    assert len(named(spans, names.RESAMPLE)) == sum(check.resampled for check in result.checks)
    lives = {span.attributes[names.PARTICLE_ID]: span for span in named(spans, names.PARTICLE)}
    assert set(lives) == {t.particle for t in result.trajectories}
    assert all(span.parent == root.id for span in lives.values())
    for t in result.trajectories:
        assert lives[t.particle].attributes[names.OUTCOME] == t.status
        assert lives[t.particle].attributes[names.CALLS] == t.usage.calls


@pytest.mark.parametrize("run", [invoke, ainvoke])
def test_segments_say_what_was_found_at_each_check(run: Callable[[Any], None]) -> None:
    spans, result = traced(run)
    by_id = {span.id: span for span in spans}
    segments = named(spans, names.SEGMENT)
    assert {by_id[s.parent].name for s in segments} == {names.GENERATION}
    for check in result.checks:
        at = {
            s.attributes[names.PARTICLE_ID]: s for s in segments if s.attributes.get(names.BOUNDARY) == check.boundary
        }
        for particle, value, weight in zip(check.particles, check.values, check.log_weights, strict=True):
            assert at[particle].attributes[names.VALUE] == value
            assert at[particle].attributes[names.LOG_WEIGHT] == pytest.approx(weight)
            told = [a for name, a, _ in at[particle].events if name == names.EVALUATION]
            assert told == [{names.EVALUATION_NAME: "value", names.EVALUATION_SCORE: value}]
    generations = named(spans, names.GENERATION)
    assert [g.attributes[names.GENERATION_NUMBER] for g in generations] == list(range(len(generations)))
    resampled = [(s.attributes[names.COMPARED], s.attributes[names.ANCESTORS]) for s in named(spans, names.RESAMPLE)]
    assert resampled == [
        (list(c.particles), [c.particles[i] for i in c.ancestors]) for c in result.checks if c.resampled
    ]


def test_a_clone_leads_to_the_segment_it_goes_on_from() -> None:
    spans, result = traced(invoke)
    by_id = {span.id: span for span in spans}
    clones = [t for t in result.trajectories if t.parent is not None]
    assert clones
    for t in clones:
        first = min(
            (s for s in named(spans, names.SEGMENT) if s.attributes[names.PARTICLE_ID] == t.particle),
            key=lambda s: s.start,
        )
        [life] = [s for s in named(spans, names.PARTICLE) if s.attributes[names.PARTICLE_ID] == t.particle]
        for span in (first, life):
            [link] = span.links
            assert link.attributes == {names.LINK_TYPE: "ancestor", names.PARTICLE_ID: t.parent}
            parent = by_id[link.span]
            assert parent.attributes[names.PARTICLE_ID] == t.parent
            assert parent.attributes[names.BOUNDARY] == t.forked_at
            # the same as attributes, for viewers that drop links
            assert span.attributes[names.PARENT_ID] == t.parent
            assert span.attributes[names.FORKED_AT] == t.forked_at


def test_impossible_particles_are_flagged() -> None:
    """A weight of 0 is no number that viewers could keep: they drop it, or the whole array."""
    with exporting() as (server, provider):
        told = open_trace(amc.Telemetry(tracer_provider=provider), "app", {}, {})
        assert isinstance(told, RunTrace)
        watch = watching.Watch("r", [told], told)
        names_of = ("p0", "p1")
        for name in names_of:
            watch.tell(watching.ParticleStarted, particle=name, parent=None, boundary=0)
        watch.tell(watching.GenerationStarted, generation=0, boundary=0, particles=names_of)
        for name in names_of:
            with watch.stepping(name):
                pass
        common = {"boundary": 1, "particles": names_of, "log_weights": (-np.inf, 0.5), "ess": 0.5}
        watch.tell(watching.Weighed, **common, live=2, sharpness=1.0)
        watch.tell(watching.Resampled, **common, ancestors=(1, 1), log_weight=0.1, past=0)
        watch.tell(watching.RunEnded, result=None, error="Boom: no", broken_off=False)
    check_trace(server.spans)
    segments = {s.attributes[names.PARTICLE_ID]: s.attributes for s in named(server.spans, names.SEGMENT)}
    assert segments["p0"][names.LOG_WEIGHT_FINITE] is False
    assert names.LOG_WEIGHT not in segments["p0"]
    assert (segments["p1"][names.LOG_WEIGHT_FINITE], segments["p1"][names.LOG_WEIGHT]) == (True, 0.5)
    [resampling] = named(server.spans, names.RESAMPLE)
    assert resampling.attributes[names.COMPARED] == ["p1"]
    assert resampling.attributes[names.LOG_WEIGHTS] == [0.5]
    assert resampling.attributes[names.IMPOSSIBLE] == ["p0"]


def test_no_content_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    silent, _ = traced(invoke)
    assert SECRET not in repr(silent)
    assert not any(s.attributes.get(names.ACTION) for s in silent)
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "span_only")
    told, result = traced(invoke)
    root = check_trace(told)
    assert SECRET in root.attributes[names.INPUT_MESSAGES]
    assert "done after" in root.attributes[names.OUTPUT_MESSAGES]
    assert "add(a=0, b=0)" in {s.attributes.get(names.ACTION, "").split("), ")[0] + ")" for s in told}
    assert result.winner.trajectory.status == "finished"


def test_detail_and_sampling_of_particles() -> None:
    run_only, _ = traced(invoke, telemetry={"detail": "run"})
    assert [s.name.split(" ")[0] for s in run_only] == [names.RUN]
    checks, _ = traced(invoke, telemetry={"detail": "generation"})
    check_trace(checks)
    kinds = {s.name.split(" ")[0] for s in checks}
    assert kinds == {names.RUN, names.GENERATION, names.EVALUATE, names.RESAMPLE}
    few, _ = traced(invoke, telemetry={"particles": 2})
    check_trace(few)
    for generation in named(few, names.GENERATION):
        inside = [s for s in named(few, names.SEGMENT) if s.parent == generation.id]
        assert 1 <= len(inside) <= 2


@pytest.mark.parametrize("detail", ["run", "generation"])
def test_spans_of_nodes_are_left_out_with_their_particles(detail: str) -> None:
    spans = traced_nodes(telemetry={"detail": detail})
    assert not named(spans, "node")


def test_spans_of_nodes_lie_below_their_particle() -> None:
    spans = traced_nodes()
    check_trace(spans)
    nodes = named(spans, "node")
    assert len(nodes) >= 4 * 3
    for span in nodes:
        assert above(spans, span) == [f"amc.particle {span.attributes['particle']}", "invoke_workflow LangGraph"]


def traced_nodes(**settings: Any) -> list[WireSpan]:
    """Nodes that open spans of their own, as an HTTP client's instrumentor does."""
    with exporting() as (server, provider):
        tracer = provider.get_tracer("user")

        def node(state: MessagesState) -> dict[str, Any]:
            here = amc.current_particle.get()
            with tracer.start_as_current_span("node", attributes={"particle": here.particle if here else ""}):
                return {"messages": [("ai", f"step {len(state['messages'])}")]}

        graph = StateGraph(MessagesState)
        for i in range(3):
            graph.add_node(f"n{i}", node)
            graph.add_edge(START if i == 0 else f"n{i - 1}", f"n{i}")
        graph.add_edge("n2", END)
        telemetry = amc.Telemetry(tracer_provider=provider, **settings.pop("telemetry", {}))
        wrapped(graph.compile(), boundary="step", telemetry=telemetry).invoke(INPUT)
    return server.spans


def test_a_run_that_is_not_sampled_leaves_nothing() -> None:
    with exporting() as (server, _):
        provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF))
        seen = []

        def node(state: MessagesState) -> dict[str, Any]:
            with provider.get_tracer("user").start_as_current_span("node") as span:
                seen.append(span.is_recording())
            return {"messages": [("ai", "x")]}

        graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").add_edge("n", END).compile()
        wrapped(graph, boundary="step", telemetry=amc.Telemetry(tracer_provider=provider)).invoke(INPUT)
    assert seen == [False] * 4
    assert server.spans == []


def test_a_run_lies_below_the_span_around_it() -> None:
    with exporting() as (server, provider):
        app = wrapped(telemetry=amc.Telemetry(tracer_provider=provider))
        with provider.get_tracer("user").start_as_current_span("request"):
            app.invoke(INPUT)
            app.invoke(INPUT)
    root = check_trace(server.spans)
    assert root.name == "request"
    assert [s.parent for s in named(server.spans, names.RUN)] == [root.id] * 2


def test_a_run_inside_a_particle_lies_below_it() -> None:
    events: list[Any] = []
    with exporting() as (server, provider):
        telemetry = amc.Telemetry(tracer_provider=provider)
        inner = wrapped(agent(rounds=1), particles=3, telemetry=telemetry)

        def think(state: MessagesState) -> dict[str, Any]:
            return {"messages": inner.invoke({"messages": state["messages"]})["messages"][-1:]}

        graph = StateGraph(MessagesState).add_node("think", think).add_edge(START, "think").add_edge("think", END)
        outer = wrapped(graph.compile(), particles=2, boundary="step", telemetry=telemetry, callbacks=[events.append])
        outer.invoke(INPUT)
    check_trace(server.spans)
    runs = named(server.spans, names.RUN)
    assert sorted(len(above(server.spans, run)) for run in runs) == [0, 2, 2]
    assert {above(server.spans, run)[0] for run in runs if run.parent} == {"amc.particle p0", "amc.particle p1"}
    told = [e for e in events if isinstance(e, watching.ModelCalled)]
    assert {e.particle for e in told} == {"p0", "p1"}  # not those of the run inside
    assert sum(e.usage.tokens for e in told) == amc.last_run(outer).usage.tokens


class Boom(Exception):
    pass


def test_a_run_that_breaks_is_an_error_and_ends_everything(caplog: pytest.LogCaptureFixture) -> None:
    def value(transcripts: Any) -> Any:
        raise Boom(SECRET)

    with nothing_leaks(caplog), exporting() as (server, provider):
        app = wrapped(value=value, telemetry=amc.Telemetry(tracer_provider=provider))
        with pytest.raises(Boom):
            app.invoke(INPUT)
    root = check_trace(server.spans)
    assert root.error
    assert root.attributes[names.ERROR] == "Boom"
    assert SECRET not in repr(server.spans)
    assert [s.error for s in named(server.spans, names.EVALUATE)] == [True]


def test_a_particle_that_fails_is_an_error_of_its_own() -> None:
    def node(state: MessagesState) -> dict[str, Any]:
        here = amc.current_particle.get()
        if here is not None and here.particle == "p1":
            raise Boom(SECRET)
        return {"messages": [("ai", "x")]}

    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").add_edge("n", END).compile()
    spans, _ = traced(invoke, app=graph, boundary="step")
    root = check_trace(spans)
    assert not root.error
    broken = [s.attributes[names.PARTICLE_ID] for s in spans if s.error]
    assert broken == ["p1", "p1"]  # its segment and itself
    assert {s.attributes[names.ERROR] for s in spans if s.error} == {"Boom"}
    assert {s.attributes[names.LOG_WEIGHT_FINITE] for s in spans if s.error} == {False}
    assert SECRET not in repr(spans)


def test_a_particle_that_the_budget_stops_is_no_error() -> None:
    spans, result = traced(invoke, budget=amc.Budget(calls=7), resample=amc.never())
    check_trace(spans)
    outcomes = {s.attributes[names.PARTICLE_ID]: s.attributes[names.OUTCOME] for s in named(spans, names.PARTICLE)}
    assert "truncated" in outcomes.values()
    assert outcomes == {t.particle: t.status for t in result.trajectories}
    assert not any(span.error for span in spans)


def breaks_off_sync(app: Any) -> None:
    events = app.stream(INPUT, stream_mode="values")
    next(events)
    events.close()


def breaks_off_async(app: Any) -> None:
    async def run() -> None:
        events = app.astream(INPUT, stream_mode="values")
        async for _ in events:
            break
        await events.aclose()
        assert not trace.get_current_span().is_recording()

    asyncio.run(run())


def forgets(app: Any) -> None:
    async def run() -> None:
        async for _ in app.astream(INPUT, stream_mode="values"):
            break
        await asyncio.sleep(0.05)  # the loop closes what is forgotten

    asyncio.run(run())


def cancels(app: Any) -> None:
    async def run() -> None:
        task = asyncio.create_task(app.ainvoke(INPUT))
        await SLOW.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not trace.get_current_span().is_recording()

    asyncio.run(run())


class Slow:
    """Nodes that take a moment, so that a run can be cancelled in the middle."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, state: MessagesState) -> dict[str, Any]:
        self.begun.set()
        await asyncio.sleep(0.02)
        return {"messages": [("ai", "x")]}


SLOW = Slow()


@pytest.mark.parametrize("end", [breaks_off_sync, breaks_off_async, forgets, cancels])
def test_a_run_that_is_broken_off_ends_everything(end: Any, caplog: pytest.LogCaptureFixture) -> None:
    SLOW.begun.clear()
    app: Any = agent()
    if end is cancels:
        graph = StateGraph(MessagesState)
        for i in range(3):
            graph.add_node(f"n{i}", SLOW)
            graph.add_edge(START if i == 0 else f"n{i - 1}", f"n{i}")
        app = graph.add_edge("n2", END).compile()
    with nothing_leaks(caplog), exporting() as (server, provider):
        end(wrapped(app, boundary="step", telemetry=amc.Telemetry(tracer_provider=provider)))
    root = check_trace(server.spans)
    assert root.attributes[names.OUTCOME] == "cancelled"
    assert not any(span.error for span in server.spans)
    outcomes = {s.attributes[names.OUTCOME] for s in named(server.spans, names.PARTICLE)}
    assert outcomes <= {"pruned", "cancelled"}


def test_late_particles_and_earlier_states() -> None:
    """Flights that outlast a check, and clones of states that were parked, are spans like the others."""
    for settings in ({"quorum": 0.5}, {"backtrack": amc.backtrack(discount=0.9)}):
        for run in (invoke, ainvoke):
            spans, result = traced(run, **settings, value=noise(3))
            check_trace(spans)
            born = {s.attributes[names.PARTICLE_ID] for s in named(spans, names.PARTICLE)}
            assert born == {t.particle for t in result.trajectories}
