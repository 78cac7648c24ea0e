"""Searches on the same particles: Tree of Thoughts (`bfs`, `dfs`), `beam`, `mcts`, and `foa`, a preset of AMC.

A strategy looks at the tree of states and says which go on; `tree_search` does it with any `smc.Population`, and tells
it in the filter's events. NumPy and the standard library only.
"""

from langgraph_amc.search.depth import DepthFirst, dfs
from langgraph_amc.search.fleet import Preset, foa
from langgraph_amc.search.levels import Levels, beam, bfs
from langgraph_amc.search.montecarlo import MCTS, mcts
from langgraph_amc.search.parsing import parse_searches
from langgraph_amc.search.run import tree_search
from langgraph_amc.search.tree import Move, SearchError, Tree, TreeSearch

__all__ = [
    "MCTS",
    "DepthFirst",
    "Levels",
    "Move",
    "Preset",
    "SearchError",
    "Tree",
    "TreeSearch",
    "beam",
    "bfs",
    "dfs",
    "foa",
    "mcts",
    "parse_searches",
    "tree_search",
]
