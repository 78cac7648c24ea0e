"""Resampling: unbiased, of the right variance, and right at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc import (
    RESAMPLERS,
    LogWeights,
    WeightError,
    multinomial,
    residual,
    stratified,
    systematic,
)

every_scheme = pytest.mark.parametrize("scheme", RESAMPLERS.values(), ids=RESAMPLERS)

log_weights = st.lists(st.floats(-800, 800) | st.just(-math.inf), min_size=1, max_size=30).filter(
    lambda x: max(x) > -math.inf
)
WEIGHTS = np.array([0.02, 0.31, 0.0, 0.17, 0.08, 0.29, 0.13])
with np.errstate(divide="ignore"):
    LOG_WEIGHTS = np.log(WEIGHTS) + 123.0


def counts(scheme, n: int, repeats: int = 4000, seed: int = 7) -> np.ndarray:
    """Copies [repeats, m] of each particle in independent resamplings."""
    rng = np.random.default_rng(seed)
    m = LOG_WEIGHTS.size
    return np.array([np.bincount(scheme(rng, LOG_WEIGHTS, n), minlength=m) for _ in range(repeats)])


@every_scheme
@pytest.mark.parametrize("n", [3, 7, 16])
def test_unbiased(scheme, n):
    copies = counts(scheme, n)
    error = np.abs(copies.mean(0) - n * WEIGHTS)
    # 4.5 standard errors for each of 7 particles: a sound scheme fails once in 20 000 seeds.
    assert np.all(error <= 4.5 * copies.std(0) / math.sqrt(len(copies)) + 1e-9)


@pytest.mark.parametrize("n", [7, 16])
def test_order_of_variances(n):
    variance = {name: counts(scheme, n).var(0).sum() for name, scheme in RESAMPLERS.items()}
    assert variance["multinomial"] == pytest.approx(n * (WEIGHTS * (1 - WEIGHTS)).sum(), rel=0.05)
    fraction = n * WEIGHTS % 1
    assert variance["systematic"] == pytest.approx((fraction * (1 - fraction)).sum(), rel=0.05)  # least possible
    assert variance["systematic"] < 0.97 * variance["stratified"]
    assert variance["stratified"] < 0.97 * variance["multinomial"]
    assert variance["residual"] < 0.97 * variance["multinomial"]
    assert variance["systematic"] < 0.97 * variance["residual"]


@every_scheme
@given(x=log_weights, n=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_ancestors_are_possible_particles(scheme, x, n, seed):
    ancestors = scheme(np.random.default_rng(seed), x, n)
    assert ancestors.shape == (n,)
    assert np.issubdtype(ancestors.dtype, np.integer)
    assert all(x[i] > -math.inf for i in ancestors)


@given(x=log_weights, n=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_systematic_and_residual_round_the_expected_copies(x, n, seed):
    expected = n * LogWeights(np.array(x)).normalized
    for scheme in (systematic, residual):
        copies = np.bincount(scheme(np.random.default_rng(seed), x, n), minlength=len(x))
        assert np.all(copies >= np.floor(expected - 1e-9))
        if scheme is systematic:
            assert np.all(copies <= np.ceil(expected + 1e-9))


@every_scheme
def test_one_seed_one_result(scheme):
    one, two = (scheme(np.random.default_rng(5), LOG_WEIGHTS, 20) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    others = [scheme(np.random.default_rng(seed), LOG_WEIGHTS, 20) for seed in range(6, 12)]
    assert any(not np.array_equal(one, other) for other in others)


class Edge:
    """A generator at the end of its range: the largest or the smallest number it can draw."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self, size: int | None = None):
        return self.number if size is None else np.full(size, self.number)


@every_scheme
@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("n", [1, 3, 10, 49])
def test_the_ends_of_the_uniform_never_reach_the_impossible(scheme, number, n):
    tenths = np.full(12, math.log(0.1))  # ten tenths do not sum to 1 in floating point
    tenths[[0, 11]] = -np.inf
    ancestors = scheme(Edge(number), tenths, n)
    assert ancestors.min() >= 1
    assert ancestors.max() <= 10


@pytest.mark.parametrize("scheme", [systematic, residual, stratified])
def test_equal_weights_give_everybody_one_copy(scheme):
    rng = np.random.default_rng(0)
    for n in range(1, 200):
        assert sorted(scheme(rng, np.full(n, -3.0), n)) == list(range(n)), n


@every_scheme
def test_edges(scheme):
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(scheme(rng, [-5000.0], 4), [0, 0, 0, 0])
    np.testing.assert_array_equal(scheme(rng, [0.0, -1e5, -math.inf], 3), [0, 0, 0])
    assert scheme(rng, [0.0, 1.0], 0).shape == (0,)
    with pytest.raises(WeightError):
        scheme(rng, [-math.inf, -math.inf], 2)
    with pytest.raises(WeightError):
        scheme(rng, [0.0, math.nan], 2)
    with pytest.raises(ConfigurationError):
        scheme(rng, [0.0], -1)


def test_resamplers_by_name():
    assert dict(RESAMPLERS) == {
        "systematic": systematic,
        "stratified": stratified,
        "residual": residual,
        "multinomial": multinomial,
    }
