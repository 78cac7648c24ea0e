"""Production traces read as conversations: OTLP, LangSmith, Phoenix and Langfuse.

One module per format reads its records into spans; `conversation` turns the tree of spans of an invocation into the
states that a live run of the same messages would have recorded.
"""

from __future__ import annotations

from langgraph_amc.trajectories.importers.conversation import Conversation, System, read_conversation
from langgraph_amc.trajectories.importers.files import FORMATS, ImportFileError, read_file
from langgraph_amc.trajectories.importers.lineages import with_lineages
from langgraph_amc.trajectories.importers.spans import (
    ParticleOf,
    Score,
    Span,
    Trace,
    Unusable,
    invocations,
    traces,
)

__all__ = [
    "FORMATS",
    "Conversation",
    "ImportFileError",
    "ParticleOf",
    "Score",
    "Span",
    "System",
    "Trace",
    "Unusable",
    "invocations",
    "read_conversation",
    "read_file",
    "traces",
    "with_lineages",
]
