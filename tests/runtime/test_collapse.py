"""Particles that all do the same although each ran on its own are reported, with the cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

import langgraph_amc as amc
from tests.runtime.support import ASK, THREAD, ReplyModel, agent, by_digits, call, note, seeded, turn_of


def same(messages: list[Any]) -> AIMessage:
    turn = turn_of(messages)
    return call("note", turn, n=turn) if turn < 2 else AIMessage("done")


def run(model: Any, **settings: Any) -> tuple[str, ...]:
    app = amc.wrap(create_agent(model, [note]), **{"particles": 3, "value": by_digits, "seed": 1, **settings})
    return app.invoke(ASK).amc.warnings


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        (ReplyModel(reply=same, temperature=0.0), "temperature 0"),
        (ReplyModel(reply=same, temperature=1.0, seed=7), "fixed seed"),
        (ReplyModel(reply=same, temperature=1.0), "looks deterministic"),
    ],
)
@pytest.mark.parametrize("resample", [amc.every(1), amc.never()])
def test_cause_is_named(model: Any, cause: str, resample: Any) -> None:
    (warning,) = [w for w in run(model, resample=resample) if "same steps" in w]
    assert cause in warning
    assert warning.startswith("all 3 particles")


def test_a_cache_of_the_model_itself_is_named() -> None:
    app = create_agent(ReplyModel(reply=seeded(rounds=0), cache=InMemoryCache()), [note])
    given = {"messages": [HumanMessage("go", id="h")]}
    app.invoke(given)  # fills the cache
    warnings = amc.wrap(app, particles=3, seed=1).invoke(given).amc.warnings
    assert any("same steps" in w and "cache" in w for w in warnings), warnings


@pytest.fixture
def _llm_cache() -> Iterator[None]:
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


@pytest.mark.usefixtures("_llm_cache")
def test_a_salted_cache_is_not_blamed() -> None:
    assert not any("cache that AMC cannot salt" in w for w in run(ReplyModel(reply=same, temperature=1.0)))
    assert run(ReplyModel(reply=seeded(), temperature=1.0)) == ()


@pytest.mark.parametrize("temperature", [None, 0.0, 1.0])
def test_no_alarm_for_diverse_particles(temperature: float | None) -> None:
    assert run(ReplyModel(reply=seeded(), temperature=temperature)) == ()


def test_no_alarm_for_a_single_particle() -> None:
    assert run(ReplyModel(reply=same, temperature=0.0), particles=1) == ()


def test_no_alarm_where_the_model_is_not_asked() -> None:
    graph = StateGraph(dict)
    graph.add_node("work", lambda s: {"n": 1})
    graph.add_edge(START, "work")
    graph.add_edge("work", END)
    out = amc.wrap(graph.compile(), particles=3, seed=1).invoke({"n": 0})
    assert out == {"n": 1}
    assert out.amc.warnings == ()


def test_collapse_is_seen_in_the_next_turn_as_well() -> None:
    app = amc.wrap(agent(same, saver=InMemorySaver()), particles=3, value=by_digits, seed=1)
    for _ in range(2):
        assert any("same steps" in w for w in app.invoke(ASK, THREAD).amc.warnings)


def test_particles_that_agree_at_first_are_no_collapse() -> None:

    def reply(messages: list[Any]) -> AIMessage:
        return call("note", 0, n=0) if turn_of(messages) == 0 else seeded()(messages)

    app = amc.wrap(agent(reply), particles=3, value=by_digits, seed=1, resample=amc.never())
    assert app.invoke(ASK).amc.warnings == ()


def test_a_schedule_that_no_run_reaches_is_reported() -> None:
    app = amc.wrap(agent(seeded(2)), particles=3, value=by_digits, seed=1, resample=amc.at(50))
    (warning,) = app.invoke(ASK).amc.warnings
    assert "no boundary was reached" in warning
