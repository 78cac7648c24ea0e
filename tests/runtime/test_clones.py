"""A clone is exact: whatever the app keeps, it goes on as its parent would have."""

from __future__ import annotations

import asyncio
import copy
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    SummarizationMiddleware,
    ToolCallLimitMiddleware,
)
from langchain_core.messages import AIMessage
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.types import Command

import langgraph_amc as amc
from langgraph_amc.policy.seeds import mix
from tests.runtime.support import ASK, THREAD, ReplyModel, call, note, turn_of
from tests.runtime.test_equality import CONFIG, Plain, aconverse, converse
from tests.support.graphs import CASES, Case


def last_one(rng: np.random.Generator, log_weights: Any, n: int) -> Any:
    """A resampler that makes everybody a clone of the last particle."""
    return np.full(n, len(log_weights) - 1)


class LastClone:
    """A selector of the last particle: a clone of clones, as often as there were boundaries."""

    def __call__(self, rng: Any, candidates: Any) -> int:
        return len(candidates) - 1


def forced(app: Any, boundary: Any = "step", particles: int = 3) -> Any:
    return amc.wrap(
        app,
        particles=particles,
        value=lambda transcripts: [0.0] * len(transcripts),
        transcript=None if "messages" in app.channels else amc.Transcript.from_state(repr),
        boundary=boundary,
        resample=amc.every(1),
        resampler=last_one,
        select=LastClone(),
        seed=1,
    )


@pytest.mark.parametrize("name", CASES)
async def test_a_clone_of_clones_equals_plain(name: str) -> None:
    case = CASES[name]
    want = await aconverse(case.build(InMemorySaver()), case.inputs)
    assert await aconverse(forced(case.build(InMemorySaver()), case.boundary), case.inputs) == want
    got = await asyncio.to_thread(converse, forced(case.build(InMemorySaver()), case.boundary), case.inputs)
    assert got == want


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("name", ["conditional", "managed", "untracked"])
def test_recursion_limit_is_exact(name: str, limit: int) -> None:
    case = CASES[name]

    def outcome(app: Any) -> Any:
        try:
            return Plain()(app.invoke(copy.deepcopy(case.inputs[0]), {**CONFIG, "recursion_limit": limit}))
        except GraphRecursionError as error:
            return str(error)

    assert outcome(forced(case.build(InMemorySaver()))) == outcome(case.build(InMemorySaver()))


def test_a_subgraph_has_a_recursion_limit_of_its_own() -> None:
    class S(TypedDict):
        log: Annotated[list[int], lambda a, b: [*a, *b]]
        left: RemainingSteps
        last: IsLastStep

    def step(s: S) -> dict[str, Any]:
        return {"log": [s["left"] + 100 * s["last"]]}

    inner = StateGraph(S)
    inner.add_node("step", step)
    inner.add_edge(START, "step")
    inner.add_conditional_edges("step", lambda s: "step" if s["left"] > 2 else END, ["step", END])
    graph = StateGraph(S)
    graph.add_node("before", step)
    graph.add_node("again", step)
    graph.add_node("inner", inner.compile())
    graph.add_edge(START, "before")
    graph.add_edge("before", "again")
    graph.add_edge("again", "inner")
    app = graph.compile()
    config: Any = {"recursion_limit": 6}
    assert forced(app).invoke({"log": []}, config) == app.invoke({"log": []}, config)


def test_untracked_values_that_cannot_be_copied() -> None:
    class Handle:
        def __reduce__(self) -> Any:
            raise TypeError("no copies")

    class S(TypedDict):
        log: Annotated[list[str], lambda a, b: [*a, *b]]
        handle: Annotated[Any, UntrackedValue]

    graph = StateGraph(S)
    graph.add_node("open", lambda s: {"handle": Handle()})
    graph.add_node("use", lambda s: {"log": [type(s["handle"]).__name__]})
    graph.add_edge(START, "open")
    graph.add_edge("open", "use")
    app = graph.compile(checkpointer=InMemorySaver())
    assert forced(app).invoke({"log": []}, THREAD)["log"] == ["Handle"]


@pytest.mark.parametrize("where", ["before", "after", "both", "all"])
def test_breakpoints_given_at_the_call(where: str) -> None:
    options: dict[str, Any] = {
        "before": {"interrupt_before": ["b"]},
        "after": {"interrupt_after": ["a"]},
        "both": {"interrupt_before": ["c"], "interrupt_after": ["b"]},
        "all": {"interrupt_before": "*"},
    }[where]

    def converse_with_stops(app: Any) -> Any:
        given: Any = {"log": [], "n": 0}
        seen = []
        for _ in range(12):
            out = app.invoke(given, CONFIG, **options)
            seen.append((Plain()(out), app.get_state(CONFIG).next))
            if not app.get_state(CONFIG).next:
                break
            given = None
        return seen

    case = CASES["conditional"]
    assert converse_with_stops(forced(case.build(InMemorySaver()))) == converse_with_stops(case.build(InMemorySaver()))


# -- middleware ----------------------------------------------------------------------------------------


def scripted(rounds: int) -> ReplyModel:
    def reply(messages: list[Any]) -> AIMessage:
        turn = turn_of(messages)
        message = call("note", turn, n=turn) if turn < rounds else AIMessage(f"done {len(messages)}")
        message.id = f"ai-{len(messages)}-{turn}"
        return message

    return ReplyModel(reply=reply)


def limited(saver: Any) -> Any:
    limit = ModelCallLimitMiddleware(run_limit=3, exit_behavior="end")
    return create_agent(scripted(6), [note], middleware=[limit], checkpointer=saver)


def thread_limited(saver: Any) -> Any:
    limit = ModelCallLimitMiddleware(thread_limit=5, exit_behavior="end")
    return create_agent(scripted(3), [note], middleware=[limit], checkpointer=saver)


def tool_limited(saver: Any) -> Any:
    limit = ToolCallLimitMiddleware(run_limit=2, exit_behavior="continue")
    return create_agent(scripted(4), [note], middleware=[limit], checkpointer=saver)


def supervised(saver: Any) -> Any:
    ask = HumanInTheLoopMiddleware(interrupt_on={"note": True})
    return create_agent(scripted(2), [note], middleware=[ask], checkpointer=saver)


def summarised(saver: Any) -> Any:
    def summary(messages: list[Any]) -> AIMessage:
        return AIMessage(f"in short {mix([m.content for m in messages])}", id="s")

    def count(messages: list[Any]) -> AIMessage:
        """The length of the conversation does not tell how far it is: it has been summarised."""
        last = messages[-1]
        n = 0 if last.type == "human" else int(last.content.split()[-1]) + 1
        message = call("note", n, n=n) if n < 5 else AIMessage("done")
        message.id = f"ai-{mix([m.content for m in messages])}"
        return message

    middle = SummarizationMiddleware(model=ReplyModel(reply=summary), trigger=("messages", 6), keep=("messages", 2))
    return create_agent(ReplyModel(reply=count), [note], middleware=[middle], checkpointer=saver)


_ask = {"messages": [{"role": "user", "content": "go", "id": "h1"}]}
_again = {"messages": [{"role": "user", "content": "again", "id": "h2"}]}
_yes = Command(resume={"decisions": [{"type": "approve"}]})
_no = Command(resume={"decisions": [{"type": "reject", "message": "no"}]})

MIDDLEWARE = {
    "model_limit": Case(limited, (_ask, _again)),
    "thread_limit": Case(thread_limited, (_ask, _again, _again)),
    "tool_limit": Case(tool_limited, (_ask, _again)),
    "human_in_the_loop": Case(supervised, (_ask, _yes, _no, _again)),
    "summarization": Case(summarised, (_ask, _again)),
}


@pytest.mark.parametrize("boundary", ["auto", "step"])
@pytest.mark.parametrize("name", MIDDLEWARE)
async def test_middleware_equals_plain(name: str, boundary: str) -> None:
    case = MIDDLEWARE[name]
    want = await aconverse(case.build(InMemorySaver()), case.inputs)
    assert await aconverse(forced(case.build(InMemorySaver()), boundary), case.inputs) == want
    with SqliteSaver.from_conn_string(":memory:") as saver:
        assert converse(forced(case.build(saver), boundary), case.inputs) == want


def test_limits_did_limit() -> None:
    out = limited(InMemorySaver()).invoke(_ask, THREAD)
    assert sum(m.type == "ai" for m in out["messages"]) == 4
    assert forced(limited(InMemorySaver()), "auto").invoke(ASK, THREAD)["messages"][-1].content.startswith("Model call")
