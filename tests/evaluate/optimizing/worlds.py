"""Runs of the parcel desk in this process and in others, with the settings that the tests here share."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import langgraph_amc as amc
from langgraph_amc.evaluate.optimizing import Optimization
from tests.support import parcels

SIZES = {"train": 8, "validation": 16, "held_out": 6}
SMALL = {"train": 4, "validation": 6, "held_out": 2}
BRIEF: dict[str, Any] = {"rounds": 1, "candidates": 2, "batch": 4, "measured": 1}
"""Settings of a run that is over soon."""


def optimize(folder: Path, out: str, sizes: dict[str, int] = SIZES, **changes: Any) -> Optimization:
    """A run with the model as its own proposer; ``folder`` was made by `parcels.made`."""
    every = parcels.tasks(**sizes)
    given: dict[str, Any] = {
        "validation": every.split("validation"),
        "held_out": every.split("held-out"),
        "proposer": amc.LLMProposer(amc.chat_model("openai/author", seed=3, max_tokens=1500), batch=8, calls=1),
        "rounds": 2,
        "candidates": 3,
        "batch": 8,
        "patience": None,
        "alpha": 0.3,
        "options": {"effects": {"submit": "pure"}},
    }
    return amc.optimize(
        f"{folder}/agent.py:graph",
        every.split("train"),
        changes.pop("reward", f"{folder}/agent.py:accepted"),
        out=folder / out,
        **{**given, **changes},
    )


def in_a_process(folder: Path, out: str, base_url: str, concurrency: int) -> None:
    """The same, for a process that is going to be killed."""
    os.environ |= {"OPENAI_API_BASE": base_url, "OPENAI_API_KEY": "none"}
    warnings.simplefilter("ignore")
    optimize(folder, out, SMALL, concurrency=concurrency, **BRIEF)
