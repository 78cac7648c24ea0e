"""TextWorld for langgraph-amc: generated text games whose states can be copied, as tasks for an agent.

The names that ``textworld:…`` reaches on the command line: `graph`, `stand_in`, `tasks`, `tasks_with_commands`,
`cooking`, `cooking_2`, `treasure`, `coin`, `quest`, `solved`, `score` and `progress`.
"""

from langgraph_amc_textworld.agent import build, graph, progress, score, solved
from langgraph_amc_textworld.follower import Follower, stand_in
from langgraph_amc_textworld.games import GameDiffersError, GameSpec, GenerationError, TextWorldError, find_game
from langgraph_amc_textworld.taskset import coin, cooking, cooking_2, quest, tasks, tasks_with_commands, treasure
from langgraph_amc_textworld.world import TextWorld, TextWorldTask

__all__ = [
    "Follower",
    "GameDiffersError",
    "GameSpec",
    "GenerationError",
    "TextWorld",
    "TextWorldError",
    "TextWorldTask",
    "build",
    "coin",
    "cooking",
    "cooking_2",
    "find_game",
    "graph",
    "progress",
    "quest",
    "score",
    "solved",
    "stand_in",
    "tasks",
    "tasks_with_commands",
    "treasure",
]
