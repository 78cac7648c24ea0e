"""Tempering: potentials in nats, the exact 0/1 tilt, and a sharpness solved for the ESS."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc import WeightError, effective_sample_size, ess_target, fixed, tilt

spreads = st.lists(st.floats(-50, 50), min_size=1, max_size=20).map(np.array)


def potential(tempering, reward, value, done=None):
    done = [False] * len(reward) if done is None else done
    return tempering.potential(np.array(reward, float), np.array(value, float), np.array(done))


def test_fixed_divides_reward_and_value_and_ignores_the_value_of_the_done():
    np.testing.assert_allclose(
        potential(fixed(0.5), [1.0, 1.0, -2.0], [0.5, 9.0, 1.0], [False, True, False]), [3, 2, -2]
    )
    assert fixed(0.5).sharpness(np.array([0.0, 7.0])) == 1.0


@given(st.floats(0, 1), st.floats(0.02, 20))
def test_tilt_is_the_soft_value_of_a_coin(p, beta):
    expected = math.log((1 - p) * math.exp(0 / beta) + p * math.exp(1 / beta))
    assert potential(tilt(beta), [0.0], [p])[0] == pytest.approx(expected, abs=1e-9)


def test_tilt_of_reward_already_won_and_of_the_done():
    np.testing.assert_allclose(potential(tilt(0.25), [1.0, 0.0], [0.7, 0.7], [True, True]), [4.0, 0.0])
    np.testing.assert_allclose(potential(tilt(0.25), [0.0, 0.0], [0.0, 1.0]), [0.0, 4.0])


def test_tilt_at_small_beta_conditions_on_success_and_does_not_overflow():
    p = [0.1, 0.2, 0.8]
    for beta in (1e-2, 1e-4, 1e-300):
        with np.errstate(over="raise", invalid="raise"):
            worth = potential(tilt(beta), [0.0] * 3, p)
        assert np.isfinite(worth).all()
        if beta > 1e-5:  # below, nats of 1/beta swallow the digits of log p
            np.testing.assert_allclose(np.exp(worth - worth[0]), [1, 2, 8], rtol=1e-6)


def test_tilt_takes_rounding_but_no_value_that_is_not_a_chance():
    np.testing.assert_allclose(potential(tilt(1.0), [0.0, 0.0], [-1e-9, 1 + 1e-9]), [0.0, 1.0])
    for bad in (-0.01, 1.01, math.nan):
        with pytest.raises(WeightError, match="particle 1"):
            potential(tilt(1.0), [0.0, 0.0], [0.5, bad])


def test_temperature_towards_zero_does_not_overflow():
    with np.errstate(over="raise", invalid="raise"):
        worth = potential(fixed(1e-300), [1.0, 0.0], [0.5, 0.5])
    assert np.isfinite(worth).all()
    assert effective_sample_size(worth) == 1.0


@given(spreads, st.floats(0.05, 0.95), st.floats(0.5, 100))
def test_the_solved_sharpness_hits_the_target_or_is_the_sharpest_allowed(ratio, fraction, sharpest):
    solved = ess_target(fraction, max_sharpness=sharpest).sharpness(ratio)
    ess = effective_sample_size(solved * ratio)
    if np.ptp(ratio) == 0:
        assert solved == 1.0
    elif solved == sharpest:
        assert ess >= fraction * ratio.size * (1 - 1e-9)
    else:
        assert 0 < solved < sharpest
        assert ess == pytest.approx(fraction * ratio.size, rel=1e-6)


def test_at_most_the_target_so_that_the_trigger_fires():
    rng = np.random.default_rng(0)
    for _ in range(100):
        ratio = rng.normal(size=8)
        solved = ess_target(0.5, max_sharpness=1e6).sharpness(ratio)
        assert effective_sample_size(solved * ratio) <= 4.0


@given(spreads.map(lambda x: x.round(2)), st.floats(1e-3, 1e3))
def test_a_change_of_unit_does_not_change_the_weights(ratio, unit):
    target = ess_target(0.4123, max_sharpness=1e9)  # no number of ties has exactly this ESS
    one, two = target.sharpness(ratio), target.sharpness(ratio * unit)
    if 1e9 not in (one, two) and np.ptp(ratio) > 1e-3:
        np.testing.assert_allclose(two * unit, one, rtol=1e-6)


def test_ties_dead_particles_and_extremes():
    target = ess_target(0.5, max_sharpness=16)
    assert target.sharpness(np.array([])) == 1.0
    assert target.sharpness(np.array([3.0])) == 1.0
    assert target.sharpness(np.array([2.0, 2.0, 2.0])) == 1.0
    assert target.sharpness(np.array([1.0, 1.0, 1.0, 0.0])) == 16  # three best: the ESS cannot fall to 2
    assert target.sharpness(np.array([-np.inf, 2.0, 2.0])) == 1.0
    assert target.sharpness(np.full(4, -np.inf)) == 1.0
    with_dead = target.sharpness(np.array([0.0, 0.3, 0.9, -np.inf]))
    assert with_dead == target.sharpness(np.array([0.0, 0.3, 0.9]))
    wide = target.sharpness(np.array([0.0, 1e200, 3e200, -1e200]))
    assert effective_sample_size(wide * np.array([0.0, 1e200, 3e200, -1e200])) == pytest.approx(2.0)


def test_noise_is_not_blown_up():
    noise = np.random.default_rng(0).normal(scale=0.01, size=8)
    target = ess_target(0.5)
    assert effective_sample_size(target.sharpness(noise) * noise) > 0.9 * 8


def test_the_default_limit_follows_the_unit_of_the_base():
    ranks = np.random.default_rng(1).normal(scale=1e-3, size=8)  # so flat that the limit is reached
    assert ess_target().sharpness(ranks) == 16
    assert ess_target(base=fixed(10.0)).sharpness(ranks / 10) == 160
    assert ess_target(base=fixed(0.01)).sharpness(ranks) == 3
    assert ess_target(base=tilt(0.1)).sharpness(ranks) == 3


def test_the_base_gives_the_potential():
    reward, value, done = np.zeros(2), np.array([0.2, 0.4]), np.array([False, True])
    for base in (fixed(0.3), tilt(0.1)):
        expected = base.potential(reward, value, done)
        np.testing.assert_array_equal(ess_target(base=base).potential(reward, value, done), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: fixed(0.0),
        lambda: fixed(-1.0),
        lambda: fixed(math.nan),
        lambda: fixed(math.inf),
        lambda: fixed(5e-324),
        lambda: tilt(0.0),
        lambda: ess_target(0.0),
        lambda: ess_target(1.0),
        lambda: ess_target(max_sharpness=0.0),
        lambda: ess_target(max_sharpness=math.inf),
        lambda: ess_target(base=ess_target()),
        lambda: ess_target(weighs="both"),
    ],
)
def test_impossible_arguments_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()
