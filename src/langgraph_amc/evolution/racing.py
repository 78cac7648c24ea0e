"""Racing: a pair of members stops early once the rest of its tasks can hardly change its coefficient.

The tasks of a generation are run in blocks. After n of T tasks the mean difference of a pair, d, is known but for
the tasks that are left; sampling without replacement puts the final one within

    h = t * s * sqrt((1 - n / T) / n)        (95 %, Student's t with n - 1 + K degrees of freedom)

of it. s^2 is the pair's own variance over tasks, shrunk by K pseudo-observations towards that of all pairs: a pair
whose few rewards happen to agree is not taken for one that is known. The pair stops when h is at most ``margin`` times
the root mean square of all pairs' d, the scale on which coefficients matter. Means are then over different tasks; a
per-task baseline takes the tasks' difficulty out.

The rule looks at how well a coefficient is known, not at how large it is, so it does not favour stopping pairs that
seem bad or null; the mean over fewer tasks stands for the mean over all (`completed`). It is not exactly unbiased:
where a variance is tied to its mean, as for 0/1 rewards, a pair whose first tasks agree stops sooner. Where rewards
are noisy, which is common, it stops hardly anybody. Where all members' rewards are equally noisy it does no better
than a smaller batch of tasks; it does where the noise differs between members (``tests/evolution/test_racing.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evolution.checks import as_float, finite, whole

Floats = NDArray[np.float64]
_PRIOR = 4.0
"""K: pseudo-observations of the variance of all pairs."""
_LEAST = 2
"""Rewards from which a pair has a variance of its own."""


@dataclass(frozen=True, slots=True)
class Racing:
    """When pairs stop early.

    Attributes
    ----------
    margin: how far, in root mean squares of all pairs' differences, a coefficient may still move when its pair stops;
        smaller saves less and changes the update less.
    block: columns (task and repeat) that all pairs run before anybody may stop, and between two looks.
    """

    margin: float = 0.25
    block: int = 4

    def __post_init__(self) -> None:
        finite("racing's margin", self.margin, above=0)
        as_float(self, "margin")
        whole("racing's block", self.block, _LEAST)


def go_on(rewards: Floats, *, antithetic: bool, columns: int, racing: Racing) -> NDArray[np.bool_]:
    """Which directions run their further columns, [pairs].

    Parameters
    ----------
    rewards: [members, columns so far] in the order of ``asktell.ask``; NaN is missing or not run.
    columns: how many there are in all.
    """
    gains = gains_of(rewards, antithetic)
    n = (~np.isnan(gains)).sum(axis=1)
    known: NDArray[np.bool_] = n >= _LEAST
    means = np.array([np.nanmean(g) if k else 0.0 for g, k in zip(gains, known, strict=True)])
    scale = float(np.sqrt(np.mean(means[known] ** 2))) if known.any() else 0.0
    if scale == 0:
        return np.ones(len(gains), np.bool_)
    own = np.array([np.nanvar(g, ddof=1) if k else 0.0 for g, k in zip(gains, known, strict=True)])
    pooled = float(np.sum(own * np.maximum(n - 1, 0)) / np.sum(np.maximum(n[known] - 1, 0)))
    freedom = np.maximum(n - 1, 0) + _PRIOR
    variance = (own * np.maximum(n - 1, 0) + _PRIOR * pooled) / freedom
    left = np.clip(1 - n / columns, 0, 1)
    reach = _quantile(freedom) * np.sqrt(variance * left / np.maximum(n, 1))
    undecided: NDArray[np.bool_] = ~known | (reach > racing.margin * scale)
    return undecided


def completed(rewards: Floats, run: NDArray[np.bool_]) -> Floats:
    """Rewards with those that were not run filled in: the task's mean plus what the member was above it so far.

    The estimator weighs members by their rewards; a member that stopped because it is known well enough is to count
    like the others, with the mean it had. ``run`` [members, columns]: what was run; what is missing there stays so.
    """
    known: NDArray[np.bool_] = np.logical_not(np.isnan(rewards))
    values = np.where(known, rewards, 0.0)
    tasks = values.sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    above = np.where(known, rewards - tasks, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    some = np.outer(known.any(axis=1), known.any(axis=0))
    filled: Floats = np.where(~run & some, tasks + above[:, None], rewards)
    return filled


def gains_of(rewards: Floats, antithetic: bool) -> Floats:
    """What each direction gained per column: half the pair's difference, or the reward less the column's mean."""
    if antithetic:
        gains: Floats = (rewards[0::2] - rewards[1::2]) / 2
        return gains
    counts = np.maximum((~np.isnan(rewards)).sum(axis=0), 1)
    return rewards - np.nansum(rewards, axis=0) / counts


def _quantile(freedom: Floats) -> Floats:
    """97.5 % quantile of Student's t, to 1 % from 5 degrees of freedom on (Abramowitz and Stegun, 26.7.5)."""
    z = NormalDist().inv_cdf(0.975)
    terms = (z**3 + z) / (4 * freedom), (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    expanded: Floats = z + terms[0] + terms[1]
    return expanded
