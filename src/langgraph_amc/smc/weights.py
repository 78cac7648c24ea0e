"""Immutable log-weights of a particle population, their effective sample size and their sums.

The weights are unnormalised: their sum estimates the evidence Z (AMC paper, sequential importance
sampling; Del Moral, Doucet & Jasra 2006), so nothing here normalises behind the caller's back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from langgraph_amc.errors import AMCError

Floats = NDArray[np.float64]


class WeightError(AMCError, ValueError):
    """Log-weights that cannot be weights: NaN, +inf, empty, or all −inf where a choice must be made."""


@dataclass(frozen=True, slots=True, eq=False)
class LogWeights:
    """Unnormalised log-weights [n] in nats, read-only; −inf means impossible, NaN and +inf are refused."""

    log: Floats

    def __post_init__(self) -> None:
        log = np.array(self.log, dtype=np.float64)  # a copy: nobody else can write to it
        if log.ndim != 1 or not log.size:
            raise WeightError(f"Log-weights must be a non-empty one-dimensional array, got shape {log.shape}.")
        refused = np.flatnonzero(np.isnan(log) | (log == np.inf))
        if refused.size:
            raise WeightError(
                f"Log-weight {refused[0]} is {log[refused[0]]}: check the value function, the reward and the "
                "temperature for NaN and overflow (-inf is allowed, NaN and +inf are not)."
            )
        log.flags.writeable = False
        object.__setattr__(self, "log", log)

    @classmethod
    def uniform(cls, n: int) -> LogWeights:
        """n equal weights that sum to 1."""
        if n < 1:
            raise WeightError(f"A population needs at least one particle, got {n}.")
        return cls(np.full(n, -math.log(n)))

    @property
    def normalized(self) -> Floats:
        """Weights [n] that sum to 1; WeightError if all are −inf."""
        top = self.log.max()
        if top == -np.inf:
            raise WeightError("All log-weights are -inf: no particle is possible, so none can be chosen.")
        weights = np.exp(self.log - top)
        weights /= weights.sum()
        weights.flags.writeable = False
        return weights

    @property
    def shares(self) -> Floats:
        """Weights [n] that sum to 1; equal ones where nobody is possible."""
        return (LogWeights.uniform(len(self)) if self.log_sum == -math.inf else self).normalized

    @property
    def log_sum(self) -> float:
        """log Σ w in nats; −inf if all are."""
        top = self.log.max()
        return float(top + np.log(np.exp(self.log - top).sum())) if top > -np.inf else -math.inf

    @property
    def log_mean(self) -> float:
        """log of the mean weight in nats; −inf if all are."""
        return self.log_sum - math.log(self.log.size)

    @property
    def ess(self) -> float:
        """Effective sample size (Σw)²/Σw² in [1, n]; 0 if all weights are −inf."""
        return 0.0 if self.log.max() == -np.inf else ess_of_possible(self.log)

    def add(self, increments: ArrayLike) -> LogWeights:
        """These weights times exp(increments [n]); a −inf weight stays −inf."""
        increments = np.asarray(increments, dtype=np.float64)
        if increments.shape not in ((), self.log.shape):
            raise WeightError(f"{self.log.size} log-weights cannot take increments of shape {increments.shape}.")
        with np.errstate(invalid="ignore"):  # -inf + inf is NaN, which is refused with words
            return LogWeights(self.log + increments)

    def __len__(self) -> int:
        return self.log.size

    def __eq__(self, other: object) -> bool:
        return np.array_equal(self.log, other.log) if isinstance(other, LogWeights) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.log.tobytes())


def effective_sample_size(log_weights: ArrayLike) -> float:
    """Effective sample size (Σw)²/Σw² of log-weights [n], 0 if all are −inf (Kong et al. 1994)."""
    return LogWeights(np.asarray(log_weights, dtype=np.float64)).ess


def ess_of_possible(log_weights: Floats) -> float:
    """Effective sample size of log-weights [n] that are known to be in order and not all −inf; for inner loops."""
    weights = np.exp(log_weights - log_weights.max())
    total = weights.sum()
    return float(min(max(total * total / (weights @ weights), 1.0), log_weights.size))
