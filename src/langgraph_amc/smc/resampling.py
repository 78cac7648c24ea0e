"""Resampling: which particle each of n slots descends from, with E[copies of i] = n·w_i.

Every scheme has one signature, `(rng, log_weights [m], n) -> ancestors [n]`; n may differ from m (slots of
finished particles are given to live ones). The four schemes and the order of their variances: Douc, Cappé &
Moulines 2005, "Comparison of resampling schemes for particle filtering". A particle whose weight is −inf is
never chosen. `systematic` is the default: each particle gets ⌊n·w⌋ or ⌈n·w⌉ copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc.weights import Floats, LogWeights

Ancestors = NDArray[np.int64]
Resampler: TypeAlias = Callable[[np.random.Generator, ArrayLike, int], Ancestors]


def systematic(rng: np.random.Generator, log_weights: ArrayLike, n: int) -> Ancestors:
    """Ancestors [n] by one uniform offset on a regular comb: ⌊n·w⌋ or ⌈n·w⌉ copies each."""
    weights = _weights(log_weights, n)
    return _inverse_cdf(weights, (rng.random() + np.arange(n)) / max(n, 1))


def stratified(rng: np.random.Generator, log_weights: ArrayLike, n: int) -> Ancestors:
    """Ancestors [n] by one independent uniform in each of n equal strata."""
    weights = _weights(log_weights, n)
    return _inverse_cdf(weights, (rng.random(n) + np.arange(n)) / max(n, 1))


def residual(rng: np.random.Generator, log_weights: ArrayLike, n: int) -> Ancestors:
    """Ancestors [n]: ⌊n·w⌋ copies each, the rest multinomial on what is left over."""
    expected = n * _weights(log_weights, n)
    # n·(1/n) may round to 0.999…: a whole copy must not be left to chance, so round up by a hair.
    copies = np.floor(expected * (1 + 1e-12)).astype(np.int64)
    kept = np.repeat(np.arange(expected.size), copies)
    left = np.maximum(expected - copies, 0.0)
    missing = n - kept.size
    return np.concatenate([kept, _inverse_cdf(left / left.sum(), rng.random(missing))]) if missing else kept


def multinomial(rng: np.random.Generator, log_weights: ArrayLike, n: int) -> Ancestors:
    """Ancestors [n] drawn independently: the highest variance of the four, kept for comparison."""
    weights = _weights(log_weights, n)
    return _inverse_cdf(weights, rng.random(n))


RESAMPLERS: Mapping[str, Resampler] = MappingProxyType(
    {scheme.__name__: scheme for scheme in (systematic, stratified, residual, multinomial)}
)


def _weights(log_weights: ArrayLike, n: int) -> Floats:
    if n < 0:
        raise ConfigurationError(f"Cannot resample into {n} slots: give 0 or more.")
    return LogWeights(np.asarray(log_weights, dtype=np.float64)).normalized


def _inverse_cdf(weights: Floats, uniforms: Floats) -> Ancestors:
    support = np.flatnonzero(weights > 0)
    cumulative = np.cumsum(weights[support])
    index = np.searchsorted(cumulative, uniforms, side="right")
    # The last sum may round below 1 and a uniform up to 1: both belong to the last possible particle.
    return support[np.minimum(index, support.size - 1)]
