"""Searches by their names, as on the command line: ``bfs, mcts(3, thoughts=90)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.search.depth import dfs
from langgraph_amc.search.fleet import Preset, foa
from langgraph_amc.search.levels import beam, bfs
from langgraph_amc.search.montecarlo import mcts
from langgraph_amc.search.tree import TreeSearch

_BY_NAME: Mapping[str, Callable[..., TreeSearch | Preset]] = {
    "beam": beam,
    "bfs": bfs,
    "dfs": dfs,
    "foa": foa,
    "mcts": mcts,
}


def parse_searches(text: str) -> dict[str, TreeSearch | Preset]:
    """The searches a text names, by what it calls them; nothing in it is evaluated.

    Raises ConfigurationError for anything else.
    """
    try:
        found = ast.parse(text.strip(), mode="eval").body
        parts = found.elts if isinstance(found, ast.Tuple) else [found]
        return {ast.unparse(part): _search(part, text) for part in parts}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise _unreadable(text, str(error)) from error


def _search(node: ast.expr, text: str) -> TreeSearch | Preset:
    call = ast.Call(node, [], []) if isinstance(node, ast.Name) else node
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _BY_NAME):
        raise _unreadable(text, f"{ast.unparse(node)!r} is not one of them")
    options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}  # None: ** is refused
    given: list[Any] = [ast.literal_eval(argument) for argument in call.args]
    return _BY_NAME[call.func.id](*given, **options)


def _unreadable(text: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"cannot read the searches {text!r}: {why}. Name bfs, dfs, beam, mcts or foa, with arguments where needed, as "
        "in 'bfs, mcts(3, thoughts=90)'"
    )
