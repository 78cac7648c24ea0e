"""Missing scores: what they weigh, by hand and in expectation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_amc.smc import (
    Arrival,
    Resampled,
    Weighted,
    WeightError,
    Withheld,
    drive,
    ess_below,
    ess_target,
    every,
    fixed,
    particle_filter,
    tilt,
)
from langgraph_amc.smc.events import FilterState
from langgraph_amc.smc.live import Live
from langgraph_amc.smc.weighing import too_little_said, weigh

from .test_exactness import assert_mean_is, target, weights_per_run
from .test_filter import final_weights, of, run
from .toy import BETA, ScriptedPopulation, ToyPopulation, reward_of, wrong_value

NAN = math.nan


def weights(event) -> np.ndarray:
    w = np.exp(np.array(event.log_weights))
    return w / w.sum()


@pytest.mark.parametrize("tempering", [fixed(1.0), ess_target(0.5, max_sharpness=1.0), tilt(0.5)])
def test_a_missing_score_counts_as_the_mean_of_the_others_at_the_first_check(tempering):
    population = ScriptedPopulation({"a": [(0, 0.9)] * 2, "b": [(0, NAN)] * 2, "c": [(0, 0.1)] * 2})
    w = weights(of(Weighted, run(population, schedule=every(5) | ess_below(1e-9), tempering=tempering))[0])
    assert w[1] == pytest.approx((w[0] + w[2]) / 2)
    assert w[0] > w[2]


def test_what_was_known_before_is_kept():
    """b was twice as heavy as the mean of the others, and stays so while it has no score."""
    first = [math.log(2), math.log(4), math.log(2)]
    population = ScriptedPopulation(
        {n: [(0, v), (0, later), (0, 0)] for n, v, later in zip("abc", first, (1.5, NAN, -0.5), strict=True)}
    )
    before, after = of(Weighted, run(population, schedule=ess_below(1e-9)))[:2]
    assert weights(before) == pytest.approx([0.25, 0.5, 0.25])
    w = weights(after)
    assert w[1] == pytest.approx(2 * (w[0] + w[2]) / 2)


def test_a_particle_that_has_been_resampled_starts_from_what_it_counted_as():
    population = ScriptedPopulation({"a": [(0, 2), (0, NAN), (0, 0)], "b": [(0, NAN), (0, 1), (0, 0)]})
    events = run(population, schedule=every(1), resampler=lambda rng, w, n: np.array([0, 1])[:n])
    for event in of(Weighted, events)[:2]:
        assert event.log_weights[0] == pytest.approx(event.log_weights[1])
    # b counted as V = 2 at the first check, and a as 1 at the second: those are what they are weighed against since
    assert final_weights(events)["a"] == pytest.approx(final_weights(events)["b"])
    assert events[-1].result.log_evidence == pytest.approx(0.0)


def test_where_all_are_missing_nothing_changes():
    population = ScriptedPopulation({"a": [(0, 2), (0, NAN), (0, 0)], "b": [(0, 1), (0, NAN), (0, 0)]})
    events = run(population, schedule=every(2))
    (withheld,) = of(Withheld, events)
    assert withheld.boundary == 2
    assert withheld.reason == "all 2 scores are missing"
    assert not of(Resampled, events)


def test_an_end_whose_worth_is_missing_is_weighed_like_the_others():
    population = ScriptedPopulation({"a": [(NAN, 0)], "b": [(3.0, 0)], "c": [(1.0, 0)]})
    final = final_weights(run(population, schedule=every(1)))
    assert math.exp(final["a"]) == pytest.approx((math.exp(final["b"]) + math.exp(final["c"])) / 2)


def test_impossible_ones_say_nothing_of_a_missing_score():
    population = ScriptedPopulation({"a": [(0, -math.inf)] * 2, "b": [(0, NAN)] * 2})
    first = of(Weighted, run(population, schedule=every(1)))[0]
    assert first.log_weights == pytest.approx((-math.inf, -math.log(2)))


def test_a_reward_that_is_missing_on_the_way_is_an_error():
    live = Live.of(FilterState.fresh("ab"))
    with pytest.raises(WeightError, match="still runs"):
        weigh(fixed(1.0), live, [Arrival(NAN, False), Arrival(0.0, False)], np.zeros(2), np.zeros(2, bool))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.one_of(st.floats(-3, 3), st.just(NAN)), min_size=2, max_size=6),
    sharp=st.sampled_from([fixed(1.0), fixed(0.1), ess_target(0.5), ess_target(0.3, weighs="growth")]),
)
def test_the_mean_of_the_known_is_the_mean_of_all(values, sharp):
    live = Live.of(FilterState.fresh(range(len(values))))
    arrivals = [Arrival(0.0, False)] * len(values)
    weighed = weigh(sharp, live, arrivals, np.array(values), np.zeros(len(values), bool))
    known = ~np.isnan(values)
    w = np.exp(weighed.log_weights)
    assert np.isfinite(weighed.log_weights).all()
    if known.any():
        assert w[known].mean() == pytest.approx(w.mean())


def often_missing(seed: int):
    rng = np.random.default_rng(seed)
    return lambda state: NAN if rng.random() < 0.4 else wrong_value(state)


def badly_missing(state: str) -> float:
    """Missing exactly where the future is good: nothing that is missing can bias the weights."""
    return NAN if state.endswith("b") else wrong_value(state)


@pytest.mark.parametrize("value", [often_missing(5), badly_missing], ids=["at random", "where it is good"])
@pytest.mark.parametrize("objective", ["sample", "optimise"])
def test_weights_mean_what_they_say_however_many_scores_are_missing(value, objective):
    table = weights_per_run(1500, value, schedule=every(1), objective=objective, seed=21)
    assert_mean_is(table, target(reward_of, BETA))


class TestUncertainty:
    def test_by_hand(self):
        assert too_little_said(np.array([0.0, 0.2]), 0.11) is not None
        assert too_little_said(np.array([0.0, 0.2]), 0.1) is None
        assert too_little_said(np.array([0.0, 0.2, NAN]), 0.1) is None
        assert too_little_said(np.array([0.0, 0.0]), NAN) is None
        assert too_little_said(np.array([0.0, 0.0]), None) is None
        assert too_little_said(np.array([NAN]), None) is not None

    def test_differences_below_it_do_not_resample(self):
        script = {"a": [(0, 0.5), (0, 0.9), (0, 0)], "b": [(0, 0.4), (0, 0.1), (0, 0)]}
        events = run(ScriptedPopulation(script), schedule=every(1), uncertainty=lambda step: 0.1)
        (withheld,) = of(Withheld, events)
        assert withheld.boundary == 1
        assert [event.boundary for event in of(Resampled, events)] == [2]

    def test_weights_stay_exact(self):
        table = weights_per_run(
            1500, wrong_value, schedule=every(1), objective="sample", uncertainty=lambda step: 0.4, seed=22
        )
        assert_mean_is(table, target(reward_of, BETA))

    def test_it_decides_in_the_toy(self):
        rng = np.random.default_rng(1)
        how = {"particles": 5, "schedule": every(1), "tempering": fixed(BETA), "rng": rng, "max_boundary": 10}
        seen = [
            event
            for _ in range(50)
            for event in drive(particle_filter(ToyPopulation(rng, wrong_value), uncertainty=lambda step: 0.4, **how))
        ]
        assert of(Withheld, seen)
        assert of(Resampled, seen)
