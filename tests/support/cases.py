"""Every app the equality suite runs: those of `graphs`, agents with middleware, and what needs a file of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    ModelRetryMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from tests.support.graphs import CASES, Case, Log, ScriptedModel, _again, _ask, _inner, _log, _node, add

Reply = Callable[[list[BaseMessage]], AIMessage]


class FunctionModel(BaseChatModel):
    """Answers with a function of the conversation; a refusal to answer is what the function raises."""

    reply: Reply

    @property
    def _llm_type(self) -> str:
        return "function"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.reply(messages))])


def call(name: str, number: int, **args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"{name}-{number}"}], id=f"ai-{number}")


def built(*middleware: Callable[[], Any], model: Callable[[], Any] = ScriptedModel, **options: Any) -> Any:
    """An agent with fresh middleware, which may keep state."""
    tools: list[BaseTool] = options.pop("tools", [add])

    def build(saver: Any) -> Any:
        return create_agent(model(), tools, middleware=[m() for m in middleware], checkpointer=saver, **options)

    return build


def summarising() -> SummarizationMiddleware:
    model = FunctionModel(reply=lambda messages: AIMessage("in short", id="short"))
    return SummarizationMiddleware(model, trigger=("messages", 6), keep=("messages", 2))


def counting(messages: list[BaseMessage]) -> AIMessage:
    """Adds 1 to the last result until it is 5; needs no memory of earlier steps."""
    total = int(str(messages[-1].content)) if messages[-1].type == "tool" else 0
    if total == 5:
        return AIMessage("done")
    return AIMessage("", tool_calls=[{"name": "add", "args": {"a": total, "b": 1}, "id": f"add-{total}"}])


def planning(messages: list[BaseMessage]) -> AIMessage:
    turn = sum(m.type == "ai" for m in messages)
    if turn % 3 < 2:
        status = ("in_progress", "completed")[turn % 3]
        return call("write_todos", turn, todos=[{"content": "work", "status": status}])
    return AIMessage("done", id=f"ai-{turn}")


def flaky_model() -> FunctionModel:
    """Fails at every first attempt of a turn, whoever asks."""
    attempts: dict[str, int] = {}

    def reply(messages: list[BaseMessage]) -> AIMessage:
        who = _who() + str(len(messages))
        attempts[who] = attempts.get(who, 0) + 1
        if attempts[who] % 2:
            raise ConnectionError("try again")
        return ScriptedModel(rounds=2).invoke(messages)

    return FunctionModel(reply=reply)


def _who() -> str:
    from langgraph_amc.context import current_particle

    particle = current_particle.get()
    return "plain" if particle is None else particle.particle


_tool_attempts: dict[str, int] = {}


@tool
def flaky(a: int) -> int:
    """Fails at the first attempt."""
    who = f"{_who()}-{a}"
    _tool_attempts[who] = _tool_attempts.get(who, 0) + 1
    if _tool_attempts[who] % 2:
        raise ConnectionError("try again")
    return a


def uses_flaky(messages: list[BaseMessage]) -> AIMessage:
    turn = sum(m.type == "ai" for m in messages)
    return call("flaky", turn, a=turn) if turn % 3 < 2 else AIMessage("done", id=f"ai-{turn}")


class Verdict(BaseModel):
    """The answer."""

    total: int


def structured(messages: list[BaseMessage]) -> AIMessage:
    turn = sum(m.type == "ai" for m in messages)
    return call("add", turn, a=turn, b=1) if turn % 3 < 2 else call("Verdict", turn, total=turn)


def react(saver: Any) -> Any:
    return create_react_agent(ScriptedModel(), [add], checkpointer=saver)


def to_parent(saver: Any) -> Any:
    """A subgraph that hands over to a node of the graph around it."""
    inner = StateGraph(Log)
    inner.add_node("s1", _node("s1-"))
    inner.add_node("leave", lambda s: Command(graph=Command.PARENT, goto="b", update={"log": ["left"]}))
    inner.add_edge(START, "s1")
    inner.add_edge("s1", "leave")
    g = StateGraph(Log)
    g.add_node("a", _node("a"))
    g.add_node("sub", inner.compile(), destinations=("b",))
    g.add_node("b", _node("b"))
    g.add_edge(START, "a")
    g.add_edge("a", "sub")
    g.add_conditional_edges("b", lambda s: END if len(s["log"]) > 6 else "a", ["a", END])
    return g.compile(checkpointer=saver)


def called(saver: Any) -> Any:
    """A graph that a node calls as a function."""
    inner = _inner(None)

    def node(s: Log) -> dict[str, Any]:
        return {"log": [f"called {len(inner.invoke({'log': [], 'n': s['n']})['log'])}"], "n": s["n"] + 1}

    g = StateGraph(Log)
    g.add_node("a", _node("a"))
    g.add_node("call", node)
    g.add_edge(START, "a")
    g.add_edge("a", "call")
    g.add_conditional_edges("call", lambda s: END if s["n"] > 4 else "a", ["a", END])
    return g.compile(checkpointer=saver)


@dataclass
class Data:
    log: Annotated[list[str], operator.add] = field(default_factory=list)
    n: int = 0


def dataclass_state(saver: Any) -> Any:
    g = StateGraph(Data)
    g.add_node("a", lambda s: {"log": [f"a{s.n}"], "n": s.n + 1})
    g.add_edge(START, "a")
    g.add_conditional_edges("a", lambda s: END if s.n > 3 else "a", ["a", END])
    return g.compile(checkpointer=saver)


def writes(saver: Any) -> Any:
    """Nodes that write to the stream, one of them inside a subgraph."""

    def say(name: str) -> Callable[[Log], dict[str, Any]]:
        def node(s: Log) -> dict[str, Any]:
            get_stream_writer()({name: s["n"]})
            get_stream_writer()(f"{name} again")
            return {"log": [name], "n": s["n"] + 1}

        return node

    inner = StateGraph(Log)
    inner.add_node("inside", say("inside"))
    inner.add_edge(START, "inside")
    g = StateGraph(Log)
    g.add_node("a", say("a"))
    g.add_node("sub", inner.compile())
    g.add_edge(START, "a")
    g.add_edge("a", "sub")
    g.add_conditional_edges("sub", lambda s: END if s["n"] > 3 else "a", ["a", END])
    return g.compile(checkpointer=saver)


def asks_twice(saver: Any) -> Any:
    """Two nodes of one super-step ask; both are answered at once."""

    class S(TypedDict):
        log: Annotated[list[str], operator.add]

    g = StateGraph(S)
    g.add_node("a", lambda s: {"log": ["a"]})
    g.add_node("left", lambda s: {"log": [f"left {interrupt('left?')}"]})
    g.add_node("right", lambda s: {"log": [f"right {interrupt('right?')}"]})
    g.add_edge(START, "a")
    g.add_edge("a", "left")
    g.add_edge("a", "right")
    return g.compile(checkpointer=saver)


def hard_breakpoint(saver: Any) -> Any:
    g = StateGraph(Log)
    for name in "abcd":
        g.add_node(name, _node(name))
    for one, other in ("ab", "bc", "cd"):
        g.add_edge(one, other)
    g.add_edge(START, "a")
    return g.compile(checkpointer=saver, interrupt_before="*")


_approve = Command(resume={"decisions": [{"type": "approve"}, {"type": "approve"}]})
_turns = (_ask, _again)


def _retry(kind: Any) -> Callable[[], Any]:
    return lambda: kind(max_retries=1, initial_delay=0.0, jitter=False)


AGENTS: dict[str, Case] = {
    "model_limit": Case(built(lambda: ModelCallLimitMiddleware(run_limit=2, thread_limit=5)), _turns, "auto"),
    "tool_limit": Case(built(lambda: ToolCallLimitMiddleware(run_limit=3)), _turns, "auto"),
    "summarisation": Case(built(summarising, model=lambda: FunctionModel(reply=counting)), _turns, "auto"),
    "human_in_the_loop": Case(
        built(lambda: HumanInTheLoopMiddleware({"add": True})), (_ask, _approve, _approve, _approve), "auto"
    ),
    "todo": Case(built(TodoListMiddleware, model=lambda: FunctionModel(reply=planning)), _turns, "auto"),
    "model_retry": Case(built(_retry(ModelRetryMiddleware), model=flaky_model), (_ask,), "auto"),
    "tool_retry": Case(
        built(_retry(ToolRetryMiddleware), model=lambda: FunctionModel(reply=uses_flaky), tools=[flaky]), _turns, "auto"
    ),
    "structured_output": Case(
        built(model=lambda: FunctionModel(reply=structured), response_format=ToolStrategy(Verdict)), _turns, "auto"
    ),
    "create_react_agent": Case(react, _turns, "auto"),
}
MORE: dict[str, Case] = {
    "command_parent": Case(to_parent, (_log, {"log": ["next"], "n": 0})),
    "subgraph_called": Case(called, (_log, {"log": ["next"], "n": 0})),
    "dataclass": Case(dataclass_state, ({"log": [], "n": 0}, {"log": ["next"], "n": 1})),
    "writes": Case(writes, (_log,)),
    "asks_twice": Case(asks_twice, ({"log": []},)),
    "break_everywhere": Case(hard_breakpoint, (_log, None, None, None, None)),
}
ALL: dict[str, Case] = {**CASES, **MORE, **AGENTS}

PARALLEL = frozenset(
    {"join", "send", "send_interrupt", "asks_twice", "create_agent", "create_react_agent", "functional"}
) | {name for name in AGENTS if name not in ("todo", "tool_retry", "structured_output")}
"""Cases with tasks that run side by side, whose events come in the order in which they happen to end."""
