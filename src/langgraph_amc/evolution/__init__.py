"""Evolution strategies for the weights of local models: noise, members, estimator, faithful updates, history.

Here are the parts that need no torch; those that touch weights are in ``weights``, ``replay``, ``export``, ``layout``.
"""

from langgraph_amc.evolution.asktell import State, Update, ask, start, tell
from langgraph_amc.evolution.errors import HistoryError, WeightsError
from langgraph_amc.evolution.history import Header, History, Log, Record, read
from langgraph_amc.evolution.members import Generation, Member
from langgraph_amc.evolution.schedules import Automatic, Constant, Cosine, Linear, Schedule
from langgraph_amc.evolution.strategy import Strategy

__all__ = [
    "Automatic",
    "Constant",
    "Cosine",
    "Generation",
    "Header",
    "History",
    "HistoryError",
    "Linear",
    "Log",
    "Member",
    "Record",
    "Schedule",
    "State",
    "Strategy",
    "Update",
    "WeightsError",
    "ask",
    "read",
    "start",
    "tell",
]
