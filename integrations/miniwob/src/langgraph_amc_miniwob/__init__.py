"""MiniWoB++ for langgraph-amc, through BrowserGym, in a real headless Chromium.

The names that ``miniwob:…`` reaches on the command line: `graph`, `tasks`, `solved` and `score`.
"""

from langgraph_amc_miniwob.agent import build, graph, read_action, score, solved, worlds
from langgraph_amc_miniwob.taskset import PAGES, family, tasks
from langgraph_amc_miniwob.world import (
    BrowserLostError,
    MiniWoB,
    MiniWoBError,
    MiniWoBTask,
    MissingBrowserError,
    chromium,
    missing,
)

__all__ = [
    "PAGES",
    "BrowserLostError",
    "MiniWoB",
    "MiniWoBError",
    "MiniWoBTask",
    "MissingBrowserError",
    "build",
    "chromium",
    "family",
    "graph",
    "missing",
    "read_action",
    "score",
    "solved",
    "tasks",
    "worlds",
]
