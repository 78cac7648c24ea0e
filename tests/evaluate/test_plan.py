"""Estimates before a run, and budgets that end one."""

from __future__ import annotations

from typing import Any

import pytest

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.collect import NothingCollectedError, collect
from langgraph_amc.evaluate.compare import IncompleteError, compare
from langgraph_amc.evaluate.plan import assumed, from_store, plan
from langgraph_amc.policy.budget import Budget, Price, UnknownPriceError
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks import Task, TaskSet, as_reward
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.trajectories.types import Trajectory, Usage
from tests.evaluate.test_compare import STEPS, TASKS, build, sees_slips, unbroken


def test_a_plan_spans_n_short_to_2n_long_runs_and_says_what_fits() -> None:
    runs = Usage(2, 100, 20, 0.01), Usage(5, 400, 60, 0.05)
    made = plan(8, runs, "test", tasks=3, cap=1.25)
    assert made.per_task.runs == (8, 16)
    assert made.per_task.calls == (16, 80)
    assert made.per_task.input_tokens == (800, 6400)
    assert made.per_task.output_tokens == (160, 960)
    assert made.per_task.usd == pytest.approx((0.08, 0.8))
    assert made.total.usd == pytest.approx((0.24, 2.4))
    assert made.fits == 4  # 3 tasks × 8 runs × $0.05 = $1.20
    assert plan(8, runs, "test", tasks=3, cap=0.1).fits == 0
    assert plan(8, runs, "test", tasks=3, cap=0.151).fits == 1  # one particle is one run
    assert plan(1, runs, "test").per_task.runs == (1, 1)
    assert plan(2, runs, "test").fits is None


def test_assumed_runs_read_the_conversation_again_at_each_call() -> None:
    low, high = assumed((1, 3), 100)
    assert (low.calls, low.input_tokens, low.output_tokens, low.cost) == (1, 1000, 100, None)
    assert (high.calls, high.input_tokens, high.output_tokens) == (3, 1000 + 1300 + 1600, 300)
    assert assumed((1, 1), 100, model="openai/gpt-4o-mini")[0].cost == pytest.approx(1000 * 0.15e-6 + 100 * 0.6e-6)
    assert assumed((1, 1), 100, model="mine", own=Price(1, 2))[0].cost == pytest.approx(1200e-6)
    longer = assumed((1, 1), 100, TaskSet([Task("t", "x" * 4000)]))[0]
    assert 1990 <= longer.input_tokens <= 2030
    with pytest.raises(ConfigurationError):
        assumed((5, 3), 100)
    with pytest.raises(UnknownPriceError, match="mine"):
        plan(2, assumed((1, 2), 100), "test", cap=1.0, model="mine")


def test_past_runs_give_quantiles(tmp_path: Any) -> None:
    def run(i: int, **options: Any) -> Trajectory:
        return Trajectory(f"r{i}", "p0", ("a", "b"), usage=Usage(i, 10 * i, i, 0.001 * i), **options)

    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        store.add([run(i) for i in range(1, 4)])
        assert from_store(store) is None
        store.add([run(i) for i in range(4, 12)])
        store.add([run(500, status="pruned"), run(501, status="truncated")])
        low, high = from_store(store) or pytest.fail("there are enough runs")
        assert (low, high) == (Usage(2, 20, 2, pytest.approx(0.002)), Usage(10, 100, 10, pytest.approx(0.01)))
        priced = from_store(store, "mine", Price(1, 1)) or pytest.fail("there are enough runs")
        assert priced[1].cost == pytest.approx(110e-6, rel=0.01)


async def test_a_plan_from_collected_runs_holds_for_the_next_ones(tmp_path: Any) -> None:
    app = build()
    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        await collect(app, TASKS[:4], as_reward(unbroken), store, read_settings(app, particles=3))
        runs = from_store(store) or pytest.fail("there are enough runs")
        made = plan(4, runs, "test", tasks=4)
        settings = read_settings(app, particles=4, value=sees_slips, resample=amc.every(1))
        with TrajectoryStore(tmp_path / "u.sqlite") as other:
            found = await collect(app, TASKS[4:8], as_reward(unbroken), other, settings)
    assert made.total.calls[0] == 4 * 4 * STEPS
    assert found.usage.calls <= made.total.calls[1]
    assert found.usage.tokens <= made.total.input_tokens[1] + made.total.output_tokens[1]


async def test_a_collection_that_runs_out_keeps_only_runs_that_ended(tmp_path: Any) -> None:
    app = build()
    settings = read_settings(app, particles=2)
    budget = Budget(calls=5 * 2 * STEPS + 3)
    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        found = await collect(app, TASKS[:12], as_reward(unbroken), store, settings, budget=budget, concurrency=2)
        stored = list(store.trajectories())
    assert found.exhausted is not None
    assert found.exhausted.startswith("calls")
    assert 8 <= found.finished == found.runs == len(stored) < 24
    assert {t.status for t in stored} == {"finished"}
    with TrajectoryStore(tmp_path / "u.sqlite") as store, pytest.raises(NothingCollectedError, match="budget"):
        await collect(app, TASKS[:2], as_reward(unbroken), store, settings, budget=Budget(calls=STEPS - 1))


async def test_a_comparison_that_runs_out_is_no_result() -> None:
    app = build()
    settings = read_settings(app, particles=2, value=sees_slips)
    enough = await compare(app, TASKS[:3], as_reward(unbroken), settings, budget=Budget(calls=10**4))
    assert enough.tasks == 3
    with pytest.raises(IncompleteError, match="calls"):
        await compare(app, TASKS[:3], as_reward(unbroken), settings, budget=Budget(calls=50))
