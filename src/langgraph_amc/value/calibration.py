"""Calibration: an increasing map from what V says to what the returns of held-out tasks say. Numpy only.

``platt`` (Platt 1999): one slope and one intercept on log-odds; needs few tasks. ``isotonic`` (Zadrozny & Elkan
2002): the best increasing step function, drawn as straight lines between the middles of its steps; needs many.
Both are strictly increasing, because AMC lives on the order of states, and neither says quite 0 or 1. A step
(state number) that enough tasks reach has a curve of its own, the others share the pooled one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value.errors import TrainingDataError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Method = Literal["platt", "isotonic"]

MIN_TASKS, MIN_STATES = 10, 100
"""Held-out tasks and states that reach a step, from which it gets a curve of its own."""
FOLDS = 5
_FEWEST_TASKS = 5  # a calibrator fitted to fewer would repeat their accidents
_FLOOR = 0.05  # smallest slope on log-odds: a V that is wrong on held-out tasks is flattened, never turned round
_ORDER = 0.01  # share of V itself in an isotonic curve, which keeps its order where the curve is level
_EDGE = 1e-6


@dataclass(frozen=True, slots=True)
class Odds:
    """p = σ(slope·logit v + intercept), for v and p in [0, 1]."""

    slope: float
    intercept: float

    def __call__(self, v: FloatArray) -> FloatArray:
        """Calibrated chances of chances ``v`` [n]."""
        return _sigmoid(self.slope * _logit(v) + self.intercept)


@dataclass(frozen=True, slots=True)
class Knots:
    """Straight lines through (x, y), level outside, with a little of v itself so that its order stays."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __call__(self, v: FloatArray) -> FloatArray:
        """Calibrated chances of chances ``v`` [n]."""
        level: FloatArray = np.interp(v, self.x, self.y)
        return (1 - _ORDER) * level + _ORDER * v


Curve = Odds | Knots


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted map from (V, step) to the expected return.

    Attributes
    ----------
    low, high: range of the returns; what lies outside is taken for its end.
    binary: every return it was fitted to was 0 or 1, so that the result is a chance of success.
    pooled, steps: the curves, on returns scaled to [0, 1].
    """

    method: Method
    low: float
    high: float
    binary: bool
    pooled: Curve
    steps: Mapping[int, Curve] = field(default_factory=dict)

    def __call__(self, values: ArrayLike, steps: ArrayLike) -> FloatArray:
        """Calibrated values [n] of values [n] at steps [n] (a transcript's segments − 1); NaN stays NaN."""
        v, at = np.asarray(values, dtype=np.float64), np.asarray(steps)
        unit = np.clip((v - self.low) / (self.high - self.low), 0.0, 1.0)
        found = np.full(len(v), np.nan)
        for step in np.unique(at).tolist():
            chosen = (at == step) & ~np.isnan(v)
            found[chosen] = self.steps.get(step, self.pooled)(unit[chosen])
        return self.low + (self.high - self.low) * found

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` reads them."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Calibration:
        """The calibration that `to_json` wrote; KeyError, TypeError or ValueError where it is none."""
        steps = {int(step): _curve(curve) for step, curve in raw["steps"].items()}
        return cls(**{**raw, "pooled": _curve(raw["pooled"]), "steps": steps})


def fit(
    values: ArrayLike,
    returns: ArrayLike,
    steps: ArrayLike,
    tasks: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    method: Method = "platt",
    bounds: tuple[float, float] | None = None,
) -> Calibration:
    """Fit to values, returns, steps and tasks of states, all [n].

    Parameters
    ----------
    bounds: range of the returns; by default that of ``returns``, or [0, 1] if they lie in it.

    Raises
    ------
    TrainingDataError: fewer than five tasks, or numbers that are not finite. ConfigurationError: unknown method.
    """
    v, r, at, of, w = _columns(values, returns, steps, tasks, weights)
    if method not in get_args(Method):
        raise ConfigurationError(f"calibration method {method!r} is unknown: choose one of {get_args(Method)}")
    if not calibratable(of):
        raise TrainingDataError(
            f"a calibration needs at least {_FEWEST_TASKS} held-out tasks, got {len(np.unique(of))}: hold out more"
        )
    low, high = _bounds(r) if bounds is None else bounds
    x, y = np.clip((v - low) / (high - low), 0, 1), np.clip((r - low) / (high - low), 0, 1)
    drawn: Callable[..., Curve] = _platt if method == "platt" else _isotonic
    pooled = drawn(x, y, _scaled(w, _runs(at)), None)
    curves = {}
    for step in np.unique(at).tolist():
        chosen = at == step
        if chosen.sum() >= MIN_STATES and len(np.unique(of[chosen])) >= MIN_TASKS:
            curves[step] = drawn(x[chosen], y[chosen], _scaled(w[chosen], int(chosen.sum())), pooled)
    return Calibration(method, low, high, bool(np.isin(r, (0.0, 1.0)).all()), pooled, curves)


def cross_fitted(
    values: ArrayLike,
    returns: ArrayLike,
    steps: ArrayLike,
    tasks: ArrayLike,
    weights: ArrayLike | None = None,
    *,
    method: Method = "platt",
    bounds: tuple[float, float] | None = None,
    folds: int = FOLDS,
) -> FloatArray:
    """Calibrated values [n], each by a calibration fitted to other tasks: an honest sample of what `fit` will do.

    Raises
    ------
    TrainingDataError: as `fit`, with the tasks of the smallest fit.
    """
    v, r, at, of, w = _columns(values, returns, steps, tasks, weights)
    names, task = np.unique(of, return_inverse=True)
    fold = np.random.default_rng(0).permutation(len(names))[task.reshape(-1)] % max(2, min(folds, len(names)))
    found = np.empty(len(v))
    for k in np.unique(fold):
        held, rest = fold == k, fold != k
        fitted = fit(v[rest], r[rest], at[rest], of[rest], w[rest], method=method, bounds=bounds or _bounds(r))
        found[held] = fitted(v[held], at[held])
    return found


def calibratable(tasks: ArrayLike, folds: int = 1) -> bool:
    """Whether there are tasks enough to fit a calibration, and to cross-fit it in ``folds``."""
    count = len(np.unique(np.asarray(tasks)))
    return count - (-(-count // folds) if folds > 1 else 0) >= _FEWEST_TASKS


def _columns(
    values: ArrayLike, returns: ArrayLike, steps: ArrayLike, tasks: ArrayLike, weights: ArrayLike | None
) -> tuple[FloatArray, FloatArray, IntArray, NDArray, FloatArray]:
    v, r = np.asarray(values, dtype=np.float64), np.asarray(returns, dtype=np.float64)
    w = np.ones(len(v)) if weights is None else np.asarray(weights, dtype=np.float64)
    if not (np.isfinite(v).all() and np.isfinite(r).all() and np.isfinite(w).all() and (w >= 0).all()):
        raise TrainingDataError("values, returns and weights must be finite, and weights not negative")
    return v, r, np.asarray(steps, dtype=np.int64), np.asarray(tasks), w


def _bounds(returns: FloatArray) -> tuple[float, float]:
    low, high = (float(returns.min()), float(returns.max())) if len(returns) else (0.0, 1.0)
    if low >= 0.0 and high <= 1.0:
        return 0.0, 1.0
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _runs(steps: IntArray) -> int:
    """About how many runs there are: as many as reach the step that most reach. Their states are no new evidence."""
    return int(np.unique(steps, return_counts=True)[1].max())


def _scaled(weights: FloatArray, total: int) -> FloatArray:
    there = float(weights.sum())
    return weights * (total / there) if there > 0 else weights


def _platt(x: FloatArray, y: FloatArray, w: FloatArray, prior: Curve | None) -> Odds:
    """Weighted logistic regression of y on logit x, drawn by one unit of information to the pooled curve, or to x.

    For y between 0 and 1 it is the fractional logit (Papke & Wooldridge 1996).
    """
    slope, intercept = (prior.slope, prior.intercept) if isinstance(prior, Odds) else (1.0, 0.0)
    design = np.stack([_logit(x), np.ones(len(x))])
    centre = np.array([slope, intercept])
    found = _newton(design, y, w, centre, free=np.array([True, True]))
    if found[0] < _FLOOR:
        found = _newton(design, y, w, np.array([_FLOOR, intercept]), free=np.array([False, True]))
    return Odds(float(found[0]), float(found[1]))


def _newton(
    design: FloatArray, y: FloatArray, w: FloatArray, centre: FloatArray, free: NDArray[np.bool_]
) -> FloatArray:
    """Minimise Σ w·cross-entropy + ½|θ − centre|² over the free coordinates; convex, with step halving."""

    def objective(theta: FloatArray) -> float:
        z = theta @ design
        return float(w @ (np.logaddexp(0, z) - y * z) + 0.5 * np.square(theta - centre).sum())

    theta, now = centre.copy(), objective(centre)
    for _ in range(100):
        p = _sigmoid(theta @ design)
        gradient = design @ (w * (p - y)) + theta - centre
        curvature = (design * (w * p * (1 - p))) @ design.T + np.eye(2)
        step = np.zeros(2)
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        size = 1.0
        while (reached := objective(theta - size * step)) > now and size > 1e-10:
            size /= 2
        if size <= 1e-10 or now - reached < 1e-12 * (1 + abs(now)):
            break
        theta, now = theta - size * step, reached
    return theta


def _isotonic(x: FloatArray, y: FloatArray, w: FloatArray, prior: Curve | None) -> Knots:
    """Pool adjacent violators; one run of mean return at either end keeps the outer steps off 0 and 1."""
    mean = float(w @ y / w.sum()) if w.sum() > 0 else 0.5
    weight = np.concatenate([w, [1.0, 1.0]])
    where, group = np.unique(np.concatenate([x, [x.min(), x.max()]]), return_inverse=True)
    total = np.bincount(group, weight)
    target = np.bincount(group, weight * np.concatenate([y, [mean, mean]]))
    blocks: list[tuple[float, float, float]] = []  # weight, Σ w·x, Σ w·y
    for block in zip(total.tolist(), (total * where).tolist(), target.tolist(), strict=True):
        while blocks and block[2] * blocks[-1][0] <= blocks[-1][2] * block[0]:
            block = tuple(np.add(blocks.pop(), block).tolist())
        blocks.append(block)
    blocks = [b for b in blocks if b[0] > 0]
    return Knots(tuple(b[1] / b[0] for b in blocks), tuple(b[2] / b[0] for b in blocks))


def _curve(raw: Mapping[str, Any]) -> Curve:
    if "slope" in raw:
        return Odds(float(raw["slope"]), float(raw["intercept"]))
    return Knots(tuple(map(float, raw["x"])), tuple(map(float, raw["y"])))


def _logit(p: FloatArray) -> FloatArray:
    """log p/(1 − p), increasing and finite on [0, 1]."""
    inside = _EDGE + (1 - 2 * _EDGE) * p
    odds: FloatArray = np.log(inside) - np.log1p(-inside)
    return odds


def _sigmoid(z: FloatArray) -> FloatArray:
    p: FloatArray = np.exp(-np.logaddexp(0.0, -z))
    return p
