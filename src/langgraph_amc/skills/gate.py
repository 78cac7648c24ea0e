"""The gate: whether a candidate is better than the champion, by a paired test on the same tasks and seeds.

The test flips signs (Fisher's randomisation test for pairs): under the hypothesis that the candidate is no better, each
task's difference is as likely to be its negative. Tasks are the unit, as runs of one task are alike. It is exact up to
`EXACT` tasks that differ, needs no distribution, and can never say more than the tasks allow: n of them give no p
below 2^-n, which `fewest_tasks` turns into advice before anything is spent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import ConfigurationError

Floats = NDArray[np.float64]
"""[tasks, repeats]; NaN where missing."""
EXACT = 14
"""Differing tasks up to which all sign patterns are counted; above, `FLIPS` random ones."""
FLIPS = 20_000
MOST_MISSING = 0.2
"""Share of a candidate's runs without a reward from which nothing can be said of it."""
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the gate says of a candidate.

    Attributes
    ----------
    difference, low, high: mean reward of the candidate less the champion's, with its 95 % interval over tasks.
    p: one-sided, that a candidate no better would look this good. alpha: what it had to come below.
    tasks: with a reward on both sides. wins, losses: of them, where the candidate's mean is higher, lower.
    missing: the candidate's runs without a reward where the champion has one; each counts as the worst reward seen.
    reason: in a sentence.
    """

    accepted: bool
    difference: float
    low: float
    high: float
    p: float
    alpha: float
    tasks: int
    wins: int
    losses: int
    missing: int
    reason: str


def compare(champion: Floats, candidate: Floats, *, alpha: float = 0.05, seed: int = 0) -> Verdict:
    """Judge a candidate by rewards [tasks, repeats] on the same tasks, with the same seeds, NaN where missing.

    A pair without the champion's reward is left out. One without the candidate's counts as the worst reward of all:
    a rule that breaks the app must not gain from the runs that it broke. With more than `MOST_MISSING` of those
    nothing is accepted.
    """
    if champion.shape != candidate.shape or champion.ndim != 2:
        raise ConfigurationError(
            f"paired rewards have one shape [tasks, repeats], got {champion.shape} and {candidate.shape}"
        )
    known = ~np.isnan(champion)
    lost = known & np.isnan(candidate)
    missing, pairs = int(lost.sum()), int(known.sum())
    differences = _by_task(champion, candidate, known, lost)
    if not differences.size or missing > MOST_MISSING * pairs:
        why = f"{missing} of its {pairs} runs have no reward" if pairs else "no run of the champion has a reward"
        return Verdict(False, math.nan, math.nan, math.nan, 1.0, alpha, differences.size, 0, 0, missing, why)
    mean, p = float(differences.mean()), sign_flip(differences, seed)
    low, high = _interval(differences, seed)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    accepted = mean > 0 and p <= alpha
    reason = _reason(accepted, mean, p, alpha, wins, losses)
    return Verdict(accepted, mean, low, high, p, alpha, differences.size, wins, losses, missing, reason)


def sign_flip(differences: Floats, seed: int = 0) -> float:
    """One-sided p of the mean of [tasks] being this far above 0, by flipping signs."""
    moved = differences[differences != 0]
    if not moved.size:
        return 1.0
    total = moved.sum() - 1e-9 * np.abs(moved).sum()
    if moved.size <= EXACT:
        sums = np.zeros(1)
        for value in moved:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(sums >= total))
    signs = np.random.default_rng(seed).integers(0, 2, size=(FLIPS, moved.size)) * 2 - 1
    return float((1 + np.sum(signs @ moved >= total)) / (1 + FLIPS))


def fewest_tasks(alpha: float) -> int:
    """Tasks below which no candidate can be accepted, even if it is better on each: 2^-n has to come below alpha."""
    return math.ceil(-math.log2(alpha))


def _by_task(champion: Floats, candidate: Floats, known: NDArray[np.bool_], lost: NDArray[np.bool_]) -> Floats:
    """Mean difference of each task that has a pair."""
    if not known.any():
        return np.zeros(0)
    worst = float(min(np.nanmin(champion), np.nanmin(candidate, initial=np.inf)))
    pairs = np.where(lost, worst, candidate) - champion
    counts = known.sum(axis=1)
    sums = np.where(known, pairs, 0.0).sum(axis=1)
    means: Floats = sums[counts > 0] / counts[counts > 0]
    return means


def _interval(differences: Floats, seed: int) -> tuple[float, float]:
    rows = np.random.default_rng(seed).integers(0, differences.size, size=(_RESAMPLES, differences.size))
    low, high = np.percentile(differences[rows].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def _reason(accepted: bool, mean: float, p: float, alpha: float, wins: int, losses: int) -> str:
    said = f"{mean:+.3f} on average, better on {wins} tasks and worse on {losses}, p = {p:.2g}"
    if accepted:
        return f"better: {said}, at most {alpha:.2g}"
    return f"worse: {said}" if mean < 0 else f"not shown to be better: {said}, above {alpha:.2g}"
