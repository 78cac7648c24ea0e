"""Trajectories: the transcript of a run, its rewards and lineage, and the store that keeps them.

The store and the exchange formats load on first use, so that importing this room loads no database library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_amc.trajectories.reading import read_calls
from langgraph_amc.trajectories.transcript import (
    REWRITTEN,
    Transcript,
    TranscriptBuilder,
    TranscriptError,
    segments_from_messages,
    segments_from_states,
)
from langgraph_amc.trajectories.types import Segments, Status, Trajectory, Usage

if TYPE_CHECKING:
    from langgraph_amc.trajectories.exchange import export_trajectories, import_trajectories
    from langgraph_amc.trajectories.store import Record, Run, StoreCounts, StoreError, TrajectoryStore

_LAZY = {
    "Record": "store",
    "Run": "store",
    "StoreCounts": "store",
    "StoreError": "store",
    "TrajectoryStore": "store",
    "export_trajectories": "exchange",
    "import_trajectories": "exchange",
}

__all__ = [
    "REWRITTEN",
    "Record",
    "Run",
    "Segments",
    "Status",
    "StoreCounts",
    "StoreError",
    "Trajectory",
    "TrajectoryStore",
    "Transcript",
    "TranscriptBuilder",
    "TranscriptError",
    "Usage",
    "export_trajectories",
    "import_trajectories",
    "read_calls",
    "segments_from_messages",
    "segments_from_states",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
