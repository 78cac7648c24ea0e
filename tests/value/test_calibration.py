"""Calibration: what the curves promise, on data whose truth is known, and honest cross-fitting."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value import SoftValueFunction
from langgraph_amc.value.calibrating import Calibrated, calibrated, fit_calibration
from langgraph_amc.value.calibration import MIN_STATES, Calibration, Knots, Odds, cross_fitted, fit
from langgraph_amc.value.errors import TrainingDataError
from langgraph_amc.value.metrics import calibration as measure

from .world import slippery_runs

METHODS = ["platt", "isotonic"]


def world(n: int = 2000, tasks: int = 40, steps: int = 4, seed: int = 0) -> tuple[np.ndarray, ...]:
    """True chances, 0/1 returns, steps and tasks; two states in four are later ones of the same run."""
    rng = np.random.default_rng(seed)
    p = rng.beta(1.0, 1.5, n)
    return p, (rng.random(n) < p).astype(float), rng.integers(steps, size=n), rng.integers(tasks, size=n)


def overconfident(p: np.ndarray) -> np.ndarray:
    odds = (p / (1 - p)) ** 3
    return odds / (1 + odds)


@pytest.mark.parametrize("method", METHODS)
def test_it_finds_the_true_chances_behind_a_distorted_value(method: str) -> None:
    p, returns, steps, tasks = world()
    fitted = fit(overconfident(p), returns, steps, tasks, method=method)
    fresh, outcomes, at, _ = world(4000, seed=1)
    before, after = overconfident(fresh), fitted(overconfident(fresh), at)
    assert np.abs(after - fresh).mean() < 0.05 < np.abs(before - fresh).mean()
    assert measure(after, outcomes)[1] < 0.05 < measure(before, outcomes)[1]


@pytest.mark.parametrize("method", METHODS)
def test_a_step_that_is_distorted_otherwise_has_its_own_curve(method: str) -> None:
    p, returns, steps, tasks = world(4000)
    said = np.where(steps == 2, p**3, p)
    fitted = fit(said, returns, steps, tasks, method=method)
    assert set(fitted.steps) == {0, 1, 2, 3}
    for step, value in ((1, 0.5), (2, 0.5**3)):
        assert fitted([value], [step])[0] == pytest.approx(0.5, abs=0.12)


def test_a_step_with_too_few_states_shares_the_pooled_curve() -> None:
    p, returns, steps, tasks = world()
    steps = np.where(np.arange(len(p)) < MIN_STATES - 1, 9, steps)
    fitted = fit(p, returns, steps, tasks)
    assert 9 not in fitted.steps
    assert fitted([0.3, 0.3], [9, 77]).tolist() == [fitted.pooled(np.array([0.3]))[0]] * 2


@pytest.mark.parametrize("method", METHODS)
@given(data=st.data(), seed=st.integers(0, 10_000))
def test_it_keeps_the_order_and_the_range_whatever_the_data(method: str, data: st.DataObject, seed: int) -> None:
    n = data.draw(st.integers(5, 60))
    chance = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
    values = data.draw(st.lists(chance, min_size=n, max_size=n))
    returns = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n))
    fitted = fit(values, returns, np.zeros(n), np.arange(n) % 6, method=method)
    x = np.sort(np.random.default_rng(seed).random(50))
    x = x[np.diff(x, prepend=-1.0) > 1e-4]
    found = fitted(x, np.zeros(len(x)))
    assert (np.diff(found) > 0).all()
    assert (found >= 0).all()
    assert (found <= 1).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_it_never_says_that_something_is_certain(method: str, outcome: float) -> None:
    fitted = fit(np.linspace(0.05, 0.95, 60), np.full(60, outcome), np.zeros(60), np.arange(60) % 6, method=method)
    inside = fitted([0.05, 0.5, 0.95], [0, 0, 0])
    assert (inside > 0).all()
    assert (inside < 1).all()
    assert abs(inside - outcome).mean() < 0.2


def test_isotonic_regression_pools_what_violates_the_order() -> None:
    x, y = np.repeat([0.1, 0.3, 0.5, 0.9], 50), np.repeat([0.0, 1.0, 0.0, 1.0], 50)
    fitted = fit(x, y, np.zeros(200), np.arange(200) % 5, method="isotonic", bounds=(0, 1)).pooled
    assert isinstance(fitted, Knots)
    assert fitted.x == pytest.approx((0.1, 0.4, 0.9))
    assert fitted.y == pytest.approx((0.5 / 51, 0.5, 50.5 / 51))


def test_a_value_that_is_wrong_on_held_out_tasks_is_flattened_and_not_turned_round() -> None:
    p, returns, steps, tasks = world()
    fitted = fit(1 - p, returns, steps, tasks)
    assert isinstance(fitted.pooled, Odds)
    assert 0 < fitted.pooled.slope <= 0.05
    assert fitted([0.2, 0.8], [0, 0]) == pytest.approx([returns.mean()] * 2, abs=0.1)


def test_graded_returns_of_any_unit() -> None:
    p, returns, steps, tasks = world()
    graded = 300 * returns - 100 + np.random.default_rng(5).normal(0, 5, len(p)).clip(-10, 10)
    fitted = fit(300 * overconfident(p) - 100, graded, steps, tasks)
    assert not fitted.binary
    found = fitted([300 * overconfident(np.array([0.5]))[0] - 100, -1e9, 1e9], [0, 0, 0])
    assert found[0] == pytest.approx(50, abs=25)
    assert fitted.low <= found[1] < found[0] < found[2] <= fitted.high


def test_weights_count() -> None:
    p, returns, steps, tasks = world(1000)
    doubled = [np.concatenate([x, x[:300]]) for x in (p, returns, steps, tasks)]
    weights = np.where(np.arange(1000) < 300, 2.0, 1.0)
    repeated, weighted = fit(*doubled), fit(p, returns, steps, tasks, weights)
    assert weighted([0.2, 0.7], [99, 99]) == pytest.approx(repeated([0.2, 0.7], [99, 99]), abs=0.01)
    assert abs(weighted([0.2], [99])[0] - fit(p, returns, steps, tasks)([0.2], [99])[0]) > 1e-6


def test_cross_fitting_shows_a_calibrator_its_own_tasks_never() -> None:
    """Noise that is the same for all states of a task: a calibrator may learn it, a cross-fitted one cannot."""
    rng = np.random.default_rng(3)
    tasks = np.repeat(np.arange(30), 20)
    said = rng.random(30)[tasks]
    returns = (rng.random(30) < 0.5).astype(float)[tasks]
    steps = np.zeros(600)
    own = fit(said, returns, steps, tasks, method="isotonic")(said, steps)
    crossed = cross_fitted(said, returns, steps, tasks, method="isotonic")
    assert np.square(own - returns).mean() < np.square(crossed - returns).mean() - 0.02
    for task in range(30):  # what a task's own returns were changes nothing for it
        flipped = np.where(tasks == task, 1 - returns, returns)
        again = cross_fitted(said, flipped, steps, tasks, method="isotonic")
        assert (again[tasks == task] == crossed[tasks == task]).all()


@pytest.mark.parametrize("method", METHODS)
def test_json_keeps_it(method: str) -> None:
    p, returns, steps, tasks = world(800)
    fitted = fit(p, returns, steps, tasks, method=method)
    read = Calibration.from_json(json.loads(json.dumps(fitted.to_json())))
    assert read == fitted
    assert fitted.steps
    assert (read(p, steps) == fitted(p, steps)).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tasks": np.arange(200) % 4}, TrainingDataError, "at least 5 held-out tasks, got 4"),
        ({"values": np.full(200, np.nan)}, TrainingDataError, "finite"),
        ({"weights": np.full(200, -1.0)}, TrainingDataError, "negative"),
        ({"method": "beta"}, ConfigurationError, "beta"),
    ],
)
def test_what_cannot_be_fitted_is_refused(change: dict[str, object], error: type, message: str) -> None:
    p, returns, steps, tasks = world(200)
    with pytest.raises(error, match=message):
        fit(**{"values": p, "returns": returns, "steps": steps, "tasks": tasks, **change})


def slips(transcript: str) -> float | None:
    """A judge that sees slips and is far too sure of itself; it has nothing to say of some texts."""
    return None if "n7" in transcript else 0.02 if "slip" in transcript else 0.99


def test_any_value_function_can_be_calibrated() -> None:
    fitted = fit_calibration(slips, slippery_runs(tasks=40))
    value = calibrated(slips, fitted)
    assert isinstance(value, SoftValueFunction)
    start, slipped, unknown = ("task go ",), ("task go ", "act obs slip "), ("task n7 go ",)
    found = value.score([start, slipped, unknown])
    assert found[0] == pytest.approx(0.8**4, abs=0.12)  # 0.99 by the judge
    assert found[1] < 0.1
    assert np.isnan(found[2])
    soft = value.soft_score([start, slipped, unknown], 0.1)
    assert soft[0] == pytest.approx(0.1 * np.log(1 - found[0] + found[0] * np.exp(10)))
    assert np.isnan(soft[2])


def test_a_graded_return_leaves_the_soft_value_unknown() -> None:
    runs = [replace(run, outcome=5.0 * (run.outcome or 0.3)) for run in slippery_runs(tasks=8)]
    value = calibrated(lambda states: [float(len(s)) for s in states], fit_calibration(slips, runs))
    assert type(value) is Calibrated
    assert not isinstance(value, SoftValueFunction)


def test_pruned_runs_and_missing_outcomes_teach_a_calibrator_nothing() -> None:
    runs = slippery_runs(tasks=20)
    more = [replace(run, outcome=None, run_id="x") for run in runs]
    assert fit_calibration(slips, [*runs, *more]) == fit_calibration(slips, runs)
    with pytest.raises(TrainingDataError, match="got 0"):
        fit_calibration(slips, more)
