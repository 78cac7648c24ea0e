"""Advantages of grouped trajectories (GRPO, Shao et al. 2024, section 4.1.2), with missing rewards left out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from langgraph_amc_trl.method import Scale

Floats = NDArray[np.float64]

_TINY = 1e-4
"""What TRL adds to a standard deviation."""


def advantages_of(rewards: Floats, scale: Scale) -> Floats:
    """How much better each trajectory did than its group.

    Parameters
    ----------
    rewards: [groups, trajectories]; NaN is missing: a run that failed or could not be judged.
    scale: see `method.Scale`; standard deviations are the sample's (ddof 1).

    Returns
    -------
    [groups, trajectories]; NaN where the reward is. A group with one known reward has nothing to compare: 0.
    """
    known = ~np.isnan(rewards)
    count = known.sum(axis=1, keepdims=True)
    filled = np.where(known, rewards, 0.0)
    mean = filled.sum(axis=1, keepdims=True) / np.maximum(count, 1)
    centred = np.where(known, rewards - mean, 0.0)
    if scale == "group":
        centred = centred / (np.sqrt((centred**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1)) + _TINY)
    elif scale == "batch" and known.sum() > 1:
        centred = centred / (np.std(rewards[known], ddof=1) + _TINY)
    return np.where(known, centred, np.nan)
