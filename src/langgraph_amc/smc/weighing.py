"""What particles weigh at a check, those whose score is missing included.

A judge that gives no score says nothing about its particle: not that it is bad. So a missing score is left out
of the comparison, and its particle keeps the weight it had relative to the mean of the others. Any number may
stand in for V in a proper weight (V is an arbitrary function of what is known at the check), so that the
weights mean as much as before: E[Σ w] = Z.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from langgraph_amc.smc.events import Arrival
from langgraph_amc.smc.live import Live
from langgraph_amc.smc.tempering import Bools, Tempering
from langgraph_amc.smc.weights import Floats, LogWeights, WeightError


@dataclass(frozen=True, slots=True)
class Weighing:
    """Everybody who arrived, weighed.

    Attributes
    ----------
    score: reward so far and value [n], in units of reward; NaN where it is missing.
    potential: what each [n] is worth, nats; where its score is missing, what it counts as.
    growth: of the potential [n] since the particle's last resampling.
    log_weights: log_base + sharpness·growth [n], −inf where failed.
    """

    score: Floats
    potential: Floats
    growth: Floats
    sharpness: float
    log_weights: Floats


def weigh(tempering: Tempering, live: Live[Any], arrivals: Sequence[Arrival], value: Floats, ended: Bools) -> Weighing:
    """Weigh particles [n] that have arrived; value counts as 0 where a particle has ended, NaN is missing."""
    failed = np.array([arrival.failed for arrival in arrivals])
    reward = np.array([math.nan if arrival.failed else arrival.reward for arrival in arrivals])
    if (np.isnan(reward) & ~failed & ~ended).any():
        raise WeightError("The reward so far of a particle that still runs is NaN: only its value can be missing.")
    value = np.where(ended, 0.0, value)
    score = reward + value
    known = ~np.isnan(score)
    growth = live.growth.copy()
    potential = live.baseline + growth
    potential[known] = tempering.potential(reward[known], value[known], ended[known])
    growth[known] = potential[known] - live.baseline[known]
    # The living set the sharpness and the standard; where all have ended, those who did not fail.
    standard = known & ~ended if (known & ~ended).any() else known
    sharpness = tempering.sharpness(growth[standard]) if standard.any() else 1.0
    missing = ~known & ~failed
    if missing.any() and standard.any():
        growth[missing] += _gain(live.log_base[standard], sharpness, live.growth[standard], growth[standard])
        potential[missing] = live.baseline[missing] + growth[missing]
    log_weights = LogWeights(np.where(failed, -np.inf, live.log_base + sharpness * growth)).log
    return Weighing(score, potential, growth, sharpness, log_weights)


def _gain(log_base: Floats, sharpness: float, before: Floats, now: Floats) -> float:
    """By how much the mean weight has grown, as growth of a potential; 0 where it was, or is, impossible."""
    was = LogWeights(log_base + sharpness * before).log_mean
    has = LogWeights(log_base + sharpness * now).log_mean
    return (has - was) / sharpness if math.isfinite(was) and math.isfinite(has) else 0.0


def too_little_said(score: Floats, uncertainty: float | None) -> str | None:
    """Why nothing can be compared by these scores [n]; None where it can.

    `uncertainty` is V's own error, in units of reward; a spread (standard deviation) of the scores below it is
    what noise alone would give. NaN: not known.
    """
    known = score[~np.isnan(score)]
    if not known.size:
        return f"all {score.size} scores are missing"
    if uncertainty is None or math.isnan(uncertainty):
        return None
    spread = float(np.std(known))
    if spread >= uncertainty:
        return None
    return f"the scores differ by less than V's uncertainty (standard deviation {spread:.3g} < {uncertainty:.3g})"
