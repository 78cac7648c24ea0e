"""Held effects that ask a human: the answer gets through, and what stands behind the question happens once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import langgraph_amc as amc
from tests.runtime.support import ASK, THREAD, agent, by_hash, number, turn_of

KINDS = ["wrap", "AMCNode", "subgraph"]


def asking(done: list[Any]) -> BaseTool:
    @tool
    def refund(n: int) -> str:
        """Refund, if two people agree."""
        first = interrupt({"refund": n})
        second = interrupt({"sure about": n}) if n > 10 else "-"
        done.append((n, first, second))
        return f"refunded {n} {first} {second}"

    return refund


def through_a_graph(done: list[Any]) -> BaseTool:
    """A tool that runs a graph, whose node asks."""
    inner = asking(done)
    graph = StateGraph(MessagesState)
    graph.add_node("ask", lambda s: {"messages": [AIMessage(inner.invoke({"n": int(s["messages"][-1].text)}))]})
    graph.add_edge(START, "ask")
    app = graph.compile()

    @tool
    def refund(n: int) -> str:
        """Refund, by an assistant."""
        return app.invoke({"messages": [("user", str(n))]})["messages"][-1].text

    return refund


def policy(numbers: tuple[int, ...]) -> Callable[[list[BaseMessage]], AIMessage]:
    def reply(messages: list[BaseMessage]) -> AIMessage:
        if turn_of(messages):
            return AIMessage(f"answer {number(3)}")
        calls = [{"name": "refund", "args": {"n": n}, "id": f"call-{n}"} for n in numbers]
        return AIMessage("", tool_calls=calls)

    return reply


def app_of(kind: str, refund: BaseTool, numbers: tuple[int, ...], saver: Any, **settings: Any) -> Any:
    settings = {"particles": 3, "value": by_hash, "seed": 1, "effects": {"refund": "commit"}, **settings}
    inner = agent(policy(numbers), [refund], saver=saver if kind == "wrap" else None)
    if kind == "wrap":
        return amc.wrap(inner, **settings)
    graph = StateGraph(MessagesState)
    graph.add_node("agent", amc.AMCNode(inner, **settings) if kind == "AMCNode" else amc.wrap(inner, **settings))
    graph.add_edge(START, "agent")
    return graph.compile(checkpointer=saver)


def answered(app: Any, *, by_id: bool, rounds: int = 6) -> tuple[dict[str, Any], int]:
    """The app's answer once nobody is asked any more, and how often somebody was; everything is answered by "yes"."""
    result = app.invoke(ASK, THREAD)
    for n in range(rounds):
        if not (asked := result.get("__interrupt__")):
            return result, n
        answer = {i.id: "yes" for i in asked} if by_id or len(asked) > 1 else "yes"
        result = app.invoke(Command(resume=answer), THREAD)
    raise AssertionError(f"asked for ever: {result['__interrupt__']}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [asking, through_a_graph])
@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("journal", [False, True])
def test_an_answer_gets_through(kind: str, make: Any, by_id: bool, journal: bool, tmp_path: Path) -> None:
    done: list[Any] = []
    settings = {"journal": tmp_path / "runs.sqlite"} if journal else {}
    app = app_of(kind, make(done), (7,), InMemorySaver(), **settings)
    result, rounds = answered(app, by_id=by_id)
    assert (done, rounds) == ([(7, "yes", "-")], 1)
    assert result["messages"][-2].content == "refunded 7 yes -"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [asking, through_a_graph])
@pytest.mark.parametrize("answer", [{}, {"approved": True}, False, [], 0])
def test_answers_of_every_kind_get_through(kind: str, make: Any, answer: Any) -> None:
    done: list[Any] = []
    app = app_of(kind, make(done), (7,), InMemorySaver())
    (asked,) = app.invoke(ASK, THREAD)["__interrupt__"]
    app.invoke(Command(resume={asked.id: answer}), THREAD)
    assert done == [(7, answer, "-")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [asking, through_a_graph])
def test_two_questions_of_one_effect_are_two(kind: str, make: Any) -> None:
    done: list[Any] = []
    app = app_of(kind, make(done), (70,), InMemorySaver())
    result = app.invoke(ASK, THREAD)
    for question, answer in [("refund", "a"), ("sure about", "b")]:
        (asked,) = result["__interrupt__"]
        assert list(asked.value) == [question]
        result = app.invoke(Command(resume={asked.id: answer}), THREAD)
    assert done == [(70, "a", "b")]
    assert "__interrupt__" not in result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [asking, through_a_graph])
@pytest.mark.parametrize("resample", [None, amc.every(1)])
def test_parallel_effects_that_ask(kind: str, make: Any, resample: Any) -> None:
    done: list[Any] = []
    app = app_of(kind, make(done), (1, 20, 3), InMemorySaver(), resample=resample)
    answered(app, by_id=True)
    assert sorted(done) == [(1, "yes", "-"), (3, "yes", "-"), (20, "yes", "yes")]


SCRIPT = """
import sys
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from tests.effects.test_asking import ASK, THREAD, app_of, asking, through_a_graph
kind, make, folder, journal, answer = sys.argv[1:]
class Done(list):
    def append(self, what):
        with open(folder + "/done", "a") as file:
            file.write(f"{what[0]}\\n")
settings = {"journal": folder + "/runs.sqlite"} if journal == "True" else {}
with SqliteSaver.from_conn_string(folder + "/saver.sqlite") as saver:
    app = app_of(kind, {"asking": asking, "through": through_a_graph}[make](Done()), (7,), saver, **settings)
    result = app.invoke(Command(resume=answer) if answer else ASK, THREAD)
    print([list(i.value) for i in result.get("__interrupt__", ())], result["messages"][-1].content)
"""


@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize(("kind", "make"), [("AMCNode", "asking"), ("AMCNode", "through"), ("wrap", "asking")])
def test_an_answer_gets_through_in_a_new_process(kind: str, make: str, journal: bool, tmp_path: Path) -> None:
    def process(answer: str) -> str:
        command = [sys.executable, "-c", SCRIPT, kind, make, str(tmp_path), str(journal), answer]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert process("").startswith("[['refund']]")
    assert process("yes").startswith("[] answer")
    assert (tmp_path / "done").read_text() == "7\n"
