"""How good a value function is: ranking within a task, and calibration. Numpy only.

AMC compares particles of one task at one step, so what counts is whether V ranks the states *of one task*;
a value function that only tells easy tasks from hard ones scores well across tasks and is of no use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PairCounts:
    """Pairs of different states with different returns, and how the scores order them.

    ``score_ties`` are pairs with equal scores among them; ``comparable`` is their number in all. ``return_ties``
    and ``both_ties`` count the pairs whose returns are equal, and those that agree in both.
    """

    concordant: int = 0
    discordant: int = 0
    score_ties: int = 0
    return_ties: int = 0
    both_ties: int = 0

    def __add__(self, other: PairCounts) -> PairCounts:
        return PairCounts(
            self.concordant + other.concordant,
            self.discordant + other.discordant,
            self.score_ties + other.score_ties,
            self.return_ties + other.return_ties,
            self.both_ties + other.both_ties,
        )

    @property
    def comparable(self) -> int:
        """Pairs that differ in return."""
        return self.concordant + self.discordant + self.score_ties


@dataclass(frozen=True, slots=True)
class Ranking:
    """Ranking within tasks, averaged over tasks that have a comparable pair.

    ``value`` is the AUC (0/1 returns; 0.5 is chance) or Kendall's tau-b (graded; 0 is chance); ``low`` and
    ``high`` bound it at 95 % by a bootstrap over tasks. All three are ``None`` when no task has a pair.
    """

    metric: Literal["auc", "kendall"]
    value: float | None
    low: float | None
    high: float | None
    tasks: int
    pairs: int


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """States whose predicted value fell in [low, high): how many, the mean prediction, the mean return."""

    low: float
    high: float
    count: int
    predicted: float
    observed: float


def pair_counts(scores: ArrayLike, returns: ArrayLike, states: ArrayLike | None = None) -> PairCounts:
    """Count how scores order pairs with different returns; pairs of the same state are left out.

    ``states`` names the state behind each score: no value function can tell equal states apart.
    """
    s, r = np.asarray(scores, dtype=np.float64), np.asarray(returns, dtype=np.float64)
    i, j = np.triu_indices(len(s), 1)
    if states is not None:
        names = np.asarray(states)
        different = names[i] != names[j]
        i, j = i[different], j[different]
    by_score, by_return = np.sign(s[i] - s[j]), np.sign(r[i] - r[j])
    agree = by_score * by_return
    tied = by_return == 0
    return PairCounts(
        concordant=int((agree > 0).sum()),
        discordant=int((agree < 0).sum()),
        score_ties=int(((by_score == 0) & ~tied).sum()),
        return_ties=int(tied.sum()),
        both_ties=int(((by_score == 0) & tied).sum()),
    )


def auc(counts: PairCounts) -> float:
    """Chance that the better of two states has the higher score, ties counted half; NaN without a pair."""
    if counts.comparable == 0:
        return float("nan")
    return (counts.concordant + 0.5 * counts.score_ties) / counts.comparable


def kendall_tau_b(counts: PairCounts) -> float:
    """Kendall's tau-b; 0 if all scores are equal, NaN without a comparable pair."""
    if counts.comparable == 0:
        return float("nan")
    untied_scores = counts.concordant + counts.discordant + counts.return_ties - counts.both_ties
    if untied_scores == 0:
        return 0.0
    return (counts.concordant - counts.discordant) / float(np.sqrt(counts.comparable * untied_scores))


def within_task_ranking(
    scores: ArrayLike,
    returns: ArrayLike,
    tasks: ArrayLike,
    *,
    steps: ArrayLike | None = None,
    states: ArrayLike | None = None,
    graded: bool = False,
    seed: int = 0,
) -> Ranking:
    """Rank the states of each task by score, all arrays of shape [n]; see `Ranking`.

    With ``steps`` only states of the same step are compared, and a task's pairs of all steps count together.
    ``states`` as in `pair_counts`.
    """
    s, r, t = np.asarray(scores, dtype=np.float64), np.asarray(returns, dtype=np.float64), np.asarray(tasks)
    at = np.zeros(len(s), dtype=np.int64) if steps is None else np.asarray(steps)
    names = np.arange(len(s)) if states is None else np.asarray(states)
    measure = kendall_tau_b if graded else auc
    order = np.lexsort((at, t))
    per_task: dict[Any, PairCounts] = {}
    for group in np.split(
        order, np.flatnonzero((t[order][1:] != t[order][:-1]) | (at[order][1:] != at[order][:-1])) + 1
    ):
        task = t[group[0]].item() if len(group) else None
        counts = pair_counts(s[group], r[group], names[group])
        per_task[task] = per_task.get(task, PairCounts()) + counts
    values = [measure(counts) for counts in per_task.values() if counts.comparable]
    metric: Literal["auc", "kendall"] = "kendall" if graded else "auc"
    if not values:
        return Ranking(metric, None, None, None, 0, 0)
    low, high = bootstrap_interval(values, seed=seed)
    pairs = sum(counts.comparable for counts in per_task.values())
    return Ranking(metric, float(np.mean(values)), low, high, len(values), pairs)


def bootstrap_interval(
    values: ArrayLike, *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of ``values`` [n]."""
    x = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = x[rng.integers(0, len(x), size=(samples, len(x)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def calibration(
    predicted: ArrayLike,
    observed: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    low: float = 0.0,
    high: float = 1.0,
    bins: int = 10,
) -> tuple[tuple[CalibrationBin, ...], float]:
    """Calibration table and expected calibration error, in units of reward; all arrays [n].

    Bins are of equal width on [low, high], predictions outside count to the end bins, empty bins are left out.
    The error is the mean over states of |mean prediction − mean return| of their bin.
    """
    p, o = np.asarray(predicted, dtype=np.float64), np.asarray(observed, dtype=np.float64)
    w = np.ones(len(p)) if weights is None else np.asarray(weights, dtype=np.float64)
    edges = np.linspace(low, high, bins + 1)
    where = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, bins - 1)
    table, error = [], 0.0
    for b in np.unique(where):
        chosen = where == b
        bin_of = CalibrationBin(
            float(edges[b]),
            float(edges[b + 1]),
            int(chosen.sum()),
            float(np.average(p[chosen], weights=w[chosen])),
            float(np.average(o[chosen], weights=w[chosen])),
        )
        table.append(bin_of)
        error += float(w[chosen].sum()) * abs(bin_of.predicted - bin_of.observed)
    return tuple(table), error / float(w.sum()) if table else 0.0


def binary_cross_entropy(predicted: ArrayLike, observed: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Mean cross-entropy of returns in [0, 1] under predicted means, in nats; all arrays [n]."""
    p = np.clip(np.asarray(predicted, dtype=np.float64), 1e-7, 1 - 1e-7)
    o = np.asarray(observed, dtype=np.float64)
    w = np.ones(len(p)) if weights is None else np.asarray(weights, dtype=np.float64)
    return float(-np.average(o * np.log(p) + (1 - o) * np.log1p(-p), weights=w))
