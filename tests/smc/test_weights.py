"""Log-weights: sums, effective sample size, immutability, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.errors import AMCError
from langgraph_amc.smc import LogWeights, WeightError, effective_sample_size

finite = st.floats(-1e6, 1e6)
log_weights = st.lists(finite | st.just(-math.inf), min_size=1, max_size=40).filter(lambda x: max(x) > -math.inf)


@given(log_weights)
def test_normalized_sums_to_one_and_keeps_zeros(x):
    weights = LogWeights(np.array(x)).normalized
    assert weights.sum() == pytest.approx(1.0)
    assert all(weights[i] == 0 for i, value in enumerate(x) if value == -math.inf)


@given(log_weights, finite)
def test_a_common_factor_moves_the_sums_and_nothing_else(x, shift):
    before, after = LogWeights(np.array(x)), LogWeights(np.array(x)).add(shift)
    tolerance = 1e-9 * (1 + max(abs(shift), *(abs(v) for v in x if v > -math.inf)))
    assert after.log_sum == pytest.approx(before.log_sum + shift, abs=tolerance)
    assert after.log_mean == pytest.approx(before.log_mean + shift, abs=tolerance)
    np.testing.assert_allclose(after.normalized, before.normalized, atol=1e-8, rtol=1e-6)


@given(log_weights)
def test_ess_is_between_one_and_the_number_of_possible_particles(x):
    possible = sum(value > -math.inf for value in x)
    assert 1.0 <= effective_sample_size(x) <= possible * (1 + 1e-12)


def test_sums_and_ess_of_known_weights():
    weights = LogWeights(np.log([0.5, 1.5, 2.0]))
    assert weights.log_sum == pytest.approx(math.log(4))
    assert weights.log_mean == pytest.approx(math.log(4 / 3))
    assert weights.ess == pytest.approx(16 / (0.25 + 2.25 + 4))
    np.testing.assert_allclose(weights.normalized, [0.125, 0.375, 0.5])


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_uniform_sums_to_one_with_full_ess(n):
    weights = LogWeights.uniform(n)
    assert len(weights) == n
    assert weights.log_sum == pytest.approx(0.0, abs=1e-12)
    assert weights.ess == pytest.approx(n)


def test_add_multiplies_weights_and_the_impossible_stays_impossible():
    weights = LogWeights(np.array([0.0, 1.0, -np.inf])).add([2.0, -np.inf, 5.0])
    np.testing.assert_array_equal(weights.log, [2.0, -np.inf, -np.inf])


def test_all_impossible_is_said_clearly():
    weights = LogWeights(np.full(3, -np.inf))
    assert weights.log_sum == weights.log_mean == -math.inf
    assert weights.ess == 0.0
    with pytest.raises(WeightError, match="no particle is possible"):
        _ = weights.normalized


@pytest.mark.parametrize("bad", [[0.0, math.nan], [math.inf, 0.0], [], [[0.0, 1.0]]])
def test_what_cannot_be_weights_is_refused(bad):
    with pytest.raises(WeightError):
        LogWeights(np.array(bad))


def test_refusals_while_adding():
    weights = LogWeights(np.array([0.0, -np.inf]))
    for bad in ([math.nan, 0.0], [math.inf, 0.0], [0.0, math.inf], [0.0, 0.0, 0.0]):
        with pytest.raises(WeightError):
            weights.add(bad)
    with pytest.raises(WeightError):
        LogWeights.uniform(0)
    assert issubclass(WeightError, AMCError)


def test_nothing_can_be_written_to():
    mine = np.zeros(3)
    weights = LogWeights(mine)
    mine[0] = 9.0
    assert weights.log[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        weights.log[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        weights.normalized[0] = 1.0
    with pytest.raises(AttributeError):
        weights.log = mine
    assert weights == LogWeights(np.zeros(3))
    assert hash(weights) == hash(LogWeights(np.zeros(3)))
    assert weights != LogWeights(np.ones(3))


def test_extreme_weights_neither_overflow_nor_warn():
    with np.errstate(all="raise", under="ignore"):
        weights = LogWeights(np.array([1e300, -1e300, 0.0]))
        np.testing.assert_array_equal(weights.normalized, [1.0, 0.0, 0.0])
        assert weights.ess == 1.0
        assert weights.log_sum == 1e300


def test_shares_are_equal_where_nobody_is_possible():
    np.testing.assert_array_equal(LogWeights(np.full(4, -np.inf)).shares, np.full(4, 0.25))
    some = LogWeights(np.array([0.0, -np.inf, 0.0]))
    np.testing.assert_array_equal(some.shares, [0.5, 0.0, 0.5])
