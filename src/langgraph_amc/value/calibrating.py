"""Calibrating any value function: a judge's numbers, a heuristic's, a checkpoint's of another app. Numpy only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from langgraph_amc.checks import check_items
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.trajectories.types import Segments, Trajectory
from langgraph_amc.value.calibration import Calibration, Method, fit
from langgraph_amc.value.callables import as_value
from langgraph_amc.value.protocol import FloatArray, ValueFunction
from langgraph_amc.value.soft import soft_of_chance
from langgraph_amc.value.targets import importance, known_from, task_of


class Calibrated:
    """Any value function with a calibration behind it; `calibrated` also keeps or gains the soft value."""

    def __init__(self, value: ValueFunction | Any, calibration: Calibration) -> None:
        self.value = as_value(value)
        self.calibration = calibration

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """Calibrated expected future return of each state, float64 [n], in units of reward; NaN marks missing."""
        return self.calibration(self.value.score(transcripts), _steps(transcripts))

    def __repr__(self) -> str:
        return f"Calibrated({self.value!r}, {self.calibration.method})"


class CalibratedChance(Calibrated):
    """A calibrated chance of success, whose soft value is known for every β."""

    def soft_score(self, transcripts: Sequence[Segments], beta: float) -> FloatArray:
        """β·log(1 − p + p·e^{1/β}) of each state's calibrated chance p, float64 [n] (AMC, soft value)."""
        p = self.score(transcripts)
        with np.errstate(divide="ignore"):
            return soft_of_chance(np.log(p), np.log1p(-p), beta)


def calibrated(value: ValueFunction | Any, calibration: Calibration) -> Calibrated:
    """A value function (anything `as_value` takes) with a calibration behind it.

    Fitted to 0/1 returns it is a `SoftValueFunction`, exact for every β.
    """
    if not isinstance(calibration, Calibration):
        raise ConfigurationError(f"calibrated takes what fit_calibration gave, got {calibration!r}")
    return CalibratedChance(value, calibration) if calibration.binary else Calibrated(value, calibration)


def fit_calibration(
    value: ValueFunction | Any, trajectories: Iterable[Trajectory], *, method: Method = "platt"
) -> Calibration:
    """Fit a calibration of any value function (a judge, a callable, a checkpoint) to runs it was not made from.

    Scores every state of every run that ended with an outcome; missing scores are left out. Runs of a resampled
    population count as `importance` says.

    Raises
    ------
    TrainingDataError: fewer than five tasks have a state with a score and a return.
    """
    runs = check_items("trajectories", trajectories, Trajectory)
    known = known_from(runs)
    ended = [t for t in runs if t.outcome is not None and t.status in ("finished", "failed")]
    states = [t.segments[: step + 1] for t in ended for step in range(len(t.segments))]
    scores = as_value(value).score(states) if states else np.zeros(0)
    returns = np.array([r for t in ended for r in t.returns() or ()])
    tasks = np.array([task_of(t) for t in ended for _ in t.segments])
    weights = np.concatenate([np.zeros(0), *(importance(t, known.get(t.run_id, 0)) for t in ended)])
    steps = np.array(_steps(states))
    there = ~np.isnan(scores) & (weights > 0)
    return fit(scores[there], returns[there], steps[there], tasks[there], weights[there], method=method)


def _steps(transcripts: Sequence[Segments]) -> list[int]:
    return [len(segments) - 1 for segments in transcripts]
