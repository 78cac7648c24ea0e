"""Where particles are compared: exactly where the schedule can fire, with no barrier anywhere else."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

import langgraph_amc as amc
from tests.runtime.support import ASK, THREAD, ReplyModel, agent, by_digits, call, seeded, turn_of


def scored(app: Any, **settings: Any) -> tuple[list[list[int]], Any]:
    """How many segments the transcripts had at each call of V, and the result."""
    calls: list[list[int]] = []

    def value(transcripts: Any) -> list[float]:
        calls.append([len(t) for t in transcripts])
        return by_digits(transcripts)

    out = amc.wrap(app, **{"particles": 3, "value": value, "seed": 1, **settings}).invoke(ASK)
    return calls, out.amc


@pytest.mark.parametrize(
    ("schedule", "boundaries"),
    [
        (amc.at(2), [2]),
        (amc.at(1, 4), [1, 4]),
        (amc.every(2), [2, 4]),
        (amc.every(1), [1, 2, 3, 4, 5]),
        (amc.ess_below(0.5) & amc.every(3), [3]),
        (amc.at(1) | amc.every(4), [1, 4]),
        (amc.never(), []),
        (amc.at(50), []),
    ],
)
def test_exactly_the_possible_boundaries_are_scored(schedule: Any, boundaries: list[int]) -> None:
    calls, result = scored(agent(seeded(rounds=5)), resample=schedule)
    *checks, last = calls
    assert checks == [[b + 1] * 3 for b in boundaries]
    assert last == [7] * 3, "and the finished runs, whose outcome nobody observes, once"
    assert [c.boundary for c in result.checks] == boundaries


def test_finished_particles_are_scored_once() -> None:
    def reply(messages: list[Any]) -> AIMessage:
        particle = amc.current_particle.get()
        turn = turn_of(messages)
        return AIMessage("done 1") if turn == 1 + int(particle.particle[1:]) else call("note", turn, n=turn)

    calls, result = scored(agent(reply), resample=amc.at(4), objective="sample", tau=1.0)
    ends = sorted(len(t.segments) for t in result.trajectories)
    assert ends == [3, 4, 5]
    assert sum(map(len, calls)) == 3


# -- which edges ---------------------------------------------------------------------------------------


def loop(saver: Any = None) -> Any:
    """prepare → act → check → act → …: the model is called in ``act`` only."""
    model = ReplyModel(reply=lambda m: AIMessage(f"answer {len(m)}"))
    graph = StateGraph(MessagesState)
    graph.add_node("prepare", lambda s: {})
    graph.add_node("act", lambda s: {"messages": [model.invoke(s["messages"])]})
    graph.add_node("check", lambda s: {"messages": [HumanMessage("more")]})
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "act")
    graph.add_conditional_edges("act", lambda s: END if len(s["messages"]) > 7 else "check", ["check", END])
    graph.add_edge("check", "act")
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize(
    ("boundary", "steps"),
    [
        (None, 3),
        ("auto", 3),
        ("act", 3),
        ("check", 2),
        (["act", "check"], 6),
        (amc.before("act"), 3),
        (lambda edge: "check" in edge.ran, 2),
        ("step", 7),
        (lambda edge: False, 0),
    ],
)
def test_boundaries_by_name_predicate_and_step(boundary: Any, steps: int) -> None:
    _, result = scored(loop(), boundary=boundary, resample=amc.every(1))
    assert [c.boundary for c in result.checks] == list(range(1, steps + 1))
    assert {len(p.trajectory.segments) for p in result.particles} == {steps + 2}


def test_a_predicate_sees_edges_of_the_running_graph() -> None:
    edges: list[amc.Edge] = []

    def boundary(edge: amc.Edge) -> bool:
        edges.append(edge)
        return False

    amc.wrap(loop(), particles=1, boundary=boundary).invoke(ASK)
    assert [e.next for e in edges[:4]] == [("__start__",), ("prepare",), ("act",), ("check",)]
    assert [e.ran for e in edges[:4]] == [(), (), ("prepare",), ("act",)]
    assert edges[3].model_nodes == {"act"}
    assert [len(e.state["messages"]) for e in edges[:4]] == [0, 1, 1, 2]


def test_auto_finds_a_model_inside_a_subgraph() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("inner", agent(seeded(rounds=1)))
    graph.add_node("more", lambda s: {"messages": [HumanMessage("more")]})
    graph.add_edge(START, "inner")
    graph.add_conditional_edges("inner", lambda s: END if len(s["messages"]) > 10 else "more", ["more", END])
    graph.add_edge("more", "inner")
    _, result = scored(graph.compile(), resample=amc.every(1))
    assert [c.boundary for c in result.checks] == [1, 2]


def test_a_node_called_step() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("step", lambda s: {"messages": [AIMessage("x")]})
    graph.add_node("other", lambda s: {})
    graph.add_edge(START, "step")
    graph.add_edge("step", "other")
    graph.add_conditional_edges("other", lambda s: END if len(s["messages"]) > 3 else "step", ["step", END])
    _, result = scored(graph.compile(), boundary="step", resample=amc.every(1))
    assert [c.boundary for c in result.checks] == [1, 2]


def test_boundaries_count_from_the_present_turn() -> None:
    app = amc.wrap(
        agent(seeded(rounds=2), saver=InMemorySaver()), particles=3, value=by_digits, seed=1, resample=amc.every(1)
    )
    for _ in range(2):
        assert [c.boundary for c in app.invoke(ASK, THREAD).amc.checks] == [1, 2]


# -- no barrier elsewhere --------------------------------------------------------------------------------


def test_particles_do_not_wait_where_nothing_can_happen() -> None:
    """p1 stays in its first model call until p0 is in its third; a barrier between would never open."""
    far = threading.Event()

    def reply(messages: list[Any]) -> AIMessage:
        turn = turn_of(messages)
        if amc.current_particle.get().particle == "p1" and turn == 0:
            assert far.wait(20), "p0 was held back"
        if amc.current_particle.get().particle == "p0" and turn == 2:
            far.set()
        return call("note", turn, n=turn) if turn < 3 else AIMessage("done")

    _, result = scored(agent(reply), particles=2, resample=amc.at(3))
    assert [c.boundary for c in result.checks] == [3]
    assert far.is_set()


async def test_particles_do_not_wait_where_nothing_can_happen_async() -> None:
    far = asyncio.Event()

    async def reply(messages: list[Any]) -> AIMessage:
        turn = turn_of(messages)
        if amc.current_particle.get().particle == "p1" and turn == 0:
            await asyncio.wait_for(far.wait(), 20)
        if amc.current_particle.get().particle == "p0" and turn == 2:
            far.set()
        return call("note", turn, n=turn) if turn < 3 else AIMessage("done")

    app = amc.wrap(agent(reply), particles=2, value=by_digits, resample=amc.at(3))
    out = await app.ainvoke(ASK)
    assert [c.boundary for c in out.amc.checks] == [3]


def test_at_a_possible_boundary_all_wait() -> None:
    """The same policy with a barrier in between: p0 cannot reach its third call before p1 has made its first."""
    first = threading.Event()
    seen: list[bool] = []

    def reply(messages: list[Any]) -> AIMessage:
        turn = turn_of(messages)
        if turn == 0 and amc.current_particle.get().particle == "p1":
            threading.Event().wait(0.1)
            first.set()
        if turn == 1:
            seen.append(first.is_set())
        return call("note", turn, n=turn) if turn < 3 else AIMessage("done")

    scored(agent(reply), particles=2, resample=amc.at(1))
    assert seen == [True, True]
