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
        if not parts:
            raise _unreadable(text, "it names none")
        return {ast.unparse(part): _search(part, text) for part in parts}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise _unreadable(text, str(error)) from error


def _search(node: ast.expr, text: str) -> TreeSearch | Preset:
    call = ast.Call(node, [], []) if isinstance(node, ast.Name) else node
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _BY_NAME):
        raise _unreadable(text, f"{ast.unparse(node)!r} is not one of them")
    names = [keyword.arg for keyword in call.keywords]
    if None in names:
        raise _unreadable(text, f"{ast.unparse(node)!r} has ** in it")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _unreadable(text, f"{twice}= is there twice")
    options = {str(keyword.arg): _plain(keyword.value, text) for keyword in call.keywords}
    given = [_plain(argument, text) for argument in call.args]
    return _BY_NAME[call.func.id](*given, **options)


def _plain(node: ast.expr, text: str) -> Any:
    """A number, a text or None, as it is written."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _unreadable(text, f"{ast.unparse(node)!r} is no number, and no text in quotation marks") from None


def _unreadable(text: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"cannot read the searches {text!r}: {why}. Name bfs, dfs, beam, mcts or foa, with arguments where needed, as "
        "in 'bfs, mcts(3, thoughts=90)'"
    )
