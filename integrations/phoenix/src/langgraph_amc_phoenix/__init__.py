"""Phoenix: `serving` starts it on loopback only; `PhoenixScores` and its siblings file values and rewards as scores."""

from langgraph_amc_phoenix.errors import PhoenixError
from langgraph_amc_phoenix.serving import Phoenix, serving
from langgraph_amc_phoenix.sinks import LangfuseScores, LangSmithScores, PhoenixScores

__all__ = ["LangSmithScores", "LangfuseScores", "Phoenix", "PhoenixError", "PhoenixScores", "serving"]
