"""Co-evolution: the weights of a local model and the skills in its prompt, from the same rollouts."""

from langgraph_amc.coevolve.loop import Coevolved, Started, Stopped, Validated, coevolve
from langgraph_amc.coevolve.standing import Challenger, Skills, replay_skills
from langgraph_amc.coevolve.trials import Trials

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
