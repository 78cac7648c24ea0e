"""AgentGym's environment servers for langgraph-amc, over HTTP.

The names that ``agentgym:…`` reaches on the command line: `graph`, `tasks`, `score` and `solved`.
"""

from langgraph_amc_agentgym.agent import build, graph, open_worlds, score, solved
from langgraph_amc_agentgym.dialects import DIALECTS, Dialect
from langgraph_amc_agentgym.errors import (
    AgentGymError,
    AgentGymTaskError,
    LeakedEnvironmentWarning,
    ServerRefusedError,
    ServerUnreachableError,
    UnexpectedAnswerError,
)
from langgraph_amc_agentgym.server import Server
from langgraph_amc_agentgym.taskset import tasks
from langgraph_amc_agentgym.world import AgentGymWorld

__all__ = [
    "DIALECTS",
    "AgentGymError",
    "AgentGymTaskError",
    "AgentGymWorld",
    "Dialect",
    "LeakedEnvironmentWarning",
    "Server",
    "ServerRefusedError",
    "ServerUnreachableError",
    "UnexpectedAnswerError",
    "build",
    "graph",
    "open_worlds",
    "score",
    "solved",
    "tasks",
]
