"""TextCraft for langgraph-amc: the original crafting tasks, rebuilt from the package ``minecraft-data``.

The names that ``textcraft:…`` reaches on the command line: `graph`, `tasks` and `solved`.
"""

from langgraph_amc_textcraft.agent import build, graph, read_action, solved
from langgraph_amc_textcraft.planner import plan
from langgraph_amc_textcraft.recipes import Recipe, RecipeBook, RecipeDataError, load_book
from langgraph_amc_textcraft.taskset import family, tasks
from langgraph_amc_textcraft.world import TextCraft, TextCraftError, TextCraftTask

__all__ = [
    "Recipe",
    "RecipeBook",
    "RecipeDataError",
    "TextCraft",
    "TextCraftError",
    "TextCraftTask",
    "build",
    "family",
    "graph",
    "load_book",
    "plan",
    "read_action",
    "solved",
    "tasks",
]
