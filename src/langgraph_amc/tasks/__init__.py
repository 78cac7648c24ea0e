"""Tasks: what agents are asked, how finished runs are rewarded, and the worlds their tools act on."""

from langgraph_amc.tasks.environment import (
    Environment,
    NotStartedError,
    ReplayDivergedError,
    ReplayEnvironment,
    ReplayToken,
    Steppable,
    StepResult,
)
from langgraph_amc.tasks.integrations import IntegrationError, TaskFamily, available, load_integration
from langgraph_amc.tasks.loading import LoadError, load_app, load_object, load_reward, load_tasks
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

__all__ = [
    "Environment",
    "FinishedRun",
    "IntegrationError",
    "LoadError",
    "NotStartedError",
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
    "as_reward",
    "available",
    "load_app",
    "load_integration",
    "load_object",
    "load_reward",
    "load_tasks",
    "message_reward",
    "step_reward",
    "step_rewards",
]
