"""GRPO through TRL for the local model of an unchanged LangGraph app, as a baseline for evolution strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph_amc_trl.method import GRPO
from langgraph_amc_trl.records import Measurement, StepRecord, Trained

if TYPE_CHECKING:
    from langgraph_amc_trl.training import train

__all__ = ["GRPO", "Measurement", "StepRecord", "Trained", "train"]


def __getattr__(name: str) -> Any:
    if name == "train":  # brings torch and TRL
        from langgraph_amc_trl.training import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
