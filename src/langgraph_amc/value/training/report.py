"""The report of a training run: losses, calibration, and ranking within tasks, which is what AMC lives on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.value.heads import Loss, ReturnHead
from langgraph_amc.value.metrics import (
    CalibrationBin,
    Ranking,
    binary_cross_entropy,
    calibration,
    within_task_ranking,
)
from langgraph_amc.value.training.dataset import States


@dataclass(frozen=True, slots=True)
class EpochLog:
    """One epoch: mean training loss, validation loss (``None`` without held-out tasks), tokens and seconds."""

    epoch: int
    train_loss: float
    validation_loss: float | None
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Quality:
    """How good the predictions are on a set of states.

    ``bce`` is ``None`` for returns outside [0, 1]. ``baseline_mse`` is that of always predicting the mean return.
    These and the calibration weigh states of resampled populations as `value.targets` says.
    ``ranking`` pools all steps of a task before its end; ``ranking_by_step`` keeps them apart, and
    ``ranking_final`` compares finished states, among which an unobservable outcome is guessed.
    """

    mse: float
    baseline_mse: float
    bce: float | None
    calibration: tuple[CalibrationBin, ...]
    calibration_error: float
    ranking: Ranking
    ranking_by_step: Mapping[int, Ranking]
    ranking_final: Ranking


@dataclass(frozen=True, slots=True)
class ValueReport:
    """What `train_value` did and how good the result is.

    ``calibrated``: the method of the calibration in the checkpoint, if one helped; ``quality`` is then of values
    calibrated by other tasks than their own, and ``raw_calibration_error`` that of the head itself.
    ``uncertainty``: V's error among states of one task, pooled over the steps, ``None`` where it is not known.
    ``effective_share``: effective sample size of the training states, as a share of their number; 1 where no
    particle had been resampled. ``used`` counts trajectories by status, ``left_out`` the censored ones by reason.
    ``quality`` was measured on ``measured_on``: held-out tasks, or the training tasks where there are none, which
    flatters.
    """

    path: str
    loss: Loss
    weights: Literal["lora", "full"]
    parameters: int
    trained_parameters: int
    used: Mapping[str, int]
    left_out: Mapping[str, int]
    train_tasks: int
    validation_tasks: int
    train_states: int
    validation_states: int
    epochs: tuple[EpochLog, ...]
    best_epoch: int
    stopped_early: bool
    measured_on: Literal["validation", "training"]
    quality: Quality
    notes: tuple[str, ...]
    calibrated: str | None = None
    raw_calibration_error: float | None = None
    uncertainty: float | None = None
    effective_share: float = 1.0

    @property
    def tokens_per_second(self) -> float:
        """Training throughput, validation not counted."""
        seconds = sum(log.seconds for log in self.epochs)
        return sum(log.tokens for log in self.epochs) / seconds if seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON types."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def to_text(self) -> str:
        """The report as a few lines for a terminal."""
        q = self.quality
        lines = [
            f"Value function ({self.loss}, {self.weights}): {self.trained_parameters:,} of {self.parameters:,}"
            f" parameters trained, {self.tokens_per_second:,.0f} tokens/s -> {self.path}",
            f"data: {_counts(self.used)}; left out: {_counts(self.left_out)}",
            f"      {self.train_tasks} tasks / {self.train_states} states to train on,"
            f" {self.validation_tasks} / {self.validation_states} held out",
            "",
            "epoch    train loss    validation loss",
        ]
        for log in self.epochs:
            mark = " *" if log.epoch == self.best_epoch else ""
            lines.append(f"{log.epoch:5d}  {log.train_loss:12.4f}  {_number(log.validation_loss):>17}{mark}")
        lines += [
            "",
            f"on {self.measured_on} tasks: mse {q.mse:.4f} (mean return: {q.baseline_mse:.4f}),"
            f" bce {_number(q.bce)}, calibration error {q.calibration_error:.4f}",
            self._calibration_line(),
            "",
            f"ranking within a task ({q.ranking.metric})    value  95 % interval     tasks  pairs",
            _ranking_line("all steps", q.ranking),
            *(_ranking_line(f"step {step}", r) for step, r in q.ranking_by_step.items()),
            _ranking_line("finished", q.ranking_final),
            "",
            "predicted             states  mean predicted  mean return",
            *(
                f"[{b.low:8.3f}, {b.high:8.3f})  {b.count:7d}  {b.predicted:14.3f}  {b.observed:11.3f}"
                for b in q.calibration
            ),
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _calibration_line(self) -> str:
        raw = "not calibrated" if self.calibrated is None else f"calibrated ({self.calibrated})"
        raw += "" if self.raw_calibration_error is None else f", error before {self.raw_calibration_error:.4f}"
        return raw + f"; V's error within a task {_number(self.uncertainty)}"


def calibration_table(
    predicted: NDArray[np.float64], states: States, head: ReturnHead
) -> tuple[tuple[CalibrationBin, ...], float]:
    """Calibration table and error of ``predicted`` [n] for the states of a data set."""
    low, high = (0.0, 1.0) if head.loss == "bce" else (head.low, head.high)
    return calibration(predicted, states.returns, states.importance, low=low, high=high)


def measure(predicted: NDArray[np.float64], states: States, head: ReturnHead, seed: int) -> Quality:
    """Quality of ``predicted`` [n] for the states of a data set."""
    returns = states.returns
    in_unit = bool((returns >= 0).all() and (returns <= 1).all())
    weights = states.importance
    table, error = calibration_table(predicted, states, head)
    mean = np.average(returns, weights=weights)

    def ranking(chosen: NDArray[np.bool_], by_step: bool) -> Ranking:
        return within_task_ranking(
            predicted[chosen],
            returns[chosen],
            states.task[chosen],
            steps=states.step[chosen] if by_step else None,
            states=states.key[chosen],
            graded=not head.binary,
            seed=seed,
        )

    running = ~states.final
    steps = np.unique(states.step[running]).tolist()
    each = {step: ranking(running & (states.step == step), by_step=False) for step in steps}
    return Quality(
        mse=float(np.average(np.square(predicted - returns), weights=weights)),
        baseline_mse=float(np.average(np.square(returns - mean), weights=weights)),
        bce=binary_cross_entropy(predicted, returns, weights) if in_unit else None,
        calibration=table,
        calibration_error=error,
        ranking=ranking(running, by_step=True),
        ranking_by_step={step: r for step, r in each.items() if r.tasks},
        ranking_final=ranking(states.final, by_step=False),
    )


def notes(quality: Quality, head: ReturnHead, returns: NDArray[np.float64], validation_tasks: int) -> tuple[str, ...]:
    """What a reader of the numbers should know."""
    found = []
    if validation_tasks == 0:
        found.append("no held-out tasks: the numbers above flatter, and there was no early stopping")
    if float(np.ptp(returns)) == 0.0:
        found.append(f"every return is {returns[0]:g}: there is nothing to learn; collect tasks that are mixed")
    chance = 0.5 if quality.ranking.metric == "auc" else 0.0
    if quality.ranking.value is None:
        found.append("no task has states with different returns: ranking within a task could not be measured")
    elif quality.ranking.low is not None and quality.ranking.low <= chance:
        found.append("ranking within a task is not clearly better than chance: expect little from resampling")
    if not head.soft:
        found.append(f"loss={head.loss!r} on graded returns knows only the mean: no exact soft value; see 'two_hot'")
    return tuple(found)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _ranking_line(name: str, r: Ranking) -> str:
    interval = "" if r.low is None else f"[{r.low:.3f}, {r.high:.3f}]"
    value = "-" if r.value is None else f"{r.value:.3f}"
    return f"  {name:<30}{value:>7}  {interval:<16}{r.tasks:>7}{r.pairs:>7}"
