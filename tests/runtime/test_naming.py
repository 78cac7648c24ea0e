"""Names of boundaries and of settings: what cannot work is refused with what would, and a run says what it missed."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph

import langgraph_amc as amc
from langgraph_amc.runtime.settings import read_settings
from tests.runtime.support import ASK, ReplyModel, agent, by_digits, by_hash, seeded


def around(*agents: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_sequence([(f"worker{k or ''}", each) for k, each in enumerate(agents)])
    graph.add_edge(START, "worker")
    return graph.compile()


def warnings_of(app: Any, **settings: Any) -> tuple[str, ...]:
    settings = {"particles": 3, "value": by_digits, "resample": amc.every(1), "seed": 1, **settings}
    return amc.wrap(app, **settings).invoke(ASK).amc.warnings


@pytest.mark.parametrize("boundary", [None, "auto"])
def test_an_agent_in_a_subgraph_is_a_single_step_and_the_cure_is_named(boundary: Any) -> None:
    (warning,) = warnings_of(around(agent(seeded())), boundary=boundary)
    assert "no boundary was reached" in warning
    assert "boundary='worker/model'" in warning
    assert "boundary='**/model'" in warning
    for cure in ("worker/model", "**/model"):
        assert warnings_of(around(agent(seeded())), boundary=cure) == ()


def test_several_agents_in_subgraphs_are_all_named() -> None:
    (warning, *_) = warnings_of(around(agent(seeded(1)), agent(seeded(1))), resample=amc.at(9))
    assert "boundary=['worker/model', 'worker1/model']" in warning


def test_runs_that_are_too_short_are_another_cause() -> None:
    (warning,) = warnings_of(agent(seeded(2)), resample=amc.at(50))
    assert "too few times" in warning
    assert "resample=" in warning


def test_a_given_boundary_that_is_not_reached_is_another_cause() -> None:
    (warning,) = warnings_of(agent(seeded(0)), boundary="tools")
    assert "given boundary" in warning


def test_a_model_that_langchain_does_not_see_is_another_cause() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("a", lambda s: {"messages": [AIMessage(str(amc.current_particle.get().seed))]})
    graph.add_edge(START, "a")
    (warning,) = warnings_of(graph.compile())
    assert "name the node" in warning


def test_tasks_of_a_workflow_are_not_taken_for_subgraphs() -> None:
    model = ReplyModel(reply=seeded(0))

    @task
    def ask(messages: Any) -> Any:
        return model.invoke(messages)

    @entrypoint()
    def flow(given: Any) -> Any:
        return {"messages": [ask(given["messages"]).result()]}

    (warning,) = warnings_of(flow, transcript=amc.Transcript.from_state(str))
    assert "ask" not in warning


@pytest.mark.parametrize("boundary", [b"model", ["model", 5], [[]], 5, [], {"model": 1}, [b"worker/model"]])
def test_what_is_no_name_is_refused(boundary: Any) -> None:
    with pytest.raises(amc.ConfigurationError, match="boundary is 'auto'"):
        amc.wrap(around(agent(seeded())), boundary=boundary)


@pytest.mark.parametrize(
    ("boundary", "hint"),
    [
        ("model", r"boundary='worker/model'.* or '\*\*/model'"),
        (["worker", "model"], "worker/model"),
        ("nosuch", "its nodes are worker, worker1"),
        ("**/", r"write it as '\*\*/model'"),
        ("**/nosuch", "their nodes are .*model.*tools"),
        (["**/model", "**/nosuch"], "nosuch"),
        ("worker/nosuch", "'worker' has no node 'nosuch'"),
    ],
)
def test_names_that_would_never_be_reached_are_refused(boundary: Any, hint: str) -> None:
    with pytest.raises(amc.ConfigurationError, match=hint):
        amc.wrap(around(agent(seeded()), agent(seeded())), boundary=boundary)


def test_nodes_of_graphs_that_tools_call_are_known() -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("deep", lambda s: {})
    graph.add_edge(START, "deep")
    expert = graph.compile()

    @tool
    def consult(question: str) -> str:
        """Ask an expert."""
        return str(expert.invoke({"messages": [("user", question)]}))

    app = around(agent(seeded(), [consult]))
    amc.wrap(app, boundary="**/deep")
    with pytest.raises(amc.ConfigurationError, match="deep"):
        amc.wrap(app, boundary="**/deeper")


def test_effects_map_names() -> None:
    with pytest.raises(amc.ConfigurationError, match="5 is no name"):
        amc.wrap(agent(seeded()), effects={5: "pure"})  # type: ignore[dict-item]


@pytest.mark.parametrize("function", [amc.wrap, amc.amc, amc.AMCNode])
def test_signatures_show_all_settings(function: Any) -> None:
    shown = inspect.signature(function).parameters
    known = [p for p in inspect.signature(read_settings).parameters.values() if p.name != "app"]
    assert [p for p in shown.values() if p.name in {k.name for k in known}] == known
    assert not any(p.kind is p.VAR_KEYWORD for p in shown.values())


def test_the_docstring_of_wrap_tells_every_setting() -> None:
    assert amc.wrap.__doc__ is not None
    for name in inspect.signature(read_settings).parameters:
        assert f"    {name}: " in amc.wrap.__doc__


def test_the_record_of_a_node() -> None:
    node = amc.AMCNode(agent(seeded()), particles=3, value=by_hash, seed=1)
    with pytest.raises(amc.ConfigurationError, match="invoke it first"):
        amc.last_run(node)
    app = around(node)
    for _ in range(2):
        out = app.invoke(ASK)
        record = amc.last_run(node)
        assert record.winner.output["messages"][-1].content == out["messages"][-1].content
    for other in (app, agent(seeded()), {}):
        with pytest.raises(amc.ConfigurationError, match="AMCNode"):
            amc.last_run(other)
