"""Co-evolution: the weights of a local model and the skills in its prompt, from the same rollouts."""

from langgraph_amc.coevolve.loop import Coevolved, Started, coevolve
from langgraph_amc.coevolve.standing import Challenger, Skills, replay_skills
from langgraph_amc.coevolve.trials import Trials
from langgraph_amc.evolution.loop import Stopped, Validated

__all__ = [
    "Challenger",
    "Coevolved",
    "Skills",
    "Started",
    "Stopped",
    "Trials",
    "Validated",
    "coevolve",
    "replay_skills",
]
