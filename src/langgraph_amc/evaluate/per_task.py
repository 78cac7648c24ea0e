"""What a comparison knows of each task, and what more independent runs would have bought: gain against cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evaluate.statistics import Estimate, Scores, estimate

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One task: mean reward of the answer and mean tokens over the seeds, by method; ``None`` where missing."""

    task: str
    observable: Mapping[str, float | None]
    selected: Mapping[str, float | None]
    tokens: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class CostPoint:
    """The best of ``runs`` independent runs: what it earns and takes, both per task and on average."""

    runs: int
    tokens: float
    observable: Estimate
    selected: Estimate


@dataclass(frozen=True, slots=True)
class Pool:
    """Independent runs of one task under one seed: their rewards and values (NaN: missing) and tokens, each [n]."""

    rewards: NDArray[np.float64]
    values: NDArray[np.float64]
    tokens: NDArray[np.float64]


def by_task(tasks: Sequence[str], arms: Mapping[str, tuple[Scores, Scores, Scores]]) -> tuple[TaskScore, ...]:
    """Scores by task from ``(observable, selected, tokens)`` [tasks, seeds] of each method."""

    def row(which: int, i: int) -> dict[str, float | None]:
        return {name: _mean(scores[which][i]) for name, scores in arms.items()}

    return tuple(TaskScore(task, row(0, i), row(1, i), row(2, i)) for i, task in enumerate(tasks))


def best_of(pools: Sequence[Sequence[Pool]]) -> tuple[CostPoint, ...]:
    """The best of k runs for every k that all pools [tasks][seeds] allow, from all subsets of the runs of each.

    *observable* takes the highest reward, *selected* the highest value, as the two columns of a comparison do.
    """
    most = min((len(pool.rewards) for row in pools for pool in row), default=0)
    points = []
    for k in range(1, most + 1):
        seen = np.array([[expected_best(p.rewards, p.rewards, k) for p in row] for row in pools])
        picked = np.array([[expected_best(p.rewards, p.values, k) for p in row] for row in pools])
        tokens = float(np.mean([[k * p.tokens.mean() for p in row] for row in pools]))
        points.append(
            CostPoint(k, tokens, estimate(seen, resamples=_RESAMPLES), estimate(picked, resamples=_RESAMPLES))
        )
    return tuple(points)


def expected_best(rewards: NDArray[np.float64], scores: NDArray[np.float64], k: int) -> float:
    """Mean reward of the run with the highest score among k of n, over all subsets of size k.

    Runs whose reward or score is missing (NaN) are left out; NaN where fewer than k are left. Equal scores share.
    """
    known = ~(np.isnan(rewards) | np.isnan(scores))
    rewards, scores = rewards[known], scores[known]
    n = len(rewards)
    if n < k:
        return float("nan")
    order = np.argsort(scores, kind="stable")
    ranked = rewards[order]
    for score in np.unique(scores):  # who wins among equals is chance
        equal = scores[order] == score
        ranked[equal] = ranked[equal].mean()
    chances = np.array([comb(i, k - 1) for i in range(n)], dtype=np.float64) / comb(n, k)
    return float(ranked @ chances)


def _mean(scores: NDArray[np.float64]) -> float | None:
    known = scores[~np.isnan(scores)]
    return float(known.mean()) if len(known) else None
