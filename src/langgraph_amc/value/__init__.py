"""Value functions: the protocol, a transformer that learns V from trajectories, and adapters for callables.

Nothing here imports torch until a transformer value function is trained or loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_amc.errors import needing_local
from langgraph_amc.value.callables import as_value
from langgraph_amc.value.errors import (
    FingerprintMismatch,
    TrainingDataError,
    ValueModelError,
    ValueScoreError,
)
from langgraph_amc.value.protocol import SoftValueFunction, ValueFunction

if TYPE_CHECKING:
    from langgraph_amc.value.calibrating import Calibrated, calibrated, fit_calibration
    from langgraph_amc.value.calibration import Calibration
    from langgraph_amc.value.ensembles import Ensemble, ensemble
    from langgraph_amc.value.features import FeatureValue, load_features
    from langgraph_amc.value.judges import Example, Judge, MissingScoreWarning, VoteJudge, foa_judge, judge, vote_judge
    from langgraph_amc.value.scoring import TransformerValue, load_value
    from langgraph_amc.value.serving.connection import RemoteValueError
    from langgraph_amc.value.serving.remote import RemoteValue
    from langgraph_amc.value.serving.server import Served, ServerLimits, ValueServer
    from langgraph_amc.value.targets import with_resamplings
    from langgraph_amc.value.training.report import ValueReport
    from langgraph_amc.value.training.text_features import FeatureReport, train_features
    from langgraph_amc.value.training.transformer import TrainProgress, train_value
    from langgraph_amc.value.uncertainty import Uncertainty

_LAZY = {
    "TransformerValue": "scoring",
    "load_value": "scoring",
    "TrainProgress": "training.transformer",
    "train_value": "training.transformer",
    "ValueReport": "training.report",
    "Ensemble": "ensembles",
    "ensemble": "ensembles",
    "Example": "judges",
    "Judge": "judges",
    "MissingScoreWarning": "judges",
    "foa_judge": "judges",
    "judge": "judges",
    "VoteJudge": "judges",
    "vote_judge": "judges",
    "FeatureValue": "features",
    "load_features": "features",
    "FeatureReport": "training.text_features",
    "train_features": "training.text_features",
    "RemoteValue": "serving.remote",
    "RemoteValueError": "serving.connection",
    "Served": "serving.server",
    "ServerLimits": "serving.server",
    "ValueServer": "serving.server",
    "Calibrated": "calibrating",
    "calibrated": "calibrating",
    "fit_calibration": "calibrating",
    "Calibration": "calibration",
    "Uncertainty": "uncertainty",
    "with_resamplings": "targets",
}

__all__ = [
    "Calibrated",
    "Calibration",
    "Ensemble",
    "Example",
    "FeatureReport",
    "FeatureValue",
    "FingerprintMismatch",
    "Judge",
    "MissingScoreWarning",
    "RemoteValue",
    "RemoteValueError",
    "Served",
    "ServerLimits",
    "SoftValueFunction",
    "TrainProgress",
    "TrainingDataError",
    "TransformerValue",
    "Uncertainty",
    "ValueFunction",
    "ValueModelError",
    "ValueReport",
    "ValueScoreError",
    "ValueServer",
    "VoteJudge",
    "as_value",
    "calibrated",
    "ensemble",
    "fit_calibration",
    "foa_judge",
    "judge",
    "load_features",
    "load_value",
    "train_features",
    "train_value",
    "vote_judge",
    "with_resamplings",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needing_local("A transformer value function"):
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
