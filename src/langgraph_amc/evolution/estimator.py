"""From rewards to one coefficient per direction (evolution strategies: Salimans et al., arXiv 1703.03864).

A step is alpha times the mean over directions of w_p E_p. With rewards as they are ("none"), w_p estimates
sigma * <grad J_sigma, E_p>, so that the step's expectation is alpha * sigma * grad J_sigma exactly, J_sigma being the
mean reward under perturbation. "z" divides by the members' standard deviation (Agentic ESOpt, section 3) and "ranks"
puts centred ranks in place of rewards: steps of a known size, whose direction is what is estimated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evolution.signal import Signal, signal_of

Shaping = Literal["z", "ranks", "none"]
Baseline = Literal["task", "none"]
Floats = NDArray[np.float64]

_TIE = 2.0**-40
"""Fitnesses closer than this share of the largest reward are the same: sums of equal rewards differ by rounding."""
_BITS = 16
"""Coefficients keep this many bits, relative to the largest of a generation: rounding is far below their noise."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Coefficients of the directions of one generation.

    Attributes
    ----------
    weights: [pairs]; zero where a pair has no rewards, and everywhere if no member differs from another.
    signal: how much of the weights is not noise.
    """

    weights: Floats
    signal: Signal


def estimate(rewards: Floats, *, antithetic: bool, shaping: Shaping, baseline: Baseline) -> Estimate:
    """Weigh the directions of one generation; the step is the mean over all pairs of weight times direction.

    A member's fitness is its mean over the tasks it has, and it counts by how many these are: with rewards as they are,
    the step is the mean over all known rewards, and one that is missing is simply not there.

    Parameters
    ----------
    rewards: [members, tasks]; NaN is missing. Antithetic: rows 2p and 2p + 1 are the two signs of pair p. A task that
        one sign of a pair lacks is compared with the baseline, and counts half.
    baseline: ``"task"`` takes the mean over the members that have a task from its rewards (without the member's own
        where that would shrink it), so that missing ones cannot make a member look good or bad. ``"none"``: a task that
        one sign of a pair lacks is then left out for both.
    """
    rewards = _both_signs(rewards) if antithetic and baseline == "none" else rewards
    tie = _TIE * float(np.nanmax(np.abs(rewards), initial=0.0))
    above = rewards if baseline == "none" else _above_others(rewards, antithetic)
    gains = (rewards[0::2] - rewards[1::2]) / 2 if antithetic else _above_others(rewards, antithetic)
    counts = (~np.isnan(above)).sum(axis=1)
    weights = np.zeros(len(rewards))
    fitness = _mean_known(above)
    if counts.any() and np.nanmax(fitness) - np.nanmin(fitness) > tie:
        weights = np.nan_to_num(_shape(fitness, shaping, tie)) * (counts / counts.mean())
    if antithetic:
        tied = (counts[0::2] == counts[1::2]) & (np.abs(fitness[0::2] - fitness[1::2]) <= tie)
        weights = np.where(tied, 0.0, (weights[0::2] - weights[1::2]) / 2)
    return Estimate(weights, signal_of(np.where(np.abs(gains) <= tie, 0.0, gains)))


def fixed_point(weights: Floats) -> tuple[tuple[int, ...], int]:
    """Integers q and an exponent e with weights = q * 2^e, up to rounding to 16 bits of the largest."""
    largest = float(np.abs(weights).max(initial=0.0))
    if largest == 0:
        return (0,) * len(weights), 0
    exponent = int(np.frexp(largest)[1]) - _BITS
    return tuple(int(q) for q in np.rint(np.ldexp(weights, -exponent))), exponent


def _both_signs(rewards: Floats) -> Floats:
    """Rewards of antithetic members, with a task missing for both signs where it is missing for one."""
    pairs = rewards.reshape(-1, 2, rewards.shape[1])
    return np.where(np.isnan(pairs).any(axis=1, keepdims=True), np.nan, pairs).reshape(rewards.shape)


def _above_others(rewards: Floats, antithetic: bool) -> Floats:
    """Rewards less their task's mean over the members that have it; missing where only one has.

    A member's own reward in its baseline would shrink its gain by 1 - 1/n, which is undone, unless the other sign of
    its pair is in there too: that one, of opposite expectation, makes up for it.
    """
    known = ~np.isnan(rewards)
    counts = known.sum(axis=0)
    means = np.where(known, rewards, 0.0).sum(axis=0) / np.maximum(counts, 1)
    alone = np.ones_like(known)
    if antithetic:
        alone = np.repeat(~(known[0::2] & known[1::2]), 2, axis=0)
    others: Floats = np.where(
        counts > 1, (rewards - means) * np.where(alone, counts / np.maximum(counts - 1, 1), 1), np.nan
    )
    return others


def _mean_known(values: Floats) -> Floats:
    """Mean over the tasks that are there; NaN for rows that have none."""
    known = ~np.isnan(values)
    counts = known.sum(axis=1)
    means: Floats = np.where(counts > 0, np.where(known, values, 0.0).sum(axis=1) / np.maximum(counts, 1), np.nan)
    return means


def _shape(fitness: Floats, shaping: Shaping, tie: float) -> Floats:
    """Fitness of the members that have one, standardised or ranked; NaN stays NaN."""
    if shaping == "none":
        return fitness
    known = ~np.isnan(fitness)
    shaped = fitness.copy()
    if shaping == "z":
        centred = fitness[known] - fitness[known].mean()
        centred /= np.abs(centred).max()  # squares of tiny rewards would vanish
        shaped[known] = centred / centred.std()
    else:
        shaped[known] = _centred_ranks(fitness[known], tie)
    return shaped


def _centred_ranks(fitness: Floats, tie: float) -> Floats:
    """Ranks, ties sharing their mean rank, scaled so that without ties they have mean 0 and variance 1."""
    order = np.argsort(fitness, kind="stable")
    group = np.concatenate([[0], np.cumsum(np.diff(fitness[order]) > tie)])
    mean_rank = np.bincount(group, weights=np.arange(len(fitness))) / np.bincount(group)
    ranks = np.empty(len(fitness))
    ranks[order] = mean_rank[group]
    n = len(fitness)
    return (ranks - (n - 1) / 2) / np.sqrt((n * n - 1) / 12)
