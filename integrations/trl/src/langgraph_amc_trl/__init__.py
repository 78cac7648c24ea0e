"""Stored runs and live rollouts of an unchanged LangGraph app as training of its local model, through TRL.

GRPO from rollouts, as a baseline for evolution strategies; DPO, KTO and SFT from the runs that AMC leaves behind.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_amc_trl.examples import Chosen, Example, labelled_runs, selected_runs
from langgraph_amc_trl.method import GRPO
from langgraph_amc_trl.methods import DPO, KTO, SFT
from langgraph_amc_trl.pairs import Found, Pair, sibling_pairs
from langgraph_amc_trl.records import Measurement, StepRecord, Trained

if TYPE_CHECKING:
    from langgraph_amc_trl.divergence import DivergedError
    from langgraph_amc_trl.rendering import check_seen
    from langgraph_amc_trl.toolformer import CallLoss, LocalLoss, filter_calls, judge_calls
    from langgraph_amc_trl.training import train
    from langgraph_amc_trl.tuning import Tuned, train_on_pairs, train_on_runs

_LAZY = {  # they bring torch, transformers and TRL
    "CallLoss": "toolformer",
    "DivergedError": "divergence",
    "LocalLoss": "toolformer",
    "Tuned": "tuning",
    "check_seen": "rendering",
    "filter_calls": "toolformer",
    "judge_calls": "toolformer",
    "train": "training",
    "train_on_pairs": "tuning",
    "train_on_runs": "tuning",
}

__all__ = [
    "DPO",
    "GRPO",
    "KTO",
    "SFT",
    "CallLoss",
    "Chosen",
    "DivergedError",
    "Example",
    "Found",
    "LocalLoss",
    "Measurement",
    "Pair",
    "StepRecord",
    "Trained",
    "Tuned",
    "check_seen",
    "filter_calls",
    "judge_calls",
    "labelled_runs",
    "selected_runs",
    "sibling_pairs",
    "train",
    "train_on_pairs",
    "train_on_runs",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
