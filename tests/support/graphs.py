"""Differently built LangGraph apps with deterministic models, to compare AMC with a plain run."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel, UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.managed import RemainingSteps
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel


class ScriptedModel(BaseChatModel):
    """Calls a tool for ``rounds`` turns and then answers; a pure function of the conversation."""

    rounds: int = 3

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        turn = sum(m.type == "ai" for m in messages) - max(
            (sum(x.type == "ai" for x in messages[:i]) for i, m in enumerate(messages) if m.type == "human"),
            default=0,
        )
        if turn < self.rounds:
            calls = [{"name": "add", "args": {"a": turn, "b": k}, "id": f"call-{len(messages)}-{k}"} for k in range(2)]
            message = AIMessage("", tool_calls=calls, id=f"ai-{len(messages)}")
        else:
            message = AIMessage(f"done after {len(messages)}", id=f"ai-{len(messages)}")
        message.usage_metadata = {
            "input_tokens": len(messages),
            "output_tokens": 1,
            "total_tokens": len(messages) + 1,
        }
        return ChatResult(generations=[ChatGeneration(message=message)])


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@dataclass(frozen=True)
class Case:
    """An app under a saver, its first input, and what is sent afterwards (next turns, resumes)."""

    build: Callable[[Any], Any]
    inputs: tuple[Any, ...]
    boundary: Any = "step"


class Log(TypedDict):
    log: Annotated[list[str], operator.add]
    n: int


def _node(name: str) -> Callable[[Log], dict[str, Any]]:
    def run(state: Log) -> dict[str, Any]:
        return {"log": [f"{name}{state.get('n', 0)}"], "n": state.get("n", 0) + 1}

    return run


def conditional(saver: Any) -> Any:
    g = StateGraph(Log)
    for name in "abc":
        g.add_node(name, _node(name))
    g.add_edge(START, "a")
    g.add_conditional_edges("a", lambda s: "b" if s["n"] % 2 else "c", ["b", "c"])
    g.add_edge("b", "c")
    g.add_conditional_edges("c", lambda s: END if s["n"] > 5 else "a", ["a", END])
    return g.compile(checkpointer=saver)


def join(saver: Any) -> Any:
    class S(TypedDict):
        log: Annotated[list[str], operator.add]

    def mark(name: str) -> Callable[[S], dict[str, Any]]:
        return lambda s: {"log": [f"{name}:{len(s['log'])}"]}

    g = StateGraph(S)
    for name in ("a", "b1", "b2", "b3", "end"):
        g.add_node(name, mark(name))
    g.add_node("late", mark("late"), defer=True)
    g.add_edge(START, "a")
    g.add_edge("a", "b1")
    g.add_edge("a", "b2")
    g.add_edge("b2", "b3")
    g.add_edge(["b1", "b3"], "end")
    g.add_edge("b1", "late")
    return g.compile(checkpointer=saver)


def send(saver: Any) -> Any:
    class S(TypedDict):
        items: list[int]
        done: Annotated[list[int], operator.add]

    g = StateGraph(S)
    g.add_node("plan", lambda s: {"items": [1, 2, 3]})
    g.add_node("work", lambda s: {"done": [s["i"] * 10]})
    g.add_node("sum", lambda s: {"done": [sum(s["done"])]})
    g.add_edge(START, "plan")
    g.add_conditional_edges("plan", lambda s: [Send("work", {"i": i}) for i in s["items"]], ["work"])
    g.add_edge("work", "sum")
    return g.compile(checkpointer=saver)


def send_interrupt(saver: Any) -> Any:
    """Fan-out in which one branch asks and the others finish."""

    class S(TypedDict):
        items: list[int]
        done: Annotated[list[str], operator.add]

    def work(s: Any) -> dict[str, Any]:
        if s["i"] == 2:
            return {"done": [f"2:{interrupt('which?')}"]}
        return {"done": [str(s["i"])]}

    g = StateGraph(S)
    g.add_node("plan", lambda s: {"items": [1, 2, 3]})
    g.add_node("work", work)
    g.add_node("sum", lambda s: {"done": ["+".join(s["done"])]})
    g.add_edge(START, "plan")
    g.add_conditional_edges("plan", lambda s: [Send("work", {"i": i}) for i in s["items"]], ["work"])
    g.add_edge("work", "sum")
    return g.compile(checkpointer=saver)


def _inner(checkpointer: Any) -> Any:
    s = StateGraph(Log)
    s.add_node("s1", _node("s1-"))
    s.add_node("s2", _node("s2-"))
    s.add_edge(START, "s1")
    s.add_edge("s1", "s2")
    return s.compile(checkpointer=checkpointer)


def subgraph(inner_saver: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def build(saver: Any) -> Any:
        g = StateGraph(Log)
        g.add_node("a", _node("a"))
        g.add_node("sub", _inner(inner_saver(saver)))
        g.add_node("b", _node("b"))
        g.add_edge(START, "a")
        g.add_edge("a", "sub")
        g.add_edge("sub", "b")
        g.add_conditional_edges("b", lambda s: END if s["n"] > 6 else "a", ["a", END])
        return g.compile(checkpointer=saver)

    return build


def interrupting_subgraph(saver: Any) -> Any:
    inner = StateGraph(Log)
    inner.add_node("s1", _node("s1-"))
    inner.add_node("ask", lambda s: {"log": [f"answer {interrupt('ok?')}"]})
    inner.add_edge(START, "s1")
    inner.add_edge("s1", "ask")
    g = StateGraph(Log)
    g.add_node("a", _node("a"))
    g.add_node("sub", inner.compile())
    g.add_node("b", _node("b"))
    g.add_edge(START, "a")
    g.add_edge("a", "sub")
    g.add_edge("sub", "b")
    return g.compile(checkpointer=saver)


def asks(saver: Any) -> Any:
    g = StateGraph(Log)
    g.add_node("a", _node("a"))
    g.add_node("ask", lambda s: {"log": [f"{interrupt('first?')}-{interrupt('second?')}"]})
    g.add_node("b", _node("b"))
    g.add_edge(START, "a")
    g.add_edge("a", "ask")
    g.add_edge("ask", "b")
    return g.compile(checkpointer=saver)


def breakpoints(saver: Any) -> Any:
    g = StateGraph(Log)
    for name in "abc":
        g.add_node(name, _node(name))
    g.add_edge(START, "a")
    g.add_edge("a", "b")
    g.add_edge("b", "c")
    return g.compile(checkpointer=saver, interrupt_before=["b"], interrupt_after=["b"])


def delta(saver: Any) -> Any:
    class S(TypedDict):
        log: Annotated[list[str], DeltaChannel(lambda old, new: [*(old or []), *(x for w in new for x in w)])]
        n: int

    g = StateGraph(S)
    g.add_node("a", lambda s: {"log": [f"a{s['n']}"], "n": s["n"] + 1})
    g.add_node("b", lambda s: {"log": [f"b{len(s['log'])}"]})
    g.add_edge(START, "a")
    g.add_edge("a", "b")
    g.add_conditional_edges("b", lambda s: END if s["n"] > 3 else "a", ["a", END])
    return g.compile(checkpointer=saver)


def untracked(saver: Any) -> Any:
    class S(TypedDict):
        log: Annotated[list[str], operator.add]
        calls: Annotated[int, UntrackedValue]

    def step(s: Any) -> dict[str, Any]:
        n = s.get("calls", 0) + 1
        return {"log": [f"call {n}"], "calls": n}

    g = StateGraph(S)
    g.add_node("step", step)
    g.add_edge(START, "step")
    g.add_conditional_edges("step", lambda s: END if s.get("calls", 0) > 4 else "step", ["step", END])
    return g.compile(checkpointer=saver)


def managed(saver: Any) -> Any:
    class S(TypedDict):
        log: Annotated[list[int], operator.add]
        remaining: RemainingSteps

    g = StateGraph(S)
    g.add_node("step", lambda s: {"log": [s["remaining"]]})
    g.add_edge(START, "step")
    g.add_conditional_edges("step", lambda s: END if s["remaining"] <= 3 else "step", ["step", END])
    return g.compile(checkpointer=saver).with_config(recursion_limit=9)


def goto(saver: Any) -> Any:
    class S(TypedDict):
        log: Annotated[list[str], operator.add]

    def router(s: S) -> Command:
        return Command(update={"log": ["r"]}, goto="x" if len(s["log"]) < 5 else "y")

    g = StateGraph(S)
    g.add_node("router", router, destinations=("x", "y"))
    g.add_node("x", lambda s: {"log": ["x"]})
    g.add_node("y", lambda s: {"log": ["y"]})
    g.add_edge(START, "router")
    g.add_edge("x", "router")
    return g.compile(checkpointer=saver)


def mutating(saver: Any) -> Any:
    """Nodes that edit their state in place."""

    class S(TypedDict):
        bag: dict[str, int]
        messages: Annotated[list[AnyMessage], add_messages]

    def grow(s: S) -> dict[str, Any]:
        s["bag"][f"k{len(s['bag'])}"] = len(s["bag"])
        last = s["messages"][-1]
        last.content = f"{last.content}!"
        return {"bag": s["bag"], "messages": [last, AIMessage(f"m{len(s['bag'])}", id=f"m{len(s['bag'])}")]}

    g = StateGraph(S)
    g.add_node("grow", grow)
    g.add_edge(START, "grow")
    g.add_conditional_edges("grow", lambda s: END if len(s["bag"]) > 4 else "grow", ["grow", END])
    return g.compile(checkpointer=saver)


def agent(saver: Any) -> Any:
    return create_agent(ScriptedModel(), [add], checkpointer=saver)


def loop_of_messages(saver: Any) -> Any:
    """A hand-written agent loop over MessagesState."""
    model = ScriptedModel(rounds=2)

    def act(s: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(s["messages"])]}

    def tools(s: MessagesState) -> dict[str, Any]:
        return {"messages": [HumanMessage("result", id=f"h{len(s['messages'])}", name="tools")]}

    g = StateGraph(MessagesState)
    g.add_node("act", act)
    g.add_node("tools", tools)
    g.add_edge(START, "act")
    g.add_conditional_edges(
        "act",
        lambda s: "tools" if s["messages"][-1].tool_calls and len(s["messages"]) < 6 else END,
        ["tools", END],
    )
    g.add_edge("tools", "act")
    return g.compile(checkpointer=saver)


def functional(saver: Any) -> Any:
    @task
    def double(x: int) -> int:
        return 2 * x

    @entrypoint(checkpointer=saver)
    def flow(x: int, *, previous: int | None = None) -> Any:
        doubled = [double(x + i).result() for i in range(3)]
        extra = interrupt("more?") if x == 5 else 0
        return entrypoint.final(value={"sum": sum(doubled) + extra, "before": previous}, save=sum(doubled))

    return flow


def pydantic_state(saver: Any) -> Any:
    class S(BaseModel):
        log: Annotated[list[str], operator.add] = []
        n: int = 0

    g = StateGraph(S)
    g.add_node("a", lambda s: {"log": [f"a{s.n}"], "n": s.n + 1})
    g.add_edge(START, "a")
    g.add_conditional_edges("a", lambda s: END if s.n > 3 else "a", ["a", END])
    return g.compile(checkpointer=saver)


_ask = {"messages": [HumanMessage("go", id="h")]}
_again = {"messages": [HumanMessage("again", id="h2")]}
_log = {"log": [], "n": 0}

CASES: dict[str, Case] = {
    "conditional": Case(conditional, (_log, {"log": ["next"], "n": 0})),
    "join": Case(join, ({"log": []}, {"log": ["next"]})),
    "send": Case(send, ({"items": [], "done": []}, {"items": [], "done": [7]})),
    "send_interrupt": Case(send_interrupt, ({"items": [], "done": []}, Command(resume="B"))),
    "subgraph_inherited": Case(subgraph(lambda saver: None), (_log, {"log": ["next"], "n": 0})),
    "subgraph_true": Case(subgraph(lambda saver: True), (_log, {"log": ["next"], "n": 0})),
    "subgraph_own": Case(subgraph(lambda saver: InMemorySaver()), (_log,)),
    "subgraph_interrupt": Case(interrupting_subgraph, (_log, Command(resume="yes"), {"log": ["next"], "n": 0})),
    "interrupts": Case(asks, (_log, Command(resume="A"), Command(resume="B"))),
    "breakpoints": Case(breakpoints, (_log, None, None)),
    "delta": Case(delta, ({"log": [], "n": 0}, {"log": ["next"], "n": 2})),
    "untracked": Case(untracked, ({"log": []}, {"log": ["next"]})),
    "managed": Case(managed, ({"log": []}, {"log": [-1]})),
    "goto": Case(goto, ({"log": []}, {"log": ["next"]})),
    "mutating": Case(mutating, ({"bag": {}, "messages": [HumanMessage("go", id="h")]},)),
    "functional": Case(functional, (1, 5, Command(resume=100), 2)),
    "pydantic": Case(pydantic_state, ({"log": [], "n": 0}, {"log": ["next"], "n": 1})),
    "create_agent": Case(agent, (_ask, _again), boundary="auto"),
    "message_loop": Case(loop_of_messages, (_ask, _again), boundary="auto"),
}
