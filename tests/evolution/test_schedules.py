"""Sigma over generations: exact ends, and an automatic one that finds the signal-to-noise ratio it is told to."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.asktell import ask, start, tell
from langgraph_amc.evolution.schedules import (
    Automatic,
    Constant,
    Cosine,
    Linear,
    Schedule,
    schedule_from_json,
    schedule_to_json,
)
from langgraph_amc.evolution.signal import Signal, Trend, signal_of
from langgraph_amc.evolution.strategy import Strategy

SIGMAS = st.floats(1e-8, 1e3)


@given(first=SIGMAS, last=st.one_of(st.just(0.0), SIGMAS), generations=st.integers(2, 200))
def test_ends_are_exact_and_the_way_is_monotonic(first, last, generations):
    for schedule in (Linear(first, last, generations), Cosine(first, last, generations)):
        seen = [schedule.at(i, Trend()) for i in range(generations + 3)]
        assert seen[0] == first
        assert seen[generations - 1 :] == [last] * 4
        steps = np.diff(seen)
        slack = 1e-12 * max(first, last)
        assert (steps <= slack).all() if last <= first else (steps >= -slack).all()


def test_cosine_is_the_paper_s():
    schedule = Cosine(1e-3, 5e-4, 100)
    for i in (0, 1, 25, 50, 98, 99):
        paper = 1e-3 + (5e-4 - 1e-3) * 0.5 * (1 - math.cos(math.pi * i / 99))
        assert schedule.at(i, Trend()) == pytest.approx(paper, rel=1e-15)
    assert Constant(0.1).at(7, Trend()) == 0.1
    assert Linear(0.1, 0.2, 1).at(0, Trend()) == 0.1


@pytest.mark.parametrize(
    "schedule",
    [Constant(0.5), Linear(0.1, 0.0, 3), Cosine(0.3, 0.1, 9), Automatic(0.1), Automatic(1, 0.5, 2, 3.0, 1.5)],
)
def test_round_trip(schedule):
    assert schedule_from_json(schedule_to_json(schedule)) == schedule
    assert isinstance(schedule, Schedule)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(0),
        lambda: Constant(math.nan),
        lambda: Constant("a"),
        lambda: Linear(0.1, -0.1, 5),
        lambda: Linear(0.1, 0.1, 0),
        lambda: Cosine(math.inf, 0.1, 5),
        lambda: Cosine(0.1, 0.1, 2.5),
        lambda: Automatic(0.1, low=0.2),
        lambda: Automatic(0.1, high=0.05),
        lambda: Automatic(0.1, pace=1.0),
        lambda: Automatic(0.1, target=0),
        lambda: schedule_from_json({"kind": "square", "start": 1}),
        lambda: schedule_to_json(object()),
    ],
)
def test_bad_arguments(make):
    with pytest.raises(ConfigurationError):
        make()


@pytest.mark.parametrize(("first", "wanted"), [(0.02, 0.1), (0.5, 0.1)])
def test_automatic_finds_the_sigma_of_its_target(first, wanted):
    """Gains of tasks are sigma * slope_p + noise: at sigma the ratio is sigma^2 * 1 / (noise^2 / tasks)."""
    rng = np.random.default_rng(0)
    tasks, noise = 16, 0.4
    schedule = Automatic(first, low=1e-3, high=10, target=1.0)
    assert wanted == noise / tasks**0.5
    trend, late = Trend(), []
    for number in range(80):
        sigma = schedule.at(number, trend)
        gains = sigma * rng.normal(size=(16, 1)) + noise * rng.normal(size=(16, tasks))
        trend = trend.after(sigma, signal_of(gains))
        late.append(sigma)
    assert late[0] == first
    assert max(abs(np.diff(np.log(late)))) <= math.log(1.2) + 1e-12
    assert np.exp(np.mean(np.log(late[30:]))) == pytest.approx(wanted, rel=0.2)


def test_automatic_stays_in_bounds_and_waits_where_nothing_can_be_told():
    schedule = Automatic(0.1)
    assert schedule.bounds == (0.025, 0.4)
    assert schedule.at(3, Trend(0.17)) == 0.17
    assert schedule.at(3, Trend(0.17, 0.0, 0.0)) == 0.17
    assert schedule.at(3, Trend(0.39, -0.1, 1.0)) == 0.4
    assert schedule.at(3, Trend(0.026, 1.0, 0.0)) == 0.025


def test_automatic_runs_through_ask_and_tell():
    strategy = Strategy(population=8, sigma=Automatic(0.1), seed=3)
    rng = np.random.default_rng(1)
    state = start(strategy)
    for _ in range(6):
        generation = ask(strategy, state)
        _, state = tell(strategy, state, generation, rng.normal(size=(8, 5)))  # nothing but noise
    assert ask(strategy, state).sigma > 0.1


@given(
    pairs=st.integers(1, 6),
    tasks=st.integers(2, 6),
    seed=st.integers(0, 999),
    gone=st.floats(0, 0.5),
)
def test_signal_and_noise_are_the_average_of_all_halves(pairs, tasks, seed, gone):
    rng = np.random.default_rng(seed)
    gains = rng.normal(size=(pairs, tasks))
    gains[rng.random(gains.shape) < gone] = np.nan
    rows = [row[~np.isnan(row)] for row in gains]
    rows = [row for row in rows if len(row) > 1]
    found = signal_of(gains)
    if not rows:
        assert found == Signal()
        assert found.ratio is None
        return
    products = [np.mean([a * b for i, a in enumerate(r) for j, b in enumerate(r) if i != j]) for r in rows]
    assert found.signal == pytest.approx(np.mean(products), abs=1e-12)
    assert found.noise == pytest.approx(np.mean([r.var(ddof=1) / len(r) for r in rows]))
    assert found.signal + found.noise == pytest.approx(np.mean([r.mean() ** 2 for r in rows]), abs=1e-12)


def test_signal_is_unbiased():
    rng = np.random.default_rng(2)
    found = [signal_of(0.3 * rng.normal(size=(4, 1)) + rng.normal(size=(4, 5))) for _ in range(4000)]
    for values, truth in (([f.signal for f in found], 0.09), ([f.noise for f in found], 0.2)):
        assert abs(np.mean(values) - truth) < 4 * np.std(values) / len(values) ** 0.5


def test_a_whole_number_is_the_setting_that_a_float_is():
    whole = Strategy(alpha=1, alpha_ratio=2, trust_region=3, decay=0, sigma=1)
    assert repr(whole.to_json()) == repr(Strategy(alpha=1.0, alpha_ratio=2.0, trust_region=3.0, sigma=1.0).to_json())
    for schedule in (Linear(1, 0, 3), Cosine(2, 1, 3), Automatic(1, 1, 2, 1, 2)):
        floats = {name: value for name, value in schedule_to_json(schedule).items() if name != "generations"}
        assert {type(value) for value in floats.values()} == {str, float}


@pytest.mark.parametrize("sigma", [1e-170, 1e-320, 1e200])
def test_a_sigma_whose_square_is_no_number_breaks_nothing(sigma):
    trend = Trend().after(sigma, Signal(1.0, 1.0))
    assert trend.sigma == sigma
    assert Automatic(sigma, sigma, sigma).at(1, trend) == sigma


@pytest.mark.parametrize(
    "changes", [{"antithetic": np.True_}, {"shaping": np.array(["z", "ranks"])}, {"antithetic": 1}, {"seed": 10**5000}]
)
def test_what_a_history_cannot_hold_is_refused(changes):
    with pytest.raises(ConfigurationError):
        Strategy(**changes)
