"""Nobody can do better than the best possible: the others are ended, wherever they are."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from langchain_core.messages import AIMessage

import langgraph_amc as amc
from langgraph_amc.context import current_particle
from langgraph_amc.smc import adaptive
from tests.runtime.support import ASK, Roots, agent, by_digits, call, other_tasks, seeded, turn_of


def rounds_of(messages: Any) -> AIMessage:
    """The first particle answers at once, the others go on and on."""
    turn = turn_of(messages)
    particle = current_particle.get()
    assert particle is not None
    rounds = 1 if particle.particle == "p0" else 30
    return call("note", turn, n=turn) if turn < rounds else AIMessage(particle.particle)


def solved(run: Any) -> float:
    return 1.0


def first(run: Any) -> float:
    return float(run.messages[-1].content == "p0")


@pytest.mark.parametrize("resample", [amc.never(), amc.every(2)])
@pytest.mark.parametrize("sync", [True, False])
async def test_the_others_are_pruned(resample: Any, sync: bool) -> None:
    roots = Roots()
    app = amc.wrap(agent(rounds_of), particles=4, reward=first, best_possible=1.0, resample=resample, seed=1)
    config = {"callbacks": [roots], "recursion_limit": 100}
    out = await asyncio.to_thread(app.invoke, ASK, config) if sync else await app.ainvoke(ASK, config)
    result = out.amc
    assert out["messages"][-1].content == "p0"
    assert result.stopped == "one has the best possible return, 1"
    assert len(result.pruned) == 3
    assert result.usage.calls < 60  # of 2 + 3 * 31
    assert not other_tasks()
    assert not [t for t in threading.enumerate() if t.name.startswith("amc-particle")]


async def test_a_model_that_is_asked_just_now_is_not_waited_for() -> None:
    async def slow(messages: Any) -> AIMessage:
        particle = current_particle.get()
        assert particle is not None
        if particle.particle != "p0":
            await asyncio.sleep(30)
        return AIMessage(particle.particle)

    began = time.monotonic()
    app = amc.wrap(agent(slow), particles=3, reward=first, best_possible=1)
    assert (await app.ainvoke(ASK))["messages"][-1].content == "p0"
    assert time.monotonic() - began < 10


def test_without_it_all_run_to_their_end() -> None:
    result = amc.wrap(agent(rounds_of), particles=2, reward=first).invoke(ASK, {"recursion_limit": 100}).amc
    assert not result.pruned
    assert result.stopped is None


def test_the_answer_is_as_good_as_without() -> None:
    def reward(run: Any) -> float:
        return float(int(run.messages[-1].content.split()[-1]) % 4 == 0)

    for seed in range(6):
        app = agent(seeded())
        full = amc.wrap(app, particles=6, reward=reward, seed=seed).invoke(ASK).amc
        early = amc.wrap(app, particles=6, reward=reward, seed=seed, best_possible=1).invoke(ASK).amc
        assert early.winner.reward == full.winner.reward


def test_it_also_stops_growing() -> None:
    settings = {"particles": adaptive(2, 16), "reward": solved, "best_possible": 1.0}
    assert amc.wrap(agent(seeded()), **settings).invoke(ASK).amc.started == 2


def test_a_reward_is_asked_for_once(tmp_path: Any) -> None:
    asked: list[str] = []

    def reward(run: Any) -> float:
        asked.append(run.messages[-1].content)
        return 0.0

    result = amc.wrap(agent(seeded()), particles=4, reward=reward, best_possible=1, seed=1).invoke(ASK).amc
    assert len(asked) == len(result.particles) == 4


def test_with_a_journal(tmp_path: Any) -> None:
    settings = {"particles": 4, "reward": first, "best_possible": 1.0, "seed": 1, "resample": amc.every(2)}
    app = amc.wrap(agent(rounds_of), journal=tmp_path / "runs", value=by_digits, **settings)
    assert app.invoke(ASK, {"recursion_limit": 100})["messages"][-1].content == "p0"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"best_possible": 1.0}, "best_reward"),
        ({"best_possible": 1.0, "reward": solved, "select": "argmax"}, "best_reward"),
        ({"best_possible": float("inf"), "reward": solved}, "number"),
        ({"best_possible": 1.0, "reward": solved, "objective": "sample", "beta": 1.0}, "sample"),
    ],
)
def test_what_cannot_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(amc.ConfigurationError, match=message):
        amc.wrap(agent(seeded()), **settings)
