"""Boundaries inside subgraphs: held, scored, pruned and branched there, and otherwise a plain run."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy

import langgraph_amc as amc
from langgraph_amc.context import current_particle
from langgraph_amc.trajectories.transcript import REWRITTEN
from tests.runtime.equality import CONFIG, EVERY, astream, numbered, stream
from tests.runtime.support import (
    ASK,
    THREAD,
    ReplyModel,
    Roots,
    agent,
    by_hash,
    call,
    note,
    other_tasks,
    seeded,
    texts,
    turn_of,
)
from tests.runtime.test_clones import forced
from tests.runtime.test_equality import aconverse, converse, wrapped
from tests.support.nested_graphs import NESTED, around, branches, sent, steps

LOG: dict[str, Any] = {"log": [], "n": 0}

# -- equal to the plain app ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NESTED)
async def test_equals_plain(name: str) -> None:
    """Outputs, history and state, subgraphs included, for several turns."""
    case = NESTED[name]
    want = await aconverse(case.build(InMemorySaver()), case.inputs)
    for app in (wrapped(case.build(InMemorySaver()), case, 3), forced(case.build(InMemorySaver()), case.boundary)):
        assert await aconverse(app, case.inputs) == want
    for app in (wrapped(case.build(InMemorySaver()), case, 3), forced(case.build(InMemorySaver()), case.boundary)):
        assert await asyncio.to_thread(converse, app, case.inputs) == want


BOUNDARIES = {"inherited": 3, "memory": 3, "two_levels": 2, "anywhere": 7, "called_twice": 7, "worker": 2, "sent": 1}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_every_point_is_a_boundary(name: str) -> None:
    """But the first, which is boundary 0."""
    case = NESTED[name]
    result = forced(case.build(None), case.boundary).invoke(copy.deepcopy(case.inputs[0])).amc
    assert [c.boundary for c in result.checks] == list(range(1, BOUNDARIES[name] + 1))
    assert len(result.pruned) == 2 * BOUNDARIES[name]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("name", ["inherited", "two_levels", "called", "worker", "branches"])
async def test_streams_equal_plain(name: str, subgraphs: bool, version: str) -> None:
    case, options = NESTED[name], {"stream_mode": EVERY, "subgraphs": subgraphs, "version": version}
    parallel = name in ("branches", "worker")

    def canonical(events: list[str]) -> list[str]:
        return sorted(numbered(events, ordered=False)) if parallel else numbered(events, ordered=True)

    want = canonical(stream(case.build(InMemorySaver()), case.inputs[:1], **options))
    app = forced(case.build(InMemorySaver()), case.boundary)
    assert canonical(await asyncio.to_thread(stream, app, case.inputs[:1], **options)) == want
    want = canonical(await astream(case.build(InMemorySaver()), case.inputs[:1], **options))
    app = forced(case.build(InMemorySaver()), case.boundary)
    assert canonical(await astream(app, case.inputs[:1], **options)) == want


def test_one_particle_is_held_too() -> None:
    case = NESTED["two_levels"]
    app = amc.wrap(case.build(None), particles=1, boundary=case.boundary)
    shown = stream(app, case.inputs[:1], stream_mode="values")
    assert shown == stream(case.build(None), case.inputs[:1], stream_mode="values")


@pytest.mark.parametrize("name", ["inherited", "memory", "worker"])
async def test_savers_of_databases(name: str) -> None:
    case = NESTED[name]
    want = await aconverse(case.build(InMemorySaver()), case.inputs)
    with SqliteSaver.from_conn_string(":memory:") as saver:
        assert converse(forced(case.build(saver), case.boundary), case.inputs) == want
    async with AsyncSqliteSaver.from_conn_string(":memory:") as asaver:
        assert await aconverse(forced(case.build(asaver), case.boundary), case.inputs) == want


@pytest.mark.parametrize("limit", [1, 2])
async def test_few_tasks_at_once(limit: int) -> None:
    case = NESTED["many_sent"]
    config: Any = {"max_concurrency": limit}
    want = await case.build(None).ainvoke(copy.deepcopy(case.inputs[0]), config)
    got = await forced(case.build(None), case.boundary).ainvoke(copy.deepcopy(case.inputs[0]), config)
    assert got == want
    assert len(got.amc.checks) > 1


# -- nothing runs twice ----------------------------------------------------------------------------------


class Runs:
    """Which nodes ran in which particle."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def node(self, name: str) -> Callable[[Any], dict[str, Any]]:
        def run(state: Any) -> dict[str, Any]:
            particle = current_particle.get()
            assert particle is not None
            self.seen.append((particle.particle, name))
            return {"log": [name], "n": state["n"] + 1}

        return run

    def of(self, particle: str) -> list[str]:
        return [node for name, node in self.seen if name == particle]


def recorded(runs: Runs, *names: str) -> Any:
    return steps(*names, **{name: runs.node(name) for name in names})


@pytest.mark.parametrize("is_async", [False, True])
async def test_clones_begin_at_the_gate(is_async: bool) -> None:
    runs = Runs()
    inner = around(recorded(runs, "s1", "s2", "s3"), None, rounds=1)
    app = forced(around(inner, InMemorySaver(), rounds=1), ["sub/sub/s2", "sub/sub/s3"])
    await app.ainvoke(LOG, CONFIG) if is_async else await asyncio.to_thread(app.invoke, LOG, CONFIG)
    assert runs.of("p0") == runs.of("p1") == ["s1", "s2"]
    assert runs.of("p2") == ["s1", "s2", "s3"]
    assert runs.of("p3") == runs.of("p4") == ["s3"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_finished_call_of_the_same_node_is_not_run_again(is_async: bool) -> None:
    runs = Runs()
    first, second = recorded(runs, "f1", "f2"), recorded(runs, "g1", "g2")
    node = RunnableLambda(lambda s: second.invoke(first.invoke(s)), afunc=lambda s: _both(first, second, s))
    app = forced(around(node, None, rounds=1), ["sub/f1", "sub/g2"])
    await app.ainvoke(LOG) if is_async else await asyncio.to_thread(app.invoke, LOG)
    assert runs.of("p2") == ["f1", "f2", "g1", "g2"]
    assert runs.of("p3") == runs.of("p4") == ["g2"]


async def _both(first: Any, second: Any, state: Any) -> Any:
    return await second.ainvoke(await first.ainvoke(state))


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_is_parallel_to_a_gate_has_ended_before_it(is_async: bool) -> None:
    """A branch that has ended, or waits at a gate of its own, is not run again in a clone."""
    runs = Runs()
    slow = runs.node("slow")

    def beside(state: Any) -> dict[str, Any]:
        time.sleep(0.05)
        return {"log": slow(state)["log"]}

    graph = StateGraph(branches(None).builder.state_schema)
    long, short = recorded(runs, "s1", "s2", "s3"), recorded(runs, "t1", "t2")
    graph.add_node("long", RunnableLambda(lambda s: _logs(long.invoke(s)), afunc=lambda s: _alogs(long, s)))
    graph.add_node("short", RunnableLambda(lambda s: _logs(short.invoke(s)), afunc=lambda s: _alogs(short, s)))
    graph.add_node("beside", beside)
    for name in ("long", "short", "beside"):
        graph.add_edge(START, name)
    app = forced(graph.compile(), ["long/s2", "short/t2", "long/s3"])
    await app.ainvoke(LOG) if is_async else await asyncio.to_thread(app.invoke, LOG)
    assert sorted(runs.of("p2")) == ["s1", "s2", "s3", "slow", "t1", "t2"]
    assert runs.of("p3") == runs.of("p4") == ["s3"]


def _logs(state: Any) -> dict[str, Any]:
    return {"log": state["log"]}


async def _alogs(graph: Any, state: Any) -> dict[str, Any]:
    return _logs(await graph.ainvoke(state))


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_branch_that_leaves_its_graph_by_a_command(is_async: bool) -> None:
    """It ends without having written anything; the one that is held beside it is not waited for in vain."""
    state = branches(None).builder.state_schema
    middle, graph, inner = StateGraph(state), StateGraph(state), steps("s1", "s2", "s3")
    middle.add_node("inner", RunnableLambda(lambda s: _logs(inner.invoke(s)), afunc=lambda s: _alogs(inner, s)))
    middle.add_node("leave", lambda s: time.sleep(0.02) or Command(graph=Command.PARENT, goto="b"))
    middle.add_edge(START, "inner")
    middle.add_edge(START, "leave")
    graph.add_node("middle", middle.compile(), destinations=("b",))
    graph.add_node("b", lambda s: {"log": ["b"]})
    graph.add_edge(START, "middle")
    want = graph.compile().invoke(LOG)
    app = forced(graph.compile(), ["middle/inner/s2", "middle/inner/s3"])
    async with asyncio.timeout(20):
        got = await app.ainvoke(LOG) if is_async else await asyncio.to_thread(app.invoke, LOG)
    assert got == want
    assert len(got.amc.checks) == 1


@pytest.mark.parametrize("is_async", [False, True])
async def test_effects_that_wait_for_the_choice(is_async: bool) -> None:
    app = pruning(effects={"note": "commit"}, particles=3)
    got = await app.ainvoke(ASK, THREAD) if is_async else await asyncio.to_thread(app.invoke, ASK, THREAD)
    assert [m.type for m in got["messages"]] == ["human", *["ai", "tool"] * 3, "ai"]


@pytest.mark.parametrize("calls", [3, 7, 10])
def test_a_budget_that_ends_while_particles_are_held(calls: int) -> None:
    got = pruning(particles=3, budget=amc.Budget(calls=calls)).invoke(ASK, THREAD)
    assert "truncated" in {t.status for t in got.amc.trajectories}
    assert not particle_threads()


# -- choosing --------------------------------------------------------------------------------------------


def nested_agent(saver: Any = None, reply: Any = None, tools: Any = (note,)) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("worker", agent(reply or seeded(), tools))
    graph.add_edge(START, "worker")
    return graph.compile(checkpointer=saver)


@pytest.mark.parametrize("is_async", [False, True])
async def test_choices_are_those_made_in_the_agent_alone(is_async: bool) -> None:
    settings: dict[str, Any] = {"particles": 4, "value": by_hash, "tau": 1e-4, "resample": amc.every(1), "seed": 5}

    async def run(app: Any) -> Any:
        return await app.ainvoke(ASK) if is_async else await asyncio.to_thread(app.invoke, ASK)

    alone = await run(amc.wrap(agent(seeded()), boundary="model", **settings))
    nested = await run(amc.wrap(nested_agent(), boundary="worker/model", **settings))
    assert texts(nested) == texts(alone)
    assert [t.segments for t in nested.amc.trajectories] == [t.segments for t in alone.amc.trajectories]
    assert [t.values for t in nested.amc.trajectories] == [t.values for t in alone.amc.trajectories]
    assert nested.amc.winner.trajectory.parent is not None, "somebody was branched"


def test_texts_grow_while_a_subgraph_runs() -> None:
    scored: list[tuple[str, ...]] = []

    def value(transcripts: Any) -> list[float]:
        scored.extend(tuple(t) for t in transcripts)
        return by_hash(transcripts)

    case = NESTED["worker"]
    amc.wrap(case.build(None), particles=2, value=value, boundary=case.boundary, resample=amc.every(1)).invoke(
        copy.deepcopy(case.inputs[0])
    )
    longest = max(scored, key=len)
    assert all("".join(longest).startswith("".join(text)) for text in scored)
    assert REWRITTEN not in "".join(longest)
    assert longest[0].endswith("<|im_start|>assistant\nplan<|im_end|>\n"), "boundary 0: as the agent begins"
    assert longest[1].startswith("<|im_start|>assistant\nadd")


def test_a_state_of_its_own_is_read_behind_the_outer_one() -> None:
    """And is gone when the subgraph ends, which the transcript says."""
    case = NESTED["worker_as_tool"]
    result = forced(case.build(None), case.boundary).invoke(copy.deepcopy(case.inputs[0])).amc
    first, second, *_, last = result.winner.trajectory.segments
    assert "user\ngo" in first
    assert first.endswith("<|im_start|>user\nq0<|im_end|>\n")
    assert second.startswith("<|im_start|>assistant\nadd")
    assert last.startswith(REWRITTEN)
    assert "q0" not in last


def test_rewards_inside_are_counted_once() -> None:
    def reply(messages: list[Any]) -> AIMessage:
        message = call("note", turn_of(messages), n=1) if turn_of(messages) < 3 else AIMessage("done")
        message.additional_kwargs["reward"] = 1.0
        return message

    alone = amc.wrap(agent(reply), particles=2, boundary="model", resample=amc.every(1)).invoke(ASK).amc
    nested = amc.wrap(nested_agent(reply=reply), particles=2, boundary="worker/model", resample=amc.every(1))
    assert nested.invoke(ASK).amc.winner.trajectory.rewards == alone.winner.trajectory.rewards


# -- nothing is left behind --------------------------------------------------------------------------------


_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def threads_of_other_tests() -> None:
    _before.clear()
    _before.update(threading.enumerate())


def particle_threads() -> list[threading.Thread]:
    new = [t for t in threading.enumerate() if t not in _before]
    return [t for t in new if t.name.startswith(("amc-particle", "ThreadPoolExecutor"))]


def assert_ended(roots: Roots) -> None:
    assert roots.ended == set(roots.started), "every root run has ended, and none with an error"
    assert not particle_threads()


def pruning(**settings: Any) -> Any:
    app = settings.pop("app", None) or nested_agent(InMemorySaver())
    given = {"particles": 5, "value": by_hash, "tau": 1e-4, "resample": amc.every(1), "boundary": "worker/model"}
    return amc.wrap(app, **{**given, "seed": 5, **settings})


def test_pruning_at_a_gate() -> None:
    roots = Roots()
    assert pruning().invoke(ASK, {**THREAD, "callbacks": [roots]}).amc.pruned
    assert_ended(roots)


async def test_pruning_at_a_gate_async() -> None:
    roots = Roots()
    assert (await pruning().ainvoke(ASK, {**THREAD, "callbacks": [roots]})).amc.pruned
    assert roots.ended == set(roots.started)
    assert not other_tasks()


def test_closing_a_stream_while_held() -> None:
    roots = Roots()
    events = pruning().stream(ASK, {**THREAD, "callbacks": [roots]}, stream_mode=["custom", "checkpoints"])
    next(events)
    events.close()
    assert_ended(roots)


def broken(transcripts: Any) -> list[float]:
    raise RuntimeError("judge is down")


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_value_function_that_raises_while_all_are_held(is_async: bool) -> None:
    roots, app = Roots(), pruning(value=broken)
    config: Any = {**THREAD, "callbacks": [roots]}
    with pytest.raises(RuntimeError, match="judge is down"):
        await app.ainvoke(ASK, config) if is_async else app.invoke(ASK, config)
    assert roots.ended == set(roots.started)
    assert not other_tasks()


async def test_cancelling_while_some_are_held_and_one_runs() -> None:
    started = asyncio.Event()
    cancelled = 0

    async def reply(messages: list[Any]) -> AIMessage:
        nonlocal cancelled
        particle = current_particle.get()
        if turn_of(messages) == 1 and particle is not None and particle.particle == "p1":
            started.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled += 1
                raise
        return call("note", turn_of(messages), n=1)

    saver = InMemorySaver()
    app = pruning(app=nested_agent(saver, reply), resample=amc.at(2))
    task = asyncio.create_task(app.ainvoke(ASK, THREAD))
    await started.wait()
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == 1
    assert saver.get_tuple(THREAD) is None
    assert not other_tasks()


@pytest.mark.parametrize("particles", [1, 4])
def test_keyboard_interrupt_while_others_are_held(particles: int) -> None:
    def reply(messages: list[Any]) -> AIMessage:
        particle = current_particle.get()
        if turn_of(messages) == 2 and (particle is None or particle.particle == "p0"):
            time.sleep(0.05)
            raise KeyboardInterrupt
        return call("note", turn_of(messages), n=1)

    app = pruning(app=nested_agent(reply=reply), particles=particles, resample=amc.at(2), value=None)
    with pytest.raises(KeyboardInterrupt):
        app.invoke(ASK)
    assert not particle_threads()


# -- errors ------------------------------------------------------------------------------------------------


class Down(Exception):
    pass


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_node_that_fails_beside_a_held_one(is_async: bool) -> None:
    def fail(state: Any) -> None:
        time.sleep(0.05)
        raise Down("beside")

    graph = StateGraph(branches(None).builder.state_schema)
    inner = steps("s1", "s2")
    graph.add_node("sub", RunnableLambda(lambda s: _logs(inner.invoke(s)), afunc=lambda s: _alogs(inner, s)))
    graph.add_node("beside", fail)
    graph.add_edge(START, "sub")
    graph.add_edge(START, "beside")
    app = forced(graph.compile(), ["sub/s1", "sub/s2"])
    with pytest.raises(Down):
        await app.ainvoke(LOG) if is_async else await asyncio.to_thread(app.invoke, LOG)
    assert not other_tasks()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_node_that_fails_behind_the_gate(is_async: bool) -> None:
    def reply(messages: list[Any]) -> AIMessage:
        particle = current_particle.get()
        if turn_of(messages) == 2 and particle is not None and particle.particle != "p2":
            raise Down("model")
        return seeded()(messages)

    app = pruning(app=nested_agent(reply=reply), particles=4, value=None)
    result = (await app.ainvoke(ASK) if is_async else await asyncio.to_thread(app.invoke, ASK)).amc
    statuses = {t.particle: t.status for t in result.trajectories}
    assert [statuses[f"p{i}"] for i in range(4)] == ["failed", "failed", "finished", "failed"]
    assert result.winner.trajectory.status == "finished"


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_subgraph_that_is_tried_again(is_async: bool) -> None:
    tries: dict[str, int] = {}

    def shaky(state: Any) -> dict[str, Any]:
        particle = current_particle.get()
        name = "" if particle is None else particle.particle
        tries[name] = tries.get(name, 0) + 1
        if tries[name] == 1:
            raise Down("once")
        return {"log": ["s2"], "n": 0}

    graph = StateGraph(branches(None).builder.state_schema)
    again = RetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False, retry_on=Down)
    graph.add_node("sub", steps("s1", "s2", "s3", s2=shaky), retry_policy=again)
    graph.add_edge(START, "sub")
    want = graph.compile(checkpointer=InMemorySaver()).invoke(LOG, CONFIG)
    tries.clear()
    app = wrapped(graph.compile(checkpointer=InMemorySaver()), NESTED["inherited"], 2)
    got = await app.ainvoke(LOG, CONFIG) if is_async else await asyncio.to_thread(app.invoke, LOG, CONFIG)
    assert got == want


def refused(app: Any, boundary: Any, message: str) -> None:
    with pytest.raises(amc.ConfigurationError, match=message):
        amc.wrap(app, boundary=boundary)


def test_paths_are_checked() -> None:
    app = nested_agent()
    refused(app, "wurker/model", "this graph has no node 'wurker'; its nodes are worker")
    refused(app, ["worker/modle"], "subgraph 'worker' has no node 'modle'; its nodes are model, tools")
    refused(app, "worker//model", "is no path of nodes")
    refused(app, "worker/", "is no path of nodes")
    amc.wrap(around(lambda s: s, None), boundary="sub/known/only/when/it/runs")


def test_graphs_that_cannot_be_held() -> None:
    refused(around(steps("s1", "s2", checkpointer=False), None), "sub/s2", "node 'sub' .*checkpointer=False")
    limited = create_agent(ReplyModel(reply=seeded()), [note], middleware=[ModelCallLimitMiddleware(run_limit=2)])
    refused(around(limited, None), "sub/model", "run_model_call_count")
    stopping = steps("s1", "s2").builder.compile(interrupt_before=["s2"])
    refused(around(stopping, None), "sub/s2", "'sub' has static breakpoints")
    timed = around(steps("s1", "s2"), None)
    timed.step_timeout = 5
    refused(timed, "sub/s2", "step_timeout")


def test_threads_cannot_be_few() -> None:
    with pytest.raises(amc.ConfigurationError, match=r"max_concurrency.*ainvoke"):
        forced(sent()(None), "sub/s2").invoke(LOG, {"max_concurrency": 2})


async def test_a_synchronous_call_in_an_asynchronous_run() -> None:
    inner = steps("s1", "s2")
    app = forced(around(lambda s: inner.invoke(s), None), "sub/s2")
    with pytest.raises(amc.ConfigurationError, match=r"node 'sub' runs synchronously.*ainvoke"):
        await app.ainvoke(LOG)
    assert not other_tasks()
