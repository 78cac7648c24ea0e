"""As many particles as it takes, in an app."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

import langgraph_amc as amc
from langgraph_amc.smc import adaptive, agreement, value_above
from tests.runtime.support import ASK, THREAD, agent, by_digits, call, number, seeded, texts, turn_of


def saying(answers: Any, rounds: int = 2) -> Any:
    """A policy that after some rounds answers with what ``answers(number)`` makes of the particle's own number."""

    def reply(messages: Any) -> AIMessage:
        turn = turn_of(messages)
        return call("note", turn, n=number(turn)) if turn < rounds else AIMessage(answers(number("answer")))

    return reply


def run(answers: Any, **settings: Any) -> Any:
    how = {"particles": adaptive(2, 16), "select": amc.vote(key=lambda out: out["messages"][-1].content), "seed": 4}
    return amc.wrap(agent(saying(answers)), **{**how, **settings}).invoke(ASK).amc


def test_those_that_agree_are_few() -> None:
    result = run(lambda n: "42.")
    assert result.started == len(result.particles) == 4
    assert result.stopped == "100% of the weight of 4 finished particles is on one answer"


def test_those_that_disagree_are_many() -> None:
    result = run(lambda n: str(n))
    assert result.started == len(result.particles) == 16
    assert result.stopped == "all 16 particles were started"


def test_more_are_asked_where_it_is_close() -> None:
    started = Counter(run(lambda n: str(n % 2), seed=seed).started for seed in range(8))
    assert len(started) > 1


async def test_also_on_an_event_loop() -> None:
    app = amc.wrap(agent(seeded()), particles=adaptive(2, 8, value_above(0.2)), value=by_digits, seed=1)
    result = (await app.ainvoke(ASK)).amc
    same = app.invoke(ASK).amc
    assert [t.segments for t in result.trajectories] == [t.segments for t in same.trajectories]
    assert result.stopped == same.stopped


def test_a_value_can_be_enough() -> None:
    def judge(text: str) -> float:
        return 0.95 if "answer" in text else 0.5

    result = amc.wrap(agent(seeded()), particles=adaptive(1, 8, value_above(0.9)), value=judge, seed=1).invoke(ASK).amc
    assert result.started == 1
    assert "0.95" in result.stopped


def test_the_winner_of_a_later_wave_is_committed() -> None:
    saver = InMemorySaver()
    app = amc.wrap(agent(seeded(), saver=saver), particles=adaptive(2, 8), value=by_digits, seed=2)
    out = app.invoke(ASK, THREAD)
    assert out.amc.started == 8
    assert out.amc.winner.value == max(p.value for p in out.amc.particles)
    assert texts(app.get_state(THREAD).values) == texts(out)


def test_weights_of_all_waves_are_on_one_scale() -> None:
    result = run(lambda n: str(n))
    assert len({round(p.log_weight, 9) for p in result.particles}) == 1


def test_the_budget_ends_it() -> None:
    result = run(lambda n: str(n), budget=amc.Budget(calls=14))
    assert result.started == 8
    assert result.usage.calls <= 14
    assert result.stopped.startswith("the budget ended it")
    assert result.winner.trajectory.status == "finished"


def test_what_is_shown_stays_true() -> None:
    app = amc.wrap(agent(seeded()), particles=adaptive(1, 4), value=by_digits, seed=2)
    shown = list(app.stream(ASK, stream_mode="values"))
    assert texts(shown[-1])[-1] == texts(amc.last_run(app).winner.output)[-1]
    assert all(texts(shown[-1])[: len(texts(event))] == texts(event) for event in shown)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "sample", "beta": 1.0}, "number depends on the answers"),
        ({"particles": 0.5}, "whole number"),
    ],
)
def test_what_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(amc.ConfigurationError, match=message):
        run(lambda n: "1", **settings)


@pytest.mark.parametrize("calls", range(1, 30, 4))
def test_broken_off_anywhere_it_goes_on_as_if_nothing_had_happened(tmp_path: Any, calls: int) -> None:
    """The model fails for good at the n-th call, which is the run's end; called again, all waves are as they were."""
    left = [calls]

    class Stop(amc.AMCError):
        pass

    def value(transcripts: Any) -> list[float]:
        left[0] -= 1
        if left[0] == 0:
            raise Stop
        return by_digits(transcripts)

    def app(journal: Any, value: Any) -> Any:
        how = {"particles": adaptive(2, 8, agreement(0.9)), "resample": amc.every(1), "seed": 6}
        return amc.wrap(agent(seeded()), value=value, journal=journal, **how)

    whole = app(None, by_digits).invoke(ASK)
    try:
        app(tmp_path / "runs", value).invoke(ASK)
    except Stop:
        again = app(tmp_path / "runs", by_digits).invoke(ASK)
        assert texts(again) == texts(whole)
        assert (again.amc.started, again.amc.stopped) == (whole.amc.started, whole.amc.stopped)
        assert [p.log_weight for p in again.amc.particles] == [p.log_weight for p in whole.amc.particles]
    else:
        assert calls > 8
