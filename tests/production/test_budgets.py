"""Budgets of whole runs: what is spent stays below the cap, and what there is by then is the answer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from langchain_core.language_models import FakeListChatModel
from langgraph.checkpoint.memory import InMemorySaver

import langgraph_amc as amc
from langgraph_amc.policy.budget import BudgetExceededError

from .support import agent, happened, serving, texts

ASK = {"messages": [("user", "how many?")]}
PURE = {"order": "pure", "think": "pure"}


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("calls", [9, 30])
async def test_the_best_of_what_was_paid_for_is_the_answer(tmp_path: Path, calls: int, sync: bool) -> None:
    with serving() as server:
        app = agent(server.url, tmp_path / "world", InMemorySaver(), effects=PURE, budget=amc.Budget(calls=calls))
        config = {"configurable": {"thread_id": "t"}}
        state = await asyncio.to_thread(app.invoke, ASK, config) if sync else await app.ainvoke(ASK, config)
        run = state.amc
        assert len(server.asked) <= calls
        assert run.usage.calls <= calls
        enough = calls == 30
        assert run.winner.trajectory.status == ("finished" if enough else "truncated")
        assert any("budget" in warning for warning in run.warnings) != enough
        if not enough:
            values = [p.value for p in run.particles if p.value is not None]
            assert run.winner.value == max(values)
            assert (await app.aget_state(config)).next, "what is unfinished can be gone on with"
            rest = await amc.wrap(app._amc_app, particles=1).ainvoke(None, config)
            assert texts(rest)[: len(texts(state))] == texts(state)
            assert "draw" in texts(rest)[-1]


async def test_an_answer_without_a_reward_is_an_answer(tmp_path: Path) -> None:
    """Rewards are of finished runs, and the budget has let none finish."""
    with serving() as server:
        how = {"effects": PURE, "reward": lambda run: 1.0, "budget": amc.Budget(calls=9)}
        run = (await agent(server.url, tmp_path / "world", **how).ainvoke(ASK)).amc
        assert run.truncated
        assert run.winner.value == max(p.value for p in run.particles if p.value is not None)
        blind = (await agent(server.url, tmp_path / "world", value=None, **how).ainvoke(ASK)).amc
        assert blind.truncated


async def test_a_reward_that_asks_a_model_is_in_the_usage(tmp_path: Path) -> None:
    with serving() as server, amc.Budget(calls=100).open() as account:
        model = FakeListChatModel(responses=["1"])
        how = {"effects": PURE, "reward": lambda run: float(model.invoke("good?").content), "value": None}
        run = (await agent(server.url, tmp_path / "world", **how).ainvoke(ASK)).amc
    assert run.usage.calls == sum(t.usage.calls for t in run.trajectories) + len(run.particles) == account.spent.calls


async def test_nothing_to_answer_with_is_an_error(tmp_path: Path) -> None:
    with serving() as server:
        app = agent(server.url, tmp_path / "world", effects=PURE, budget=amc.Budget(calls=0))
        with pytest.raises(BudgetExceededError, match="calls"):
            await app.ainvoke(ASK)
        assert not server.asked


async def test_sixty_four_particles_at_once_keep_a_cap(tmp_path: Path) -> None:
    with serving(latency=0.01) as server:
        budget = amc.Budget(tokens=20_000, output_tokens=50)
        app = agent(server.url, tmp_path / "world", effects=PURE, particles=64, budget=budget)
        run = (await app.ainvoke(ASK)).amc
    assert 10_000 < run.usage.tokens <= 20_000
    assert {t.status for t in run.trajectories} <= {"finished", "truncated", "pruned"}


async def test_runs_share_the_account_they_are_made_under(tmp_path: Path) -> None:
    with serving() as server, amc.Budget(calls=25).open() as account:
        app = agent(server.url, tmp_path / "world", effects=PURE)
        states = await asyncio.gather(*[app.ainvoke(ASK) for _ in range(2)])
    assert sum(state.amc.usage.calls for state in states) == account.spent.calls <= 25
    assert len(server.asked) <= 25
    assert any(state.amc.winner.trajectory.status == "truncated" for state in states)


@pytest.mark.parametrize("sync", [True, False])
async def test_seconds_are_kept_even_if_the_model_hangs(tmp_path: Path, sync: bool) -> None:
    with serving(latency=0.25) as server:
        app = agent(server.url, tmp_path / "world", effects=PURE, particles=2, budget=amc.Budget(seconds=0.7))
        began = time.monotonic()
        state = await asyncio.to_thread(app.invoke, ASK) if sync else await app.ainvoke(ASK)
        assert time.monotonic() - began < 3
    assert state.amc.winner.trajectory.status == "truncated"
    assert any("seconds" in warning for warning in state.amc.warnings)


async def test_an_effect_is_not_done_for_a_run_that_cannot_go_on(tmp_path: Path) -> None:
    """Held when the budget ends: the lineage may be chosen, and then its effect happens once, for free."""
    with serving() as server:
        app = agent(server.url, tmp_path / "world", particles=3, budget=amc.Budget(calls=12))
        state = await app.ainvoke(ASK)
    assert len(happened(tmp_path / "world")) == 1
    assert state.amc.winner.trajectory.status == "truncated"
    assert "ordered" in texts(state)[-1]


async def test_the_record_knows_the_price_that_the_budget_gave(tmp_path: Path) -> None:
    with serving() as server:
        budget = amc.Budget(usd=1.0, output_tokens=50, prices={"*": amc.Price(input=1.0, output=2.0)})
        run = (await agent(server.url, tmp_path / "world", effects=PURE, budget=budget).ainvoke(ASK)).amc
    assert run.usage.cost == pytest.approx((run.usage.input_tokens + 2 * run.usage.output_tokens) / 1e6)
