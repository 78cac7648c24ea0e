"""What held-out tasks say about a trained value function: its calibration, and its error within a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from langgraph_amc.value import calibration
from langgraph_amc.value.calibration import Calibration
from langgraph_amc.value.heads import ReturnHead
from langgraph_amc.value.protocol import FloatArray
from langgraph_amc.value.training.dataset import States
from langgraph_amc.value.uncertainty import Uncertainty, fit_uncertainty

Calibrate = Literal["auto", "platt", "isotonic", "none"]


@dataclass(frozen=True, slots=True)
class Fitted:
    """Values [n] of the held-out states, each calibrated by other tasks; the calibration by all of them; V's error."""

    values: FloatArray
    calibration: Calibration | None
    uncertainty: Uncertainty | None


def fit_held_out(raw: FloatArray, states: States, head: ReturnHead, asked: Calibrate) -> Fitted:
    """Fit to the head's values [n] of held-out states; too few tasks to cross-fit leave them as they are."""
    columns = (states.returns, states.step, states.task, states.importance)
    values, found = raw, None
    if asked != "none" and calibration.calibratable(states.task, folds=calibration.FOLDS):
        method: calibration.Method = "platt" if asked == "auto" else asked
        bounds = head.low, head.high
        crossed = calibration.cross_fitted(raw, *columns, method=method, bounds=bounds)
        if asked != "auto" or _error(crossed, states) < _error(raw, states):
            values, found = crossed, calibration.fit(raw, *columns, method=method, bounds=bounds)
    return Fitted(values, found, fit_uncertainty(values, *columns))


def _error(values: FloatArray, states: States) -> float:
    return float(np.average(np.square(values - states.returns), weights=states.importance))
