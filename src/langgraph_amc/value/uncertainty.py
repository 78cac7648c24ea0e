"""How far V's differences within a task can be trusted: the standard deviation of its error, by step. Numpy only.

AMC compares particles of one task at one step. Let V = p + ε there. Regressing returns on V within (task, step)
gives the slope b = Var p/(Var p + Var ε), so that Var ε = (1 − b)·Var V (errors in variables, Fuller 1987). The
noise of the outcomes themselves does not enter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
MIN_TASKS = 10
"""Held-out tasks that reach a step, from which it gets a figure of its own."""


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Standard deviation of V's error among states of one task, in units of reward: by step, and over all steps."""

    pooled: float
    steps: Mapping[int, float] = field(default_factory=dict)

    def __call__(self, step: int) -> float:
        """The figure of a step (segments of the transcript − 1, a boundary's number)."""
        return self.steps.get(step, self.pooled)

    @classmethod
    def from_json(cls, raw: Mapping[str, object]) -> Uncertainty:
        """Read what ``dataclasses.asdict`` and JSON have made of one."""
        steps = raw["steps"]
        if not isinstance(steps, Mapping) or not isinstance(raw["pooled"], int | float):
            raise TypeError("an uncertainty is {pooled: number, steps: {step: number}}")
        return cls(float(raw["pooled"]), {int(step): float(value) for step, value in steps.items()})


def fit_uncertainty(
    values: ArrayLike, returns: ArrayLike, steps: ArrayLike, tasks: ArrayLike, weights: ArrayLike | None = None
) -> Uncertainty | None:
    """Measure V's error on states it was not fitted to, all arrays [n].

    ``None`` where no task has two different values at a step, or fewer than two tasks have.
    """
    v, r = np.asarray(values, dtype=np.float64), np.asarray(returns, dtype=np.float64)
    at, of = np.asarray(steps), np.asarray(tasks)
    w = np.ones(len(v)) if weights is None else np.asarray(weights, dtype=np.float64)
    _, group = np.unique(np.stack([of, at]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    dv, dr = _centred(v, group, w), _centred(r, group, w)
    pooled = _noise(dv, dr, w)
    if pooled is None or len(np.unique(of[dv != 0])) < 2:
        return None
    by_step: dict[int, float] = {}
    for step in np.unique(at).tolist():
        chosen = at == step
        noise = _noise(dv[chosen], dr[chosen], w[chosen])
        if noise is not None and len(np.unique(of[chosen & (dv != 0)])) >= MIN_TASKS:
            by_step[step] = noise
    return Uncertainty(pooled, by_step)


def _centred(x: FloatArray, group: NDArray[np.int64], weights: FloatArray) -> FloatArray:
    """Deviations from the group's mean, scaled so that their squares estimate the variance in groups of any size."""
    total = np.bincount(group, weights)
    safe = np.where(total > 0, total, 1.0)
    deviation = x - (np.bincount(group, weights * x) / safe)[group]
    size = np.square(total) / np.maximum(np.bincount(group, np.square(weights)), 1e-300)
    deviation *= np.sqrt(size / np.maximum(size - 1, 1e-9))[group]
    return np.where((np.abs(deviation) > 1e-12 * (1 + np.abs(x))) & (size > 1 + 1e-9)[group], deviation, 0.0)


def _noise(dv: FloatArray, dr: FloatArray, weights: FloatArray) -> float | None:
    """√((1 − b)·Var V), with b in [0, 1]."""
    square = float(weights @ np.square(dv))
    if square == 0.0:
        return None
    slope = min(1.0, max(0.0, float(weights @ (dv * dr)) / square))
    return float(np.sqrt((1 - slope) * square / weights[dv != 0].sum()))
