"""How much of the oracle's gain selections keep, where that is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_amc.evaluate.runner import Job, run_jobs
from langgraph_amc.evaluate.selection_report import (
    SELECTIONS,
    Judged,
    NothingToSelectError,
    judged,
    selection_report,
    selection_table,
    stored,
)
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.smc import Candidate, best_value, never, vote
from langgraph_amc.tasks import as_reward
from langgraph_amc.trajectories.types import Trajectory
from tests.evaluate.test_compare import TASKS, build, sees_slips, unbroken


def population(task: str, rewards: list[float], values: list[float | None]) -> Judged:
    found = tuple(Candidate(0.0, v, None, str(r)) for r, v in zip(rewards, values, strict=True))
    return Judged(task, found, tuple(rewards))


def test_a_perfect_value_keeps_all_and_a_blind_choice_nothing() -> None:
    rng = np.random.default_rng(0)
    populations = []
    for i in range(60):
        rewards = (rng.random(4) < 0.4).astype(float).tolist()
        populations.append(population(f"t{i}", rewards, rewards))
    picked = {"best_value": best_value, "blind": lambda rng, c: int(rng.integers(len(c))), "worst": _worst}
    report = selection_report(populations, picked)
    by_name = {s.name: s for s in report.selections}
    assert by_name["best_value"].kept.mean == by_name["best_value"].kept.low == 1
    assert by_name["blind"].kept.low < 0 < by_name["blind"].kept.high
    assert by_name["worst"].kept.high < 0
    assert report.best.mean > report.single.mean
    json.dumps(report.to_json())


def _worst(rng: np.random.Generator, candidates: tuple[Candidate, ...]) -> int:
    return int(np.argmin([c.value for c in candidates]))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1)), min_size=2, max_size=5), min_size=1, max_size=5))
def test_nobody_keeps_more_than_all(given: list[list[tuple[float, float]]]) -> None:
    populations = [population(str(i % 2), [r for r, _ in p], [v for _, v in p]) for i, p in enumerate(given)]
    report = selection_report(populations, {"best_value": best_value})
    kept = report.selections[0].kept
    assert math.isnan(kept.mean) or kept.mean <= kept.high + 1e-9 <= 1 + 1e-6
    assert report.tasks == min(2, len(given))


def test_what_cannot_be_selected_is_missing_and_not_zero() -> None:
    rewards = [1.0, 0.0]
    report = selection_report([population("a", rewards, [None, None]), population("b", rewards, [1.0, 0.0])])
    value = next(s for s in report.selections if s.name == "best_value")
    assert (value.missed, value.reward.mean, value.kept.mean) == (1, 1.0, 1.0)
    same = selection_report([population("a", [1.0, 1.0], [0.3, 0.2])])
    assert math.isnan(same.selections[0].kept.mean)
    assert "–" in [*selection_table(same).columns[2].cells]
    with pytest.raises(NothingToSelectError, match="two candidates"):
        selection_report([Judged("a", (Candidate(0.0, 1.0, None, ""),), (1.0,))])
    with pytest.raises(NothingToSelectError):
        selection_report([Judged("a", population("a", rewards, rewards).candidates, (1.0, None))])


async def test_real_populations() -> None:
    app = build()
    run = read_settings(app, particles=4, value=sees_slips, resample=never())
    jobs = [Job(task, 0, run) for task in TASKS[:12]]
    outcomes = [o async for o in run_jobs(app, jobs, as_reward(unbroken), concurrency=4)]
    report = selection_report([judged(o) for o in outcomes])
    assert (report.populations, report.tasks) == (12, 12)
    kept = {s.name: s.kept.mean for s in report.selections}
    assert set(kept) == set(SELECTIONS)
    assert kept["best_value"] == 1  # sees_slips is a perfect judge of finished walks


def test_stored_populations() -> None:
    def run(run_id: str, particle: str, said: str, outcome: float, **kinds: object) -> Trajectory:
        return Trajectory(run_id, particle, ("q", said), outcome=outcome, task_id="t", **kinds)  # type: ignore[arg-type]

    trajectories = [
        run("r", "p0", "yes", 1.0, values=(None, 0.2)),
        run("r", "p1", "no", 0.0, values=(None, 0.9)),
        run("r", "p2", "yes", 1.0, values=(None, 0.1)),
        run("r", "p3", "cut", 0.0, status="pruned"),
    ]
    [found] = stored(trajectories)
    assert [c.output for c in found.candidates] == ["yes", "no", "yes"]
    report = selection_report([found], {"vote": vote(), "best_value": best_value})
    assert {s.name: s.reward.mean for s in report.selections} == {"vote": 1.0, "best_value": 0.0}
