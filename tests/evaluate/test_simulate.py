"""Predictions from logged runs: exact where nothing is resampled, near the truth where something is."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_amc.evaluate import hindsight
from langgraph_amc.evaluate.logged import LoggedRun, LoggedRuns, LoggedRunsError, read_runs
from langgraph_amc.evaluate.simulate import Arm, Simulator
from langgraph_amc.smc import argmax, best_reward, best_value, ess_target, every, never
from langgraph_amc.trajectories.types import Trajectory, Usage
from langgraph_amc.value.callables import as_value
from langgraph_amc.value.errors import ValueScoreError
from tests.evaluate.logged_walk import truth, walks

STAYS = tuple(np.random.default_rng(1).uniform(0.75, 0.95, size=24))
SELECT = {"best_value": best_value}


def run_of(task: str, total: float, values: tuple[float, ...] = (0.5, 0.5), failed: bool = False) -> LoggedRun:
    steps = len(values)
    return LoggedRun(task, np.array([np.nan, *values]), np.zeros(steps + 1), total, 10.0 * np.arange(steps + 1), failed)


@settings(max_examples=10, deadline=None)
@given(right=st.integers(0, 6), n=st.integers(1, 6))
def test_best_of_n_is_the_average_over_draws_from_the_log(right: int, n: int) -> None:
    runs = [run_of("a", float(i < right), (0.5, float(i < right))) for i in range(6)]
    log = LoggedRuns((*runs, run_of("b", 1.0), *[run_of("b", 0.0)] * 5), "tokens")
    found = Simulator(log).simulate(Arm(n, never()), SELECT, replicates=100)
    exact = 1 - comb(6 - right, n) / comb(6, n)
    assert found.rewards["best_value"][0] == pytest.approx(exact, abs=0.2)
    assert found.spent.tolist() == pytest.approx([20.0 * n] * 2)
    assert not found.resamplings.any()


def test_one_run_costs_one_run_and_earns_the_mean() -> None:
    log = walks(STAYS, 2.0, runs=8)
    found = Simulator(log).simulate(Arm(1, never()), SELECT, replicates=24)
    assert found.rewards["best_value"].mean() == pytest.approx(np.mean([r.total for r in log.runs]), abs=0.06)


@pytest.mark.parametrize(("sees", "lasts"), [(2.0, 0.0), (1.5, 0.5)])
def test_the_gain_of_resampling_is_foreseen(sees: float, lasts: float) -> None:
    log = walks(STAYS, sees, runs=12, seed=3, lasts=lasts)
    simulator = Simulator(log)
    gains = []
    for arm in (Arm(6, never()), Arm(6, every(2)), Arm(6, every(4), ess_target(0.7))):
        said = simulator.simulate(arm, SELECT, replicates=4).rewards["best_value"].mean()
        gains.append((said, truth(arm, STAYS, sees, repeats=10, lasts=lasts)))
    (plain, really_plain), *steered = gains
    for said, really in steered:
        assert said - plain == pytest.approx(really - really_plain, abs=0.1)
        assert said > plain + 0.02


def test_v_that_sees_nothing_gains_nothing() -> None:
    log = walks(STAYS, 0.0, runs=12, seed=5)
    simulator = Simulator(log)
    plain, steered = (
        simulator.simulate(Arm(6, schedule), SELECT, replicates=4).rewards["best_value"].mean()
        for schedule in (never(), every(2))
    )
    assert abs(plain - steered) < 0.07


def test_a_hopeless_world_stays_hopeless() -> None:
    hopeless = [run_of(f"h{i}", 0.0, tuple(np.linspace(0.1, 0.6, 6))) for i in range(4) for _ in range(8)]
    easy = [run_of(f"e{i}", 1.0, tuple(np.linspace(0.1, 1.0, 6))) for i in range(12) for _ in range(8)]
    log = LoggedRuns((*easy, *hopeless), "tokens")
    found = Simulator(log).simulate(Arm(6, every(1)), SELECT, replicates=4)
    assert found.rewards["best_value"][log.tasks.index("h0") :].mean() < 0.1
    assert found.rewards["best_value"][: log.tasks.index("h0")].mean() > 0.95


def test_hindsight_agrees_with_how_runs_ended() -> None:
    log = walks(STAYS, 2.0, runs=12, seed=3)
    # those that are right end early, as where a goal is reached
    short = [replace(r, values=r.values[:7], observed=r.observed[:7], spent=r.spent[:7]) for r in log.runs if r.total]
    log = LoggedRuns((*short, *[r for r in log.runs if not r.total]), "steps")
    world = Simulator(log)._world(np.random.default_rng(0))
    for run, hidden in zip(log.runs, world.hidden, strict=True):
        assert hidden[0] == 1
        assert hidden[run.steps] == run.total
    off = world.hidden[:, 3:7].mean(axis=1)[[r.total == 0 for r in log.runs]].mean()
    assert 0.1 < off < 0.8  # some fail early, some late


def test_hidden_states_are_found_where_v_sees_them() -> None:
    log = walks((0.9,) * 24, 3.0, runs=12, seed=2)
    model = hindsight.fit(log.runs)
    off = model.change[1:3, 1, 0]
    assert off == pytest.approx([0.1, 0.1], abs=0.05)


def test_selection_and_observability() -> None:
    # V of the last state lies: it prefers what fails
    runs = [run_of(t, total, (0.5, 1 - total)) for t in "ab" for total in (0.0, 0.0, 1.0, 1.0)]
    log = LoggedRuns(tuple(runs), "tokens")
    found = Simulator(log, observable=True).simulate(
        Arm(4, never()), {"best_value": best_value, "best_reward": best_reward, "argmax": argmax}
    )
    assert found.rewards["best_value"].tolist() == [0.0, 0.0]
    assert found.rewards["best_reward"].tolist() == found.oracle.tolist() == [1.0, 1.0]
    assert found.rewards["argmax"].tolist() == [1.0, 1.0]


def test_failed_runs_are_never_chosen_and_all_failed_earn_what_failures_earn() -> None:
    runs = [run_of("a", 0.0, (0.5, 0.9), failed=True)] * 3 + [run_of("a", 1.0, (0.5, 0.1))]
    runs += [run_of("b", 0.0, failed=True)] * 4
    found = Simulator(LoggedRuns(tuple(runs), "steps")).simulate(Arm(4, never()), SELECT)
    assert found.rewards["best_value"].tolist() == [1.0, 0.0]


def test_a_seed_repeats_a_simulation_and_arms_share_their_founders() -> None:
    simulator = Simulator(walks(STAYS[:6], 1.0, runs=8))
    one, two = (simulator.simulate(Arm(4, every(2)), SELECT, seed=7) for _ in range(2))
    assert one.rewards["best_value"].tolist() == two.rewards["best_value"].tolist()
    assert one.spent.tolist() == two.spent.tolist()
    late = simulator.simulate(Arm(4, every(50)), SELECT, seed=7)
    assert late.oracle.tolist() == simulator.simulate(Arm(4, never()), SELECT, seed=7).oracle.tolist()


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(LoggedRunsError, match="one run"):
        Simulator(LoggedRuns((run_of("a", 1.0),), "tokens"))
    with pytest.raises(LoggedRunsError, match="fewer than 3 particles"):
        Simulator(LoggedRuns((run_of("a", 1.0), run_of("a", 0.0)), "tokens")).simulate(Arm(3, never()), SELECT)


def trajectory(**changes: object) -> Trajectory:
    base = Trajectory("r", "p0", ("start", "one", "two"), outcome=1.0, task_id="a", usage=Usage(2, 90, 10))
    return replace(base, **changes)  # type: ignore[arg-type]


def test_reading_scores_every_state_and_spreads_the_tokens() -> None:
    seen: list[str] = []

    def length(text: str) -> float:
        seen.append(text)
        return len(text) / 100

    log = read_runs([trajectory(), trajectory(particle="p1", rewards=(0.5, 0.25))], as_value(length))
    assert seen == ["startone", "startonetwo"] * 2
    first, second = log.runs
    assert np.isnan(first.values[0])
    assert first.values[1:].tolist() == [0.08, 0.11]
    # read "start" and then "startone": 5 and 8 of 13 characters; written: as much each time
    assert first.spent.tolist() == pytest.approx([0, 90 * 5 / 13 + 5, 100])
    assert (second.total, second.observed.tolist()) == (1.75, [0, 0.5, 0.75])
    assert log.unit == "tokens"
    silent = read_runs([trajectory(usage=Usage())], as_value(length))
    assert (silent.unit, silent.runs[0].spent.tolist()) == ("steps", [0, 1, 2])


def test_what_is_no_independent_run_is_left_out() -> None:
    def half(transcripts: list[object]) -> list[float]:
        return [0.5] * len(transcripts)

    given = [
        trajectory(),
        trajectory(particle="p1", parent="p0"),
        trajectory(particle="p2", status="pruned"),
        trajectory(particle="p3", status="truncated"),
        trajectory(particle="p4", outcome=None),
        trajectory(particle="p5", status="failed", outcome=0.0),
    ]
    log = read_runs(given, as_value(half))
    assert [run.failed for run in log.runs] == [False, True]
    assert dict(log.left_out) == {"clones and pruned runs": 2, "runs without a reward": 1, "truncated runs": 1}
    with pytest.raises(LoggedRunsError, match="no independent run"):
        read_runs(given[1:5], as_value(half))
    with pytest.raises(LoggedRunsError, match="mixes transcripts"):
        read_runs([trajectory(), trajectory(fingerprint="other")], as_value(half))
    with pytest.raises(ValueScoreError, match="some are missing"):
        read_runs([trajectory()], as_value(lambda transcripts: [None] * len(transcripts)))
