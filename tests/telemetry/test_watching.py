"""What callbacks are told of a run, and that they cannot harm it."""

from __future__ import annotations

import asyncio
import warnings
from functools import partial
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

import langgraph_amc as amc
from langgraph_amc import watching
from langgraph_amc.runtime.listening import listen
from langgraph_amc.runtime.request import StreamRequest, call_config

from .support import INPUT, agent, noise, wrapped


def of(events: list[Any], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_events_tell_the_run(asynchronous: bool) -> None:
    events: list[Any] = []
    app = wrapped(callbacks=[events.append])
    asyncio.run(app.ainvoke(INPUT)) if asynchronous else app.invoke(INPUT)
    result = amc.last_run(app)
    first, last = events[0], events[-1]
    assert isinstance(first, watching.RunStarted)
    assert (first.particles, first.seed, first.task, first.restored) == (4, 1, None, False)
    assert isinstance(last, watching.RunEnded)
    assert (last.result, last.error, last.broken_off) == (result, None, False)
    assert {e.run_id for e in events} == {result.run_id}
    assert [e.seconds for e in events] == sorted(e.seconds for e in events)
    parents = {e.particle: e.parent for e in of(events, watching.ParticleStarted)}
    assert parents == dict(result.ancestors)
    ended = {e.particle: e for e in of(events, watching.ParticleEnded)}
    assert {name: e.status for name, e in ended.items()} == {p.name: p.trajectory.status for p in result.particles}
    assert {e.particle for e in of(events, watching.ParticlePruned)} == {p.name for p in result.pruned}
    scored = [(e.boundary, e.particles, e.values) for e in of(events, watching.Scored) if e.boundary is not None]
    assert scored == [(c.boundary, c.particles, c.values) for c in result.checks]
    assert [e.ancestors for e in of(events, watching.Resampled)] == [c.ancestors for c in result.checks if c.ancestors]
    assert sum(e.usage.tokens for e in of(events, watching.ModelCalled)) == result.usage.tokens
    steps = of(events, watching.ParticleStepped)
    assert {(s.particle, s.boundary) for s in steps} >= {(n, c.boundary) for c in result.checks for n in c.particles}
    assert steps[0].action == "add(a=0, b=0), add(a=0, b=1)"
    assert set(steps[0].nodes) == {"model", "tools"}
    assert [e.particle for e in of(events, watching.ParticleChosen)] == [result.winner.name]


def test_order_of_a_generation() -> None:
    events: list[Any] = []
    wrapped(callbacks=[events.append]).invoke(INPUT)
    shown = [type(e).__name__ for e in events if not isinstance(e, watching.ModelCalled)]
    start = shown.index("GenerationStarted")
    end = shown.index("GenerationStarted", start + 1)
    assert shown[start + 1 : end][:4] == ["ParticleStepped"] * 4
    rest = shown[start + 5 : end]
    assert rest[:3] == ["Scored", "Weighed", "Resampled"]
    assert rest.index("ParticlePruned") < rest.index("ParticleStarted")  # a clone comes in a pruned one's place


def test_a_callback_that_raises_is_dropped_and_the_run_is_the_same() -> None:
    told: list[Any] = []

    def bad(event: Any) -> None:
        told.append(event)
        raise ValueError("no")

    plain = wrapped().invoke(INPUT)
    events: list[Any] = []
    with pytest.warns(RuntimeWarning, match="raised ValueError: no; the run goes on without it") as warned:
        watched = wrapped(callbacks=[bad, events.append]).invoke(INPUT)
    assert len([w for w in warned if w.category is RuntimeWarning]) == 1
    assert len(told) == 1
    assert isinstance(events[-1], watching.RunEnded)
    assert watched.amc.winner.name == plain.amc.winner.name
    assert watched.amc.checks == plain.amc.checks


def test_what_breaks_a_run_is_told() -> None:
    def value(transcripts: Any) -> Any:
        raise RuntimeError("no value")

    events: list[Any] = []
    with pytest.raises(RuntimeError, match="no value"):
        wrapped(callbacks=[events.append], value=value).invoke(INPUT)
    assert (events[-1].result, events[-1].error, events[-1].broken_off) == (None, "RuntimeError: no value", False)
    events.clear()
    stream = wrapped(callbacks=[events.append]).stream(INPUT, stream_mode="values")
    next(stream)
    stream.close()
    assert (events[-1].result, events[-1].broken_off) == (None, True)


def test_effects_are_told() -> None:
    from langchain_core.tools import tool

    from tests.support.graphs import ScriptedModel

    done: list[int] = []

    @tool
    def add(a: int, b: int) -> int:
        """Add, and send it somewhere."""
        done.append(a)
        return a + b

    from langchain.agents import create_agent

    events: list[Any] = []
    app = amc.wrap(
        create_agent(ScriptedModel(rounds=1), [add], checkpointer=InMemorySaver()),
        particles=3,
        value=noise(),
        effects={"add": "commit"},
        callbacks=[events.append],
        seed=1,
    )
    app.invoke(INPUT, {"configurable": {"thread_id": "t"}})
    records = [e.record for e in of(events, watching.EffectSettled)]
    assert [r.state for r in records].count("held") == 6
    assert [r.state for r in records].count("committed") == 2
    assert len(done) == 2
    assert {(r.key, r.state) for r in records if r.state != "held"} == {
        (r.key, r.state) for r in amc.last_run(app).effects if r.state != "held"
    }
    chosen = of(events, watching.ParticleChosen)
    assert chosen[0].effects == ("add", "add")


def test_nobody_watches() -> None:
    app = wrapped()
    request = StreamRequest(agent(), app._amc_settings, INPUT, call_config(agent(), {}), {})
    assert listen(request, run_id="r", thread_id="t", seed=0, restored=False) is None


async def tells_later(event: Any) -> None:
    raise AssertionError(event)


class TellsLater:
    async def __call__(self, event: Any) -> None:
        raise AssertionError(event)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"callbacks": print}, "callbacks is a list of functions"),
        ({"callbacks": [1]}, "callbacks is a list of functions"),
        ({"callbacks": [tells_later]}, "a callback is a plain function"),
        ({"callbacks": [partial(tells_later)]}, "a callback is a plain function"),
        ({"callbacks": [TellsLater()]}, "a callback is a plain function"),
        ({"telemetry": "run"}, "telemetry is Telemetry"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(amc.ConfigurationError, match=message):
        wrapped(**settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"detail": "all"}, "one of run, generation, particle"),
        ({"particles": 0}, "at least 1"),
        ({"tracer_provider": "x"}, "tracer_provider is a TracerProvider"),
    ],
)
def test_telemetry_that_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(amc.ConfigurationError, match=message):
        amc.Telemetry(**options)


def test_no_warning_where_nothing_is_wrong() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        wrapped(callbacks=[lambda event: None]).invoke(INPUT)
