"""The soft value β·log E[exp(R/β)] of a chance and of a distribution, stable for every β > 0 (AMC, soft value).

A tiny β must not overflow e^{1/β}, and a large one must not lose the value in the rounding of a logarithm near 0:
each formula has a form for either side. Numpy only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.checks import is_number
from langgraph_amc.errors import ConfigurationError

FloatArray = NDArray[np.float64]
_HALVINGS = 80


def check_beta(beta: float) -> None:
    """Raise ConfigurationError unless β is positive and finite."""
    if not (is_number(beta) and beta > 0):
        raise ConfigurationError(f"beta must be positive and finite, got {beta!r}")


def soft_of_chance(log_success: FloatArray, log_failure: FloatArray, beta: float) -> FloatArray:
    """β·log(1 − p + p·e^{1/β}) for a 0/1 return, [n], from log p and log(1 − p), [n]; in [p, 1]."""
    check_beta(beta)
    p = np.exp(log_success)
    if beta >= 1:
        soft = beta * np.log1p(p * math.expm1(1 / beta))
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            soft = 1 + beta * np.logaddexp(log_failure - np.divide(1.0, beta), log_success)
    return np.clip(soft, p, 1.0)


def soft_of_distribution(log_probabilities: FloatArray, grid: FloatArray, beta: float) -> FloatArray:
    """β·log Σ q·e^{g/β}, [n], of distributions log q [n, k] over the returns g [k], ascending."""
    check_beta(beta)
    q = np.exp(log_probabilities)
    mean = q @ grid
    possible = np.where(log_probabilities > -np.inf, grid, -np.inf)
    top = possible.max(axis=1)
    if beta >= np.ptp(grid):
        x = (grid - mean[:, None]) / beta
        soft = mean + beta * np.log1p((q * (np.expm1(x) - x)).sum(axis=1))
    else:
        with np.errstate(over="ignore"):
            soft = top + beta * np.logaddexp.reduce(log_probabilities + (possible - top[:, None]) / beta, axis=1)
    return np.clip(soft, mean, top)


def with_mean(log_probabilities: FloatArray, grid: FloatArray, mean: FloatArray) -> FloatArray:
    """The distributions [n, k] nearest to the given ones whose means are ``mean`` [n].

    Nearest in relative entropy: each is tilted by exp(θ·g), which changes no support (I-projection, Csiszár 1975).
    Of two atoms it is the one whose chance is the mean. Means outside the grid become its ends.
    """
    least = np.where(log_probabilities > -np.inf, log_probabilities, np.inf).min(axis=1)
    reach = (60 + log_probabilities.max(axis=1) - least) / np.diff(grid).min()
    low, high = -reach, reach
    for _ in range(_HALVINGS):
        theta = (low + high) / 2
        tilted = _tilted(log_probabilities, grid, theta)
        below = np.exp(tilted) @ grid < mean
        low, high = np.where(below, theta, low), np.where(below, high, theta)
    return _tilted(log_probabilities, grid, (low + high) / 2)


def _tilted(log_probabilities: FloatArray, grid: FloatArray, theta: FloatArray) -> FloatArray:
    tilted = log_probabilities + theta[:, None] * grid
    normalised: FloatArray = tilted - np.logaddexp.reduce(tilted, axis=1, keepdims=True)
    return normalised
