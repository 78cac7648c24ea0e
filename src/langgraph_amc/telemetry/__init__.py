"""OpenTelemetry: what things are called, and how spans are opened. Needs its API only; see docs/tracing.md."""

from langgraph_amc.telemetry.metrics import Instruments, instruments
from langgraph_amc.telemetry.options import Telemetry, captures_content
from langgraph_amc.telemetry.scores import Score, ScoreSink
from langgraph_amc.telemetry.spans import span
from langgraph_amc.telemetry.survivors import SurvivorsOnly

__all__ = [
    "Instruments",
    "Score",
    "ScoreSink",
    "SurvivorsOnly",
    "Telemetry",
    "captures_content",
    "instruments",
    "span",
]
