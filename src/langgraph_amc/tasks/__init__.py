"""Tasks: what agents are asked, how finished runs are rewarded, and the worlds their tools act on."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_amc.tasks.environment import (
    Environment,
    NotStartedError,
    ReplayDivergedError,
    ReplayEnvironment,
    ReplayToken,
    Steppable,
    StepResult,
    WorldLostError,
)
from langgraph_amc.tasks.integrations import IntegrationError, TaskFamily, available, load_integration
from langgraph_amc.tasks.loading import LoadError, load_app, load_object, load_reward, load_tasks
from langgraph_amc.tasks.pool import History, PoolClosedError, WorldPool
from langgraph_amc.tasks.rewards import (
    FinishedRun,
    Reward,
    RewardError,
    RewardFunction,
    RewardResult,
    as_reward,
    message_reward,
    step_reward,
    step_rewards,
)
from langgraph_amc.tasks.task import Task, TaskError, TaskSet

if TYPE_CHECKING:
    from langgraph_amc.tasks.agent import read_action, world_agent

_LAZY = ("read_action", "world_agent")
"""What needs LangGraph."""

__all__ = [
    "Environment",
    "FinishedRun",
    "History",
    "IntegrationError",
    "LoadError",
    "NotStartedError",
    "PoolClosedError",
    "ReplayDivergedError",
    "ReplayEnvironment",
    "ReplayToken",
    "Reward",
    "RewardError",
    "RewardFunction",
    "RewardResult",
    "StepResult",
    "Steppable",
    "Task",
    "TaskError",
    "TaskFamily",
    "TaskSet",
    "WorldLostError",
    "WorldPool",
    "as_reward",
    "available",
    "load_app",
    "load_integration",
    "load_object",
    "load_reward",
    "load_tasks",
    "message_reward",
    "read_action",
    "step_reward",
    "step_rewards",
    "world_agent",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.agent"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
