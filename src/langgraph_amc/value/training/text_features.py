"""Training the cheap value function of `value.features`, on the data, split and measures of `train_value`.

Logistic regression for returns in [0, 1], ridge regression otherwise. How strongly the coefficients are held back
is chosen on a fifth of the training tasks; then all training tasks are fitted. The features are linear, so this
takes seconds where a transformer takes hours: train it first, and keep it where the transformer ranks no better.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge

from langgraph_amc.checks import check_items, check_path, check_whole, is_number
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.trajectories.types import Segments, Trajectory
from langgraph_amc.value.features import LENGTHS, SPEC_FILE, FeatureLoss, FeatureSpec, FeatureValue
from langgraph_amc.value.manifest import check_replaceable
from langgraph_amc.value.metrics import binary_cross_entropy
from langgraph_amc.value.protocol import FloatArray
from langgraph_amc.value.targets import known_from, task_of
from langgraph_amc.value.training import dataset, report, transformer
from langgraph_amc.value.training.dataset import States

STRENGTHS = (0.03, 0.3, 3.0, 30.0)
"""Inverse regularisation, the stronger first; features of one state have length √3 at most, lengths apart."""
_TUNING = 0.2
_NO_BINS = 51  # of a distribution, which this is none of


@dataclass(frozen=True, slots=True)
class FeatureReport:
    """What `train_features` did and how good the result is; ``quality`` is comparable with a `ValueReport`'s.

    ``strength`` is the inverse regularisation that was chosen; the rest is as in `ValueReport`.
    """

    path: str
    loss: FeatureLoss
    strength: float
    used: Mapping[str, int]
    left_out: Mapping[str, int]
    train_tasks: int
    validation_tasks: int
    train_states: int
    validation_states: int
    measured_on: Literal["validation", "training"]
    quality: report.Quality
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON types."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def to_text(self) -> str:
        """The report as a few lines for a terminal."""
        q, r = self.quality, self.quality.ranking
        ranked = "no task has states to compare"
        if r.value is not None:
            ranked = f"{r.metric} {r.value:.3f} [{r.low:.3f}, {r.high:.3f}] over {r.tasks} tasks and {r.pairs} pairs"
        lines = [
            f"Text features ({self.loss}, strength {self.strength:g}) -> {self.path}",
            f"      {self.train_tasks} tasks / {self.train_states} states to train on,"
            f" {self.validation_tasks} / {self.validation_states} held out",
            f"on {self.measured_on} tasks: mse {q.mse:.4f} (mean return: {q.baseline_mse:.4f}),"
            f" calibration error {q.calibration_error:.4f}",
            f"ranking within a task: {ranked}",
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True)
class _Rows:
    """States of some runs, with their features [n, size]."""

    x: sparse.csr_matrix
    states: States

    def values(self, value: FeatureValue) -> FloatArray:
        """V of each state, [n]."""
        return value.predict(self.x @ value.coefficients + value.intercept)


def train_features(
    trajectories: Sequence[Trajectory],
    *,
    out: str | Path,
    loss: FeatureLoss = "bce",
    last: int = 2,
    columns: int = 2**14,
    validation: float = 0.2,
    seed: int = 0,
) -> FeatureReport:
    """Train a linear value function on text features and save it in ``out``, which `as_value` can load.

    Give it the trajectories, ``validation`` and ``seed`` that `train_value` gets, and both are measured on the same
    held-out tasks.

    Parameters
    ----------
    loss: ``bce`` for returns in [0, 1], ``mse`` for any.
    last: how many of the last segments are read closely.
    columns: hashed columns for each of three kinds of text features.
    validation: fraction of the *tasks* held out for the report.

    Raises
    ------
    TrainingDataError: no usable trajectory, or returns that the loss cannot express.
    ConfigurationError: options that cannot work. ValueModelError: ``out`` is in use for something else.
    """
    trajectories = check_items("trajectories", trajectories, Trajectory)
    folder = check_path("out", out)
    check_whole("seed", seed)
    _check(folder, loss, last, columns, validation)
    used, left_out = dataset.usable(trajectories)
    known = known_from(trajectories)
    train_runs, validation_runs = dataset.split_by_task(used, validation, seed)
    head = transformer.head_for(used, loss, bins=_NO_BINS)
    spec = FeatureSpec(last, columns, loss, head.binary, used[0].fingerprint, version("langgraph-amc"))
    strength = _chosen(train_runs, spec, known, seed)
    train = _rows(train_runs, spec, known)
    value = _fit(train, spec, strength)
    measured = _rows(validation_runs, spec, known) if validation_runs else train
    quality = report.measure(measured.values(value), measured.states, head, seed)
    result = FeatureReport(
        path=str(folder),
        loss=loss,
        strength=strength,
        used=dataset.status_counts(used),
        left_out=left_out,
        train_tasks=len(set(map(task_of, train_runs))),
        validation_tasks=len(set(map(task_of, validation_runs))),
        train_states=len(train.states),
        validation_states=len(measured.states) if validation_runs else 0,
        measured_on="validation" if validation_runs else "training",
        quality=quality,
        notes=report.notes(quality, head, train.states.returns, len(validation_runs)),
    )
    value.save(folder, result.to_dict())
    return result


def _rows(runs: Sequence[Trajectory], spec: FeatureSpec, known: Mapping[str, int]) -> _Rows:
    states, there = dataset.states_of(runs, known, td_lambda=1.0)
    every: list[Segments] = [t.segments[: end + 1] for t in runs for end in range(len(t.segments))]
    return _Rows(spec.features([state for state, kept in zip(every, there, strict=True) if kept]), states)


def _chosen(runs: Sequence[Trajectory], spec: FeatureSpec, known: Mapping[str, int], seed: int) -> float:
    """The strength that does best on training tasks it was not fitted to; a middling one where there is one task."""
    fitted, held_out = dataset.split_by_task(runs, _TUNING, seed + 1)
    if not held_out:
        return STRENGTHS[1]
    train, test = _rows(fitted, spec, known), _rows(held_out, spec, known)
    return min(STRENGTHS, key=lambda strength: _error(_fit(train, spec, strength), test))


def _error(value: FeatureValue, rows: _Rows) -> float:
    predicted, states = rows.values(value), rows.states
    if value.spec.loss == "bce":
        return binary_cross_entropy(predicted, states.returns, states.weights)
    return float(np.average(np.square(predicted - states.returns), weights=states.weights))


def _fit(rows: _Rows, spec: FeatureSpec, strength: float) -> FeatureValue:
    """Fit with the lengths standardised, and fold that into the coefficients."""
    lengths = rows.x[:, -LENGTHS:].toarray()
    center, scale = lengths.mean(0), lengths.std(0)
    scale[scale == 0] = 1.0
    x = sparse.hstack([rows.x[:, :-LENGTHS], sparse.csr_matrix((lengths - center) / scale)], format="csr")
    coefficients, intercept = _solve(x, rows.states, spec.loss, strength)
    coefficients[-LENGTHS:] /= scale
    return FeatureValue(spec, coefficients, intercept - float(center @ coefficients[-LENGTHS:]))


def _solve(x: sparse.csr_matrix, states: States, loss: FeatureLoss, strength: float) -> tuple[FloatArray, float]:
    returns, weights = states.returns, states.weights
    if loss == "mse":
        ridge = Ridge(alpha=1 / strength, solver="sparse_cg", tol=1e-6).fit(x, returns, weights)
        return ridge.coef_.astype(np.float64), float(ridge.intercept_)
    # a return between 0 and 1 is so much of a success and so much of a failure
    count = len(returns)
    labels = np.repeat([1, 0], count)
    counts = np.concatenate([weights * returns, weights * (1 - returns)])
    kept = counts > 0 if 0 < returns.mean() < 1 else np.ones(2 * count, dtype=np.bool_)
    logistic = LogisticRegression(C=strength, solver="liblinear", max_iter=1000)
    logistic.fit(sparse.vstack([x, x], format="csr")[kept], labels[kept], counts[kept])
    return logistic.coef_[0].astype(np.float64), float(logistic.intercept_[0])


def _check(folder: Path, loss: str, last: int, columns: int, validation: float) -> None:
    if loss not in get_args(FeatureLoss):
        raise ConfigurationError(f"loss {loss!r} is unknown: choose one of {', '.join(get_args(FeatureLoss))}")
    for name, count in (("last", last), ("columns", columns)):
        check_whole(name, count, 1)
    if not (is_number(validation) and 0 <= validation < 1):
        raise ConfigurationError(f"validation is a fraction in [0, 1), got {validation!r}")
    check_replaceable(folder, SPEC_FILE)
