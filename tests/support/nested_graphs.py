"""Apps whose agents are subgraphs, with deterministic models, and the point inside each where it is held."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.managed import RemainingSteps
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send, interrupt

from tests.support.graphs import Case, Log, ScriptedModel, _node, add


def steps(*names: str, checkpointer: Any = None, **nodes: Any) -> Any:
    """A subgraph that runs its nodes one after the other."""
    graph = StateGraph(Log)
    for name in names:
        graph.add_node(name, nodes.get(name, _node(f"{name}-")))
    for before, after in zip((START, *names), names, strict=False):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=checkpointer)


def around(inner: Any, saver: Any, rounds: int = 6) -> Any:
    """a → sub → b, again until the count is reached."""
    graph = StateGraph(Log)
    graph.add_node("a", _node("a"))
    graph.add_node("sub", inner)
    graph.add_node("b", _node("b"))
    graph.add_edge(START, "a")
    graph.add_edge("a", "sub")
    graph.add_edge("sub", "b")
    graph.add_conditional_edges("b", lambda s: END if s["n"] > rounds else "a", ["a", END])
    return graph.compile(checkpointer=saver)


def subgraph(checkpointer: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda saver: around(steps("s1", "s2", "s3", checkpointer=checkpointer()), saver)


def two_levels(saver: Any) -> Any:
    return around(around(steps("s1", "s2"), None, rounds=8), saver, rounds=10)


def called_in_a_node(saver: Any) -> Any:
    inner = steps("s1", "s2")

    def call(s: Log, config: RunnableConfig) -> dict[str, Any]:
        out = inner.invoke({"log": [], "n": s["n"]}, config)
        return {"log": [f"[{' '.join(out['log'])}]"], "n": out["n"]}

    async def acall(s: Log, config: RunnableConfig) -> dict[str, Any]:
        out = await inner.ainvoke({"log": [], "n": s["n"]}, config)
        return {"log": [f"[{' '.join(out['log'])}]"], "n": out["n"]}

    return around(RunnableLambda(call, acall), saver)


def called_twice_in_a_node(saver: Any) -> Any:
    """The node's second call has a namespace with a number in it."""
    inner = steps("s1", "s2")

    def call(s: Log) -> dict[str, Any]:
        first = inner.invoke({"log": [], "n": s["n"]})
        second = inner.invoke({"log": [], "n": first["n"]})
        return {"log": [*first["log"], *second["log"]], "n": second["n"]}

    async def acall(s: Log) -> dict[str, Any]:
        first = await inner.ainvoke({"log": [], "n": s["n"]})
        second = await inner.ainvoke({"log": [], "n": first["n"]})
        return {"log": [*first["log"], *second["log"]], "n": second["n"]}

    return around(RunnableLambda(call, acall), saver)


class Fan(TypedDict):
    log: Annotated[list[str], operator.add]
    n: int


def sent(count: int = 2, plain: bool = False) -> Callable[[Any], Any]:
    """Parallel subgraphs, and beside them a node that is none."""

    def build(saver: Any) -> Any:
        def fan_out(s: Fan) -> list[Send]:
            sends = [Send("sub", {"log": [], "n": 10 * i}) for i in range(count)]
            return [*sends, Send("beside", {"n": 5})] if plain else sends

        graph = StateGraph(Fan)
        graph.add_node("a", lambda s: {"log": ["a"]})
        graph.add_node("sub", RunnableLambda(_only_log(steps("s1", "s2")), _aonly_log(steps("s1", "s2"))))
        graph.add_node("beside", lambda s: {"log": [f"beside {s['n']}"]})
        graph.add_node("sum", lambda s: {"log": [f"sum of {len(s['log'])}"]})
        graph.add_edge(START, "a")
        graph.add_conditional_edges("a", fan_out, ["sub", "beside"])
        graph.add_edge("sub", "sum")
        graph.add_edge("beside", "sum")
        return graph.compile(checkpointer=saver)

    return build


def _only_log(inner: Any) -> Callable[[Any], Any]:
    return lambda s: {"log": inner.invoke(s)["log"]}


def _aonly_log(inner: Any) -> Callable[[Any], Any]:
    async def run(s: Any) -> Any:
        return {"log": (await inner.ainvoke(s))["log"]}

    return run


def branches(saver: Any) -> Any:
    """Two different subgraphs in one super-step, of different lengths."""
    long, short = steps("s1", "s2", "s3"), steps("t1", "t2")
    graph = StateGraph(Fan)
    graph.add_node("a", lambda s: {"log": ["a"]})
    graph.add_node("long", RunnableLambda(_only_log(long), _aonly_log(long)))
    graph.add_node("short", RunnableLambda(_only_log(short), _aonly_log(short)))
    graph.add_node("b", lambda s: {"log": ["b"]})
    graph.add_edge(START, "a")
    graph.add_edge("a", "long")
    graph.add_edge("a", "short")
    graph.add_edge(["long", "short"], "b")
    return graph.compile(checkpointer=saver)


def worker(saver: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("plan", lambda s: {"messages": [AIMessage("plan", id=f"p{len(s['messages'])}")]})
    graph.add_node("worker", create_agent(ScriptedModel(), [add]))
    graph.add_node("review", lambda s: {"messages": [AIMessage("fine", id=f"r{len(s['messages'])}")]})
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "worker")
    graph.add_edge("worker", "review")
    return graph.compile(checkpointer=saver)


def worker_as_tool(saver: Any) -> Any:
    inner = create_agent(ScriptedModel(rounds=2), [add])

    def ask(question: int) -> str:
        return str(inner.invoke({"messages": [HumanMessage(f"q{question}", id="q")]})["messages"][-1].content)

    async def aask(question: int) -> str:
        out = await inner.ainvoke({"messages": [HumanMessage(f"q{question}", id="q")]})
        return str(out["messages"][-1].content)

    def choose(s: MessagesState) -> dict[str, Any]:
        asked = sum(m.type == "tool" for m in s["messages"])
        calls = [{"name": "ask", "args": {"question": asked}, "id": f"c{len(s['messages'])}"}] if asked < 2 else []
        return {"messages": [AIMessage(f"after {asked}", tool_calls=calls, id=f"o{len(s['messages'])}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("choose", choose)
    graph.add_node("tools", ToolNode([StructuredTool.from_function(ask, aask, name="ask", description="Ask.")]))
    graph.add_edge(START, "choose")
    graph.add_conditional_edges("choose", tools_condition)
    graph.add_edge("tools", "choose")
    return graph.compile(checkpointer=saver)


def asks_inside(saver: Any) -> Any:
    inner = steps("s1", "ask", "s2", ask=lambda s: {"log": [f"answer {interrupt('ok?')}"], "n": s["n"] + 1})
    return around(inner, saver, rounds=4)


def counted_inside(saver: Any) -> Any:
    class S(TypedDict):
        log: Annotated[list[Any], operator.add]
        left: RemainingSteps

    inner = StateGraph(S)
    inner.add_node("step", lambda s: {"log": [s["left"]]})
    inner.add_edge(START, "step")
    inner.add_conditional_edges("step", lambda s: "step" if s["left"] > 3 else END, ["step", END])
    graph = StateGraph(S)
    graph.add_node("a", lambda s: {"log": [s["left"]]})
    graph.add_node("sub", inner.compile())
    graph.add_node("b", lambda s: {"log": [s["left"]]})
    graph.add_edge(START, "a")
    graph.add_edge("a", "sub")
    graph.add_edge("sub", "b")
    return graph.compile(checkpointer=saver).with_config(recursion_limit=9)


_log = {"log": [], "n": 0}
_next = {"log": ["next"], "n": 0}
_ask = {"messages": [HumanMessage("go", id="h")]}
_again = {"messages": [HumanMessage("again", id="h2")]}

NESTED: dict[str, Case] = {
    "inherited": Case(subgraph(lambda: None), (_log, _next), ["sub/s2", "sub/s3"]),
    "memory": Case(subgraph(lambda: True), (_log, _next), ["sub/s2", "sub/s3"]),
    "own_saver": Case(subgraph(InMemorySaver), (_log, _next), "sub/s2"),
    "and_outside": Case(subgraph(lambda: None), (_log, _next), ["b", "sub/s2"]),
    "two_levels": Case(two_levels, (_log, _next), "sub/sub/s2"),
    "anywhere": Case(two_levels, (_log, _next), ["**/s2", "**/b"]),
    "called": Case(called_in_a_node, (_log, _next), ["sub/s1", "sub/s2"]),
    "called_twice": Case(called_twice_in_a_node, (_log, _next), ["sub/s1", "sub/s2"]),
    "sent": Case(sent(), (_log, _next), ["sub/s1", "sub/s2"]),
    "many_sent": Case(sent(12, plain=True), (_log, _next), ["sub/s1", "sub/s2"]),
    "branches": Case(branches, (_log, _next), ["long/s2", "long/s3", "short/t2"]),
    "worker": Case(worker, (_ask, _again), "worker/model"),
    "worker_tools": Case(worker, (_ask, _again), "worker/tools"),
    "worker_as_tool": Case(worker_as_tool, (_ask, _again), "tools/model"),
    "asks": Case(
        asks_inside, (_log, Command(resume="yes"), _next, Command(resume="no")), ["sub/s1", "sub/ask", "sub/s2"]
    ),
    "counted": Case(counted_inside, ({"log": []}, {"log": [-1]}), "sub/step"),
}
