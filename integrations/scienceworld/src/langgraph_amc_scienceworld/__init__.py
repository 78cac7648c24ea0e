"""ScienceWorld for langgraph-amc: its tasks, splits and simulator, in worlds that branch with their particles.

The names that ``scienceworld:…`` reaches on the command line: `graph`, `tasks`, `score`, `signed_score`, `solved`.
"""

from langgraph_amc_scienceworld.agent import build, graph, make_pool, score, signed_score, solved
from langgraph_amc_scienceworld.catalogue import AMC_KINDS, KINDS, SIMPLIFICATIONS, Kind, ScienceWorldError
from langgraph_amc_scienceworld.taskset import agentgym, tasks
from langgraph_amc_scienceworld.world import (
    JAVA_OPTIONS,
    JavaError,
    ScienceWorld,
    ScienceWorldTask,
    SimulatorError,
)

__all__ = [
    "AMC_KINDS",
    "JAVA_OPTIONS",
    "KINDS",
    "SIMPLIFICATIONS",
    "JavaError",
    "Kind",
    "ScienceWorld",
    "ScienceWorldError",
    "ScienceWorldTask",
    "SimulatorError",
    "agentgym",
    "build",
    "graph",
    "make_pool",
    "score",
    "signed_score",
    "solved",
    "tasks",
]
