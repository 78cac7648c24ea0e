"""Agentic Monte Carlo inside a larger graph: as a node, as a subgraph, in a tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

import langgraph_amc as amc
from langgraph_amc.runtime.run import NestedInterruptError
from tests.runtime.support import ASK, THREAD, ReplyModel, Roots, agent, by_hash, call, seeded, texts, turn_of

SETTINGS: dict[str, Any] = {"particles": 3, "value": by_hash, "resample": amc.every(1), "seed": 1}


def chosen() -> list[str]:
    return texts(amc.wrap(agent(seeded()), **SETTINGS).invoke(ASK))


def around(node: Any, saver: Any = None, **options: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("before", lambda s: {})
    graph.add_node("inner", node)
    graph.add_node("after", lambda s: {"messages": [AIMessage("after")]})
    graph.add_edge(START, "before")
    graph.add_edge("before", "inner")
    graph.add_edge("inner", "after")
    return graph.compile(checkpointer=saver, **options)


NODES = {
    "AMCNode": lambda: amc.AMCNode(agent(seeded()), **SETTINGS),
    "subgraph": lambda: amc.wrap(agent(seeded()), **SETTINGS),
}


@pytest.mark.parametrize("kind", NODES)
@pytest.mark.parametrize("saver", [False, True])
async def test_the_winners_output_is_the_nodes_update(kind: str, saver: bool) -> None:
    want = [*chosen(), "after"]
    app = around(NODES[kind](), InMemorySaver() if saver else None)
    assert texts(app.invoke(ASK, {"configurable": {"thread_id": "a"}})) == want
    assert texts(await app.ainvoke(ASK, {"configurable": {"thread_id": "b"}})) == want
    if saver:
        assert texts(app.get_state({"configurable": {"thread_id": "a"}}).values) == want
        steps = [s.metadata["step"] for s in app.get_state_history({"configurable": {"thread_id": "b"}})]
        assert steps == [3, 2, 1, 0, -1]


@pytest.mark.parametrize("kind", NODES)
@pytest.mark.parametrize("mode", ["values", "updates", "messages", "custom", "tasks", "checkpoints"])
@pytest.mark.parametrize("subgraphs", [False, True])
def test_the_parents_stream_shows_no_particles(kind: str, mode: str, subgraphs: bool) -> None:
    app = around(NODES[kind](), InMemorySaver())
    events = list(app.stream(ASK, THREAD, stream_mode=mode, subgraphs=subgraphs))
    if subgraphs:
        assert {tuple(n.partition(":")[0] for n in ns) for ns, _ in events} <= {(), ("inner",)}
        events = [payload for ns, payload in events if mode == "messages" or not ns]
    if mode == "updates":
        assert [list(e) for e in events] == [["before"], ["inner"], ["after"]]
    if mode == "messages":
        assert [m.content for m, _ in events] == [*chosen()[1:], "after"]
    if mode == "custom":
        assert events == []


@pytest.mark.parametrize("kind", NODES)
async def test_the_parents_stream_shows_no_particles_async(kind: str) -> None:
    app = around(NODES[kind]())
    events = [e async for e in app.astream(ASK, stream_mode="messages", subgraphs=True)]
    assert [m.content for _, (m, _) in events] == [*chosen()[1:], "after"]


class Outer(TypedDict):
    question: str
    answer: str


def test_states_are_mapped() -> None:
    node = amc.AMCNode(
        agent(seeded()),
        to_inner=lambda s: {"messages": [("user", s["question"])]},
        to_outer=lambda out: {"answer": out["messages"][-1].content},
        **SETTINGS,
    )
    graph = StateGraph(Outer)
    graph.add_node("solve", node)
    graph.add_edge(START, "solve")
    assert graph.compile().invoke({"question": "go"}) == {"question": "go", "answer": chosen()[-1]}


def test_keys_the_parent_does_not_know_are_dropped_as_for_a_subgraph() -> None:
    class Inner(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]
        private: int

    inner = StateGraph(Inner)
    inner.add_node("n", lambda s: {"messages": [AIMessage("inner")], "private": 1})
    inner.add_edge(START, "n")
    plain = around(inner.compile()).invoke(ASK)
    assert texts(around(amc.AMCNode(inner.compile(), particles=3)).invoke(ASK)) == texts(plain)


def commanding(target: str) -> Any:
    def leave(state: MessagesState) -> Command:
        return Command(graph=Command.PARENT, goto=target, update={"messages": [AIMessage("handing over")]})

    inner = StateGraph(MessagesState)
    inner.add_node("leave", leave)
    inner.add_edge(START, "leave")
    return inner.compile()


@pytest.mark.parametrize("kind", ["plain", "AMCNode", "subgraph"])
async def test_command_to_the_parent(kind: str) -> None:
    make = {
        "plain": lambda: commanding("other"),
        "AMCNode": lambda: amc.AMCNode(commanding("other"), particles=3),
        "subgraph": lambda: amc.wrap(commanding("other"), particles=3),
    }
    graph = StateGraph(MessagesState)
    graph.add_node("inner", make[kind](), destinations=("other",))
    graph.add_node("other", lambda s: {"messages": [AIMessage("other")]})
    graph.add_edge(START, "inner")
    app = graph.compile()
    assert texts(app.invoke(ASK)) == ["go", "handing over", "other"]
    assert texts(await app.ainvoke(ASK)) == ["go", "handing over", "other"]


@pytest.mark.parametrize("kind", NODES)
def test_the_parents_store_is_used(kind: str) -> None:
    def write(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        seen = store.get(("n",), "n")
        store.put(("n",), "n", {"n": 1 if seen is None else seen.value["n"] + 1})
        return {"messages": [AIMessage("wrote")]}

    inner = StateGraph(MessagesState)
    inner.add_node("write", write)
    inner.add_edge(START, "write")
    node = {"AMCNode": amc.AMCNode, "subgraph": amc.wrap}[kind](inner.compile(), particles=3)
    store = InMemoryStore()
    around(node, store=store).invoke(ASK)
    assert store.get(("n",), "n").value == {"n": 1}


@dataclass
class Context:
    user: str


@pytest.mark.parametrize("kind", ["plain", "AMCNode", "subgraph"])
def test_the_parents_context_is_seen(kind: str) -> None:
    def look(state: MessagesState, runtime: Runtime[Context]) -> dict[str, Any]:
        return {"messages": [AIMessage(runtime.context.user)]}

    inner = StateGraph(MessagesState, context_schema=Context)
    inner.add_node("look", look)
    inner.add_edge(START, "look")
    make: Any = {"plain": lambda app, **_: app, "AMCNode": amc.AMCNode, "subgraph": amc.wrap}[kind]
    graph = StateGraph(MessagesState, context_schema=Context)
    graph.add_node("inner", make(inner.compile(), particles=3))
    graph.add_edge(START, "inner")
    assert texts(graph.compile().invoke(ASK, context=Context("ann")))[-1] == "ann"


def test_traces_nest() -> None:
    roots = Roots()
    around(amc.AMCNode(agent(seeded()), **SETTINGS)).invoke(ASK, {"callbacks": [roots]})
    assert len(roots.started) == 1
    assert roots.errors == []


def test_an_interrupt_that_nobody_can_resume_is_refused_with_advice() -> None:
    inner = StateGraph(MessagesState)
    inner.add_node("ask", lambda s: {"messages": [AIMessage(interrupt("ok?"))]})
    inner.add_edge(START, "ask")
    app = around(amc.AMCNode(inner.compile(), particles=2))
    with pytest.raises(NestedInterruptError, match="with a checkpointer"):
        app.invoke(ASK, THREAD)


# -- called from a tool or node ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["bare", "config", "thread"])
@pytest.mark.parametrize("use_async", [False, True])
async def test_called_from_a_node_with_and_without_a_thread(how: str, use_async: bool) -> None:
    """An explicit thread id makes the inner run one of its own, with its own saver, as in LangGraph."""
    inner_saver = InMemorySaver()
    better = amc.wrap(agent(seeded(), saver=inner_saver if how == "thread" else None), **SETTINGS)

    def arguments(config: Any) -> tuple[Any, ...]:
        own = {"configurable": {"thread_id": "inner"}}
        return {"bare": (ASK,), "config": (ASK, config), "thread": (ASK, own)}[how]

    def node(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [AIMessage(better.invoke(*arguments(config))["messages"][-1].content)]}

    async def anode(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        out = await better.ainvoke(*arguments(config))
        return {"messages": [AIMessage(out["messages"][-1].content)]}

    saver = InMemorySaver()
    app = around(anode if use_async else node, saver)
    events = (
        [e async for e in app.astream(ASK, THREAD, stream_mode=["values", "messages"])]
        if use_async
        else list(app.stream(ASK, THREAD, stream_mode=["values", "messages"]))
    )
    assert texts(events[-1][1]) == ["go", chosen()[-1], "after"]
    assert [m.content for mode, e in events if mode == "messages" for m in e[:1]] == [chosen()[-1], "after"]
    inside = [ns for t in saver.list(None) if (ns := t.config["configurable"]["checkpoint_ns"])]
    assert len(inside) == (0 if how == "thread" else 1), "the answer, in case the node has to run again"
    assert {t.config["configurable"]["thread_id"] for t in saver.list(None)} == {"t"}
    if how == "thread":
        assert texts(better.get_state({"configurable": {"thread_id": "inner"}}).values) == chosen()


def test_called_from_a_tool_of_an_agent() -> None:
    better = amc.wrap(agent(seeded()), **SETTINGS)

    @tool
    def delegate(question: str) -> str:
        """Ask the expert."""
        return str(better.invoke({"messages": [("user", question)]})["messages"][-1].content)

    def reply(messages: list[Any]) -> AIMessage:
        return call("delegate", 0, question="go") if turn_of(messages) == 0 else AIMessage("done")

    assert texts(agent(reply, [delegate]).invoke(ASK)) == ["go", "step 0", chosen()[-1], "done"]


def test_particles_of_particles() -> None:
    """The tool of each particle runs particles of its own."""
    better = amc.wrap(agent(seeded()), particles=2, value=by_hash, resample=amc.every(1))

    @tool
    def delegate(question: str) -> str:
        """Ask the expert."""
        outer = amc.current_particle.get()
        out = better.invoke({"messages": [("user", question)]})
        assert amc.current_particle.get() == outer
        return str(out["messages"][-1].content)

    def reply(messages: list[Any]) -> AIMessage:
        return call("delegate", 0, question="go") if turn_of(messages) == 0 else AIMessage("done")

    out = amc.wrap(agent(reply, [delegate]), particles=3, value=by_hash, resample=amc.every(1), seed=1).invoke(ASK)
    assert texts(out)[-1] == "done"
    assert len(out.amc.particles) == 3


def test_streaming_messages_of_a_wrapped_app_inside_a_node() -> None:
    better = amc.wrap(agent(seeded()), **SETTINGS)
    seen: list[str] = []

    def node(state: MessagesState) -> dict[str, Any]:
        seen.extend(m.content for m, _ in better.stream(ASK, stream_mode="messages"))
        return {}

    around(node).invoke(ASK)
    assert seen == chosen()[1:]


# -- building ------------------------------------------------------------------------------------------


def test_the_decorator() -> None:
    @amc.amc(**SETTINGS)
    def build(rounds: int, *, name: str = "x") -> Any:
        """Builds."""
        return agent(seeded(rounds))

    assert build.__doc__ == "Builds."
    assert build.__name__ == "build"
    assert texts(build(3, name="y").invoke(ASK)) == chosen()


def test_a_conditional_loop_around_a_node() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("inner", amc.AMCNode(agent(seeded(1)), **SETTINGS))
    graph.add_node("more", lambda s: {"messages": [("user", "more")]})
    graph.add_edge(START, "inner")
    graph.add_conditional_edges("inner", lambda s: END if len(s["messages"]) > 6 else "more", ["more", END])
    graph.add_edge("more", "inner")
    out = graph.compile(checkpointer=InMemorySaver()).invoke(ASK, THREAD)
    assert [m.type for m in out["messages"]] == ["human", "ai", "tool", "ai"] * 2


def test_a_model_node_next_to_it_streams() -> None:
    model = ReplyModel(reply=lambda m: AIMessage("outside"))
    graph = StateGraph(MessagesState)
    graph.add_node("inner", amc.AMCNode(agent(seeded()), **SETTINGS))
    graph.add_node("speak", lambda s: {"messages": [model.invoke(s["messages"])]})
    graph.add_edge(START, "inner")
    graph.add_edge("inner", "speak")
    events = list(graph.compile().stream(ASK, stream_mode="messages"))
    assert [m.content for m, _ in events] == [*chosen()[1:], "outside"]
