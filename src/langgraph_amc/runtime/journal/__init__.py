"""Durable runs: a journal from which a run that was killed goes on.

The database library loads on first use, so that importing this room is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_amc.runtime.journal.errors import JournalError, RunInUseError, UnserialisableStateError

if TYPE_CHECKING:
    from langgraph_amc.runtime.journal.journal import Journal
    from langgraph_amc.runtime.journal.reading import Effect, RunInfo, RunSummary
    from langgraph_amc.runtime.journal.records import ParticleRecord
    from langgraph_amc.runtime.journal.run import Restored, RunJournal

_LAZY = {
    "Effect": "reading",
    "Journal": "journal",
    "ParticleRecord": "records",
    "Restored": "run",
    "RunInfo": "reading",
    "RunJournal": "run",
    "RunSummary": "reading",
}

__all__ = [
    "Effect",
    "Journal",
    "JournalError",
    "ParticleRecord",
    "Restored",
    "RunInUseError",
    "RunInfo",
    "RunJournal",
    "RunSummary",
    "UnserialisableStateError",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
