"""Means, paired differences and 95 % intervals over tasks and seeds, by a two-level bootstrap.

Tasks are resampled first and seeds within each task, because runs of one task are alike: treating all runs
as independent would make the interval too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
"""[tasks, seeds]; NaN where missing."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def estimate(scores: Scores, *, seed: int = 0, resamples: int = 4000) -> Estimate:
    """Mean over tasks of the mean over seeds, with a percentile bootstrap interval.

    Parameters
    ----------
    scores: [tasks, seeds]; NaN entries are left out, and so are tasks that have nothing else.
    """
    if scores.ndim != 2:
        raise ValueError(f"scores have shape [tasks, seeds], got {scores.shape}")
    scores = scores[~np.isnan(scores).all(axis=1)]
    if not scores.size:
        return Estimate(float("nan"), float("nan"), float("nan"))
    rng = np.random.default_rng(seed)
    tasks, seeds = scores.shape
    means = np.empty(resamples)
    for k in range(resamples):
        rows = np.asarray(rng.integers(tasks, size=tasks))
        columns = rng.integers(seeds, size=(tasks, seeds))
        drawn = scores[rows[:, None], columns]
        known = ~np.isnan(drawn)
        means[k] = np.sum(drawn, where=known) / known.sum() if known.any() else np.nan
    low, high = np.nanpercentile(means, [2.5, 97.5])
    return Estimate(float(np.nanmean(np.nanmean(scores, axis=1))), float(low), float(high))


def paired(a: Scores, b: Scores, *, seed: int = 0) -> Estimate:
    """Mean of a − b over the same tasks and seeds, with its interval."""
    if a.shape != b.shape:
        raise ValueError(f"a paired difference needs equal shapes, got {a.shape} and {b.shape}")
    return estimate(a - b, seed=seed)
