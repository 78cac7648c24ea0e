"""Abstaining: below the line nothing is committed, done to the world or taken for granted, by one particle either."""

from __future__ import annotations

import math
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

import langgraph_amc as amc
from tests.runtime.support import ASK, ReplyModel

THREAD = {"configurable": {"thread_id": "1"}}


def app_that_pays(paid: list[int]) -> Any:
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    def reply(messages: list[Any]) -> AIMessage:
        if len(messages) == 1:
            return AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": 1}, "id": "c"}])
        return AIMessage("done")

    return create_agent(ReplyModel(reply=reply), [pay], checkpointer=InMemorySaver())


@pytest.mark.parametrize("particles", [1, 2])
@pytest.mark.parametrize("raises", [False, True])
def test_nothing_is_paid_below_the_line(particles: int, raises: bool) -> None:
    paid: list[int] = []
    app = app_that_pays(paid)
    select = amc.abstain(0.9, raises=raises)
    better = amc.wrap(
        app, particles=particles, value=lambda t: [0.5] * len(t), select=select, effects={"pay": "commit"}
    )
    with pytest.raises(amc.AbstainedError):
        better.invoke(ASK, THREAD)
    assert paid == []
    if raises:
        assert app.get_state(THREAD).values == {}


@pytest.mark.parametrize("particles", [1, 2])
def test_above_the_line_it_is_paid_once(particles: int) -> None:
    paid: list[int] = []
    better = amc.wrap(
        app_that_pays(paid),
        particles=particles,
        value=lambda t: [0.95] * len(t),
        select=amc.abstain(0.9),
        effects={"pay": "commit"},
    )
    result = better.invoke(ASK, THREAD)
    assert (paid, result.amc.abstained) == ([1], False)


@pytest.mark.parametrize("particles", [1, 2])
def test_without_effects_the_best_is_answered_and_marked(particles: int) -> None:
    app = create_agent(ReplyModel(reply=lambda _: AIMessage("perhaps")), [], checkpointer=InMemorySaver())
    better = amc.wrap(app, particles=particles, value=lambda t: [0.5] * len(t), select=amc.abstain(0.9))
    result = better.invoke(ASK, THREAD)
    assert result["messages"][-1].text == "perhaps"
    assert result.amc.abstained
    assert any("no answer is good enough" in warning for warning in result.amc.warnings)


def test_an_earlier_score_is_not_taken_for_the_answers() -> None:
    def value(transcripts: Any) -> list[float]:
        return [math.nan if "done" in "".join(t) else 0.95 for t in transcripts]

    paid: list[int] = []
    app = app_that_pays(paid)
    better = amc.wrap(
        app,
        particles=2,
        value=value,
        resample=amc.every(1),
        select=amc.abstain(0.9, by=lambda rng, c: 0, confidence=lambda candidates, i: candidates[i].value),
        effects="pure",
    )
    assert better.invoke(ASK, THREAD).amc.abstained
