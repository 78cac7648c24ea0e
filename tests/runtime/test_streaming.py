"""What a caller of ``stream`` sees: the winner's events in its own order, as early as they are certain."""

from __future__ import annotations

import itertools
import threading
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import langgraph_amc as amc
from tests.runtime.support import ASK, THREAD, ReplyModel, agent, by_hash, number, seeded, texts

TAKES_ALL: dict[str, Any] = {"particles": 4, "value": by_hash, "tau": 1e-4, "seed": 1}
"""With so small a temperature one particle takes all slots at a resampling."""


def test_shared_segments_come_before_the_end() -> None:
    """After resampling at boundary 1 all descend from one particle: its first step is certain."""
    calls = 0
    lock = threading.Lock()

    def reply(messages: list[Any]) -> AIMessage:
        nonlocal calls
        with lock:
            calls += 1
        return seeded(rounds=4)(messages)

    app = amc.wrap(agent(reply), **TAKES_ALL, resample=amc.at(1))
    seen = [(calls, list(update)) for update in app.stream(ASK, stream_mode="updates")]
    assert seen[:2] == [(4, ["model"]), (4, ["tools"])], "given out while the four wait at boundary 1"
    assert {n for n, _ in seen[2:]} == {20}


async def test_shared_segments_come_before_the_end_async() -> None:
    calls = 0

    def reply(messages: list[Any]) -> AIMessage:
        nonlocal calls
        calls += 1
        return seeded(rounds=4)(messages)

    app = amc.wrap(agent(reply), **TAKES_ALL, resample=amc.every(1))
    seen = [(calls, list(update)) async for update in app.astream(ASK, stream_mode="updates")]
    assert seen == [(4 * (i // 2 + 1), ["model" if i % 2 == 0 else "tools"]) for i in range(8)] + [(20, ["model"])]


def test_the_stream_is_the_winners_own() -> None:
    app = amc.wrap(agent(seeded(), saver=InMemorySaver()), **{**TAKES_ALL, "tau": 0.1}, resample=amc.every(1))
    events = list(app.stream(ASK, THREAD, stream_mode=["values", "updates", "messages", "checkpoints", "debug"]))
    result = amc.last_run(app)
    assert any(len(set(c.ancestors)) > 1 for c in result.checks)
    values = [p for mode, p in events if mode == "values"]
    assert [len(v["messages"]) for v in values] == list(range(1, len(values) + 1))
    assert texts(values[-1]) == texts(result.winner.output) == texts(app.get_state(THREAD).values)
    for earlier, later in itertools.pairwise(values):
        assert texts(later)[: len(texts(earlier))] == texts(earlier)
    assert [m.content for mode, e in events if mode == "messages" for m in e[:1]] == texts(values[-1])[1:]
    ids = [p["config"]["configurable"]["checkpoint_id"] for mode, p in events if mode == "checkpoints"]
    history = [s.config["configurable"]["checkpoint_id"] for s in app.get_state_history(THREAD)]
    assert ids == history[::-1]


def custom_events(saver: Any = None) -> Any:
    model = ReplyModel(reply=lambda m: AIMessage(f"answer {number(len(m))}"))

    def act(state: MessagesState) -> dict[str, Any]:
        get_stream_writer()({"progress": len(state["messages"])})
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("act", act)
    graph.add_edge(START, "act")
    graph.add_conditional_edges("act", lambda s: "act" if len(s["messages"]) < 5 else "__end__")
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("particles", [1, 4])
def test_custom_events_are_the_winners(particles: int) -> None:
    app = amc.wrap(custom_events(), **{**TAKES_ALL, "particles": particles}, resample=amc.every(1))
    events = list(app.stream(ASK, stream_mode="custom"))
    assert events == [{"progress": n} for n in range(1, 5)]


@pytest.mark.parametrize("mode", ["values", "updates", "debug", "tasks", ["values"]])
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_async_shapes_equal_plain(mode: Any, version: str) -> None:
    def kinds(events: list[Any]) -> list[Any]:
        return [(type(e), sorted(e) if isinstance(e, dict) else [type(x) for x in e]) for e in events]

    def app() -> Any:
        return custom_events(InMemorySaver())

    plain = [e async for e in app().astream(ASK, THREAD, stream_mode=mode, version=version)]
    better = amc.wrap(app(), **TAKES_ALL, resample=amc.every(1))
    assert kinds([e async for e in better.astream(ASK, THREAD, stream_mode=mode, version=version)]) == kinds(plain)


# -- interrupts ----------------------------------------------------------------------------------------


class Log(TypedDict):
    log: Annotated[list[str], lambda a, b: [*a, *b]]


def asks_sometimes(saver: Any, *askers: str) -> Any:
    """Only the particles named ask; the others answer."""

    def act(state: Log) -> dict[str, Any]:
        particle = amc.current_particle.get()
        if particle is not None and particle.particle in askers:
            return {"log": [f"told {interrupt('which?')}"]}
        return {"log": ["guessed"]}

    graph = StateGraph(Log)
    graph.add_node("start", lambda s: {"log": ["start"]})
    graph.add_node("act", act)
    graph.add_edge(START, "start")
    graph.add_edge("start", "act")
    return graph.compile(checkpointer=saver)


SCORES_ASKING = {"log": 0}


@pytest.mark.parametrize("wins", ["p0", "p2"])
@pytest.mark.parametrize("use_async", [False, True])
async def test_some_particles_interrupt(wins: str, use_async: bool) -> None:
    def choose(rng: Any, candidates: Any) -> int:
        return int(wins[1:])

    app = amc.wrap(asks_sometimes(InMemorySaver(), "p0", "p1"), particles=4, select=choose, seed=1)
    given: Any = {"log": []}
    out = await app.ainvoke(given, THREAD) if use_async else app.invoke(given, THREAD)
    statuses = [p.trajectory.status for p in out.amc.particles]
    assert statuses == ["interrupted", "interrupted", "finished", "finished"]
    state = app.get_state(THREAD)
    if wins == "p2":
        assert out["log"] == ["start", "guessed"]
        assert "__interrupt__" not in out
        assert state.next == ()
        return
    assert [i.value for i in out["__interrupt__"]] == ["which?"]
    assert state.next == ("act",)
    resume: Any = Command(resume="this")
    out = await app.ainvoke(resume, THREAD) if use_async else app.invoke(resume, THREAD)
    assert out["log"][0] == "start"
    assert app.get_state(THREAD).next == ()


def test_a_reward_is_asked_for_finished_runs_only() -> None:
    asked: list[Any] = []

    def reward(run: amc.FinishedRun) -> float:
        asked.append(run.output)
        return 1.0

    app = amc.wrap(asks_sometimes(InMemorySaver(), "p0"), particles=3, reward=reward, seed=1)
    out = app.invoke({"log": []}, THREAD)
    assert [a["log"] for a in asked] == [["start", "guessed"]] * 2
    assert [p.reward for p in out.amc.particles] == [None, 1.0, 1.0]
    assert out["log"] == ["start", "guessed"]


def test_v2_output_has_the_winners_interrupts() -> None:
    app = amc.wrap(asks_sometimes(InMemorySaver(), "p0", "p1"), particles=2, seed=1)
    out = app.invoke({"log": []}, THREAD, version="v2")
    assert [i.value for i in out.interrupts] == ["which?"]
    assert out.value.amc.winner.trajectory.status == "interrupted"


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("mode", ["checkpoints", "debug"])
@pytest.mark.parametrize("kind", ["settled", "best"])
def test_checkpoints_are_shown_where_a_plain_run_saves_them(
    kind: Any, mode: Any, subgraphs: bool, saved: bool, nested: bool
) -> None:
    def shown(change: Any) -> list[Any]:
        saver = InMemorySaver() if saved else None
        app = change(agent(seeded(1), saver=None if nested else saver))
        if nested:
            graph = StateGraph(MessagesState)
            graph.add_node("inner", app)
            graph.add_edge(START, "inner")
            app = graph.compile(checkpointer=saver)
        events = app.stream(ASK, THREAD if saved else None, stream_mode=mode, subgraphs=subgraphs)
        payloads = [event[1] if subgraphs else event for event in events]
        return [(p.get("type"), p.get("step", p.get("metadata", {}).get("step"))) for p in payloads]

    settings = {"particles": 2, "seed": 1, "stream": kind, "effects": "pure"}
    plain = shown(lambda app: app)
    assert shown(lambda app: amc.wrap(app, **settings)) == plain
    if mode == "checkpoints":
        assert bool(plain) == saved
