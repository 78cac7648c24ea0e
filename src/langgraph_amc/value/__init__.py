"""Value functions: the protocol, a transformer that learns V from trajectories, and adapters for callables.

Nothing here imports torch until a transformer value function is trained or loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_amc.errors import MissingExtraError
from langgraph_amc.value.callables import as_value
from langgraph_amc.value.errors import (
    FingerprintMismatch,
    TrainingDataError,
    ValueModelError,
    ValueScoreError,
)
from langgraph_amc.value.protocol import SoftValueFunction, ValueFunction

if TYPE_CHECKING:
    from langgraph_amc.value.report import ValueReport
    from langgraph_amc.value.scoring import TransformerValue, load_value
    from langgraph_amc.value.training import TrainProgress, train_value

_LAZY = {
    "TransformerValue": "scoring",
    "load_value": "scoring",
    "TrainProgress": "training",
    "train_value": "training",
    "ValueReport": "report",
}
_LOCAL_PACKAGES = ("torch", "transformers", "peft", "safetensors")

__all__ = [
    "FingerprintMismatch",
    "SoftValueFunction",
    "TrainProgress",
    "TrainingDataError",
    "TransformerValue",
    "ValueFunction",
    "ValueModelError",
    "ValueReport",
    "ValueScoreError",
    "as_value",
    "load_value",
    "train_value",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _LOCAL_PACKAGES:
            raise
        raise MissingExtraError("A transformer value function", "local") from error
