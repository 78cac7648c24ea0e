"""The wrapped app has the app's own interface."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command
from pydantic import BaseModel

import langgraph_amc as amc
from tests.runtime.support import ASK, THREAD, Roots, agent, by_hash, seeded, texts
from tests.support.graphs import CASES

SETTINGS: dict[str, Any] = {"particles": 3, "value": by_hash, "resample": amc.every(1), "seed": 1}


def wrapped(saver: Any = None, **options: Any) -> Any:
    return amc.wrap(agent(seeded(), saver=saver, **options), **SETTINGS)


def outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def test_it_is_of_the_apps_own_class() -> None:
    app = agent(seeded())
    better = amc.wrap(app, **SETTINGS)
    assert isinstance(better, type(app))
    assert better.get_name() == app.get_name()
    assert better.nodes is app.nodes


@pytest.mark.parametrize("name", CASES)
def test_drawings_and_schemas_are_equal(name: str) -> None:
    app = CASES[name].build(None)
    better = amc.wrap(app, particles=2)
    assert better.get_graph().draw_mermaid() == app.get_graph().draw_mermaid()
    assert better.get_graph(xray=True).draw_mermaid() == app.get_graph(xray=True).draw_mermaid()
    for schema in ("get_input_jsonschema", "get_output_jsonschema", "get_context_jsonschema"):
        assert outcome(getattr(better, schema)) == outcome(getattr(app, schema))
    assert [n for n, _ in better.get_subgraphs()] == [n for n, _ in app.get_subgraphs()]


def test_with_config() -> None:
    roots = Roots()
    better = wrapped()
    bound = better.with_config(tags=["bound"], metadata={"k": 1}, callbacks=[roots])
    assert texts(bound.invoke(ASK)) == texts(better.invoke(ASK))
    assert amc.last_run(bound) is not amc.last_run(better)
    assert len(roots.started) >= 3
    assert all(k["tags"] == ["bound"] and k["metadata"]["k"] == 1 for k in roots.started.values())


@pytest.mark.parametrize("limit", [4, 25])
def test_a_recursion_limit_of_the_call_counts(limit: int) -> None:
    """25 is LangChain's default and so easily taken for "not given"."""
    seen: list[int] = []

    def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        seen.append(config["recursion_limit"])
        return {}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    app = graph.compile().with_config(recursion_limit=100)
    amc.wrap(app, particles=2).invoke(ASK, {"recursion_limit": limit})
    amc.wrap(app, particles=2).invoke(ASK)
    assert seen == [limit, limit, 100, 100]


def test_config_reaches_nodes_as_in_a_plain_run() -> None:
    seen: list[Any] = []

    def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        keys = {k: v for k, v in config["configurable"].items() if not k.startswith(("__", "checkpoint"))}
        metadata = {k: v for k, v in config["metadata"].items() if not k.startswith(("langgraph_", "checkpoint"))}
        seen.append((keys, metadata, config.get("tags"), config.get("recursion_limit")))
        return {}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    app = graph.compile(checkpointer=InMemorySaver()).with_config(tags=["a"], metadata={"m": 1}, configurable={"x": 1})
    config = {"configurable": {"thread_id": "t", "user": "ann"}, "tags": ["b"], "metadata": {"n": 2}}
    app.invoke(ASK, config)
    amc.wrap(app, particles=2).invoke(ASK, {**config, "configurable": {"thread_id": "t2", "user": "ann"}})
    plain, *particles = seen
    for keys, metadata, tags, limit in particles:
        assert keys == {**plain[0], "thread_id": "t2"}
        assert (metadata | {"thread_id": "t"}, tags, limit) == (plain[1] | {"thread_id": "t"}, *plain[2:])


def test_batch() -> None:
    better = wrapped()
    outs = better.batch([{"messages": [("user", f"q{i}")]} for i in range(4)])
    assert [texts(o)[0] for o in outs] == [f"q{i}" for i in range(4)]
    assert len({o.amc.run_id for o in outs}) == 4
    assert all(o.amc.winner.output == dict(o) for o in outs)


async def test_abatch() -> None:
    better = wrapped()
    outs = await better.abatch([{"messages": [("user", f"q{i}")]} for i in range(4)])
    assert [texts(o)[0] for o in outs] == [f"q{i}" for i in range(4)]
    assert all(o.amc.winner.output == dict(o) for o in outs)


async def test_astream_events_v2() -> None:
    better = wrapped()
    events = [e async for e in better.astream_events(ASK, version="v2")]
    assert events[-1]["event"] == "on_chain_end"
    assert {e["name"] for e in events if e["event"] == "on_chat_model_end"} == {"ReplyModel"}


def test_stream_events_v3() -> None:
    better = wrapped()
    run = better.stream_events(ASK, version="v3")
    assert texts(run.output) == texts(better.invoke(ASK))


async def test_astream_events_v3() -> None:
    better = wrapped()
    run = await better.astream_events(ASK, version="v3")
    assert texts(await run.output()) == texts(better.invoke(ASK))


def test_state_methods() -> None:
    better = wrapped(InMemorySaver())
    out = better.invoke(ASK, THREAD)
    assert texts(better.get_state(THREAD).values) == texts(out)
    config = better.update_state(THREAD, {"messages": [HumanMessage("more")]})
    assert texts(better.get_state(config).values) == [*texts(out), "more"]
    again = better.invoke(None, THREAD)
    assert texts(again)[: len(texts(out))] == texts(out)
    assert len(list(better.get_state_history(THREAD))) > 8


def test_attributes_set_later_count() -> None:
    better = wrapped()
    better.checkpointer = InMemorySaver()
    better.invoke(ASK, THREAD)
    assert len(list(better.get_state_history(THREAD))) > 5


def test_composes_with_runnables() -> None:
    chain = wrapped() | (lambda out: out["messages"][-1].content)
    assert chain.invoke(ASK).startswith("answer")
    assert asyncio.run(chain.ainvoke(ASK)).startswith("answer")


def test_output_keys_and_stream_modes_of_invoke() -> None:
    better = wrapped()
    assert [m.content for m in better.invoke(ASK, output_keys="messages")] == texts(better.invoke(ASK))
    updates = better.invoke(ASK, stream_mode="updates")
    assert isinstance(updates, list)
    assert list(updates[0]) == ["model"]


# -- other kinds of apps -----------------------------------------------------------------------------


def test_many_particles() -> None:
    out = amc.wrap(agent(seeded(1)), particles=64, value=by_hash, resample=amc.every(1), seed=1).invoke(ASK)
    assert len(out.amc.particles) == 64


async def test_many_particles_async_with_synchronous_nodes() -> None:
    out = await amc.wrap(agent(seeded(1)), particles=64, value=by_hash, resample=amc.every(1), seed=1).ainvoke(ASK)
    assert len(out.amc.particles) == 64


def test_a_graph_without_messages() -> None:
    class S(TypedDict):
        n: int

    graph = StateGraph(S)
    graph.add_node("work", lambda s: {"n": s["n"] + 1})
    graph.add_edge(START, "work")
    out = amc.wrap(graph.compile(), particles=3, reward=lambda run: run.output["n"]).invoke({"n": 1})
    assert out == {"n": 2}
    assert out.amc.winner.reward == 2


@pytest.mark.parametrize("messages", ["text", 3, {"a": 1}, [object()]])
def test_messages_that_are_none(messages: Any) -> None:
    """A channel may be called messages and hold something else."""

    class S(TypedDict):
        messages: Any

    graph = StateGraph(S)
    graph.add_node("work", lambda s: {"messages": messages})
    graph.add_edge(START, "work")
    out = amc.wrap(graph.compile(), particles=3, seed=1).invoke({"messages": messages})
    assert type(out["messages"]) is type(messages)
    if not isinstance(messages, list):
        assert any("transcripts end early" in w for w in out.amc.warnings)


def test_async_only_nodes_through_invoke() -> None:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("x")]}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")

    assert outcome(amc.wrap(graph.compile(), particles=3).invoke, ASK) == outcome(graph.compile().invoke, ASK)
    assert texts(asyncio.run(amc.wrap(graph.compile(), particles=3).ainvoke(ASK))) == ["go", "x"]


@dataclass
class Context:
    user: str


@pytest.mark.parametrize("context", [Context("ann"), {"user": "ann"}])
@pytest.mark.parametrize("particles", [1, 3])
def test_context(context: Any, particles: int) -> None:
    def node(state: MessagesState, runtime: Runtime[Context]) -> dict[str, Any]:
        return {"messages": [AIMessage(runtime.context.user)]}

    graph = StateGraph(MessagesState, context_schema=Context)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    better = amc.wrap(graph.compile(), particles=particles)
    assert texts(better.invoke(ASK, context=context)) == ["go", "ann"]


def test_a_resume_without_a_saver_is_refused_as_in_plain() -> None:
    with pytest.raises(RuntimeError, match="without checkpointer"):
        wrapped().invoke(Command(resume=1))


def test_pydantic_input_and_output() -> None:
    class S(BaseModel):
        log: Annotated[list[str], lambda a, b: a + b] = []
        n: int = 0

    graph = StateGraph(S)
    graph.add_node("work", lambda s: {"n": s.n + 1, "log": ["x"]})
    graph.add_edge(START, "work")
    app = graph.compile()
    for version in ("v1", "v2"):
        got = amc.wrap(app, particles=3).invoke(S(n=1), version=version)
        assert got == app.invoke(S(n=1), version=version)
        assert type(getattr(got, "value", S())) is S
