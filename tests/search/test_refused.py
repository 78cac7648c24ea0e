"""What a search is given wrongly, and strategies of one's own that move wrongly: refused with a reason, all pruned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import langgraph_amc as amc
from langgraph_amc.search import Move, SearchError, Tree, beam, bfs, dfs, foa, mcts, parse_searches
from tests.runtime.support import agent, by_hash, seeded

from .worlds import Walkers, World, searched


@dataclass(frozen=True)
class Own:
    """A strategy whose every move a test decides."""

    move: Callable[[Tree[Any]], Any]
    branches: Any = 2
    first: Any = 2
    steps: Any = 1
    at_once: Any = 2
    needs_values: bool = True

    def decide(self, tree: Tree[Any]) -> Any:
        return self.move(tree)

    def learn(self, tree: Tree[Any], reached: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (lambda tree: None, "returns a Move"),
        (lambda tree: Move(expand=(99,)), "99, which is no state that stands open"),
        (lambda tree: Move(expand=(-1,)), "-1, which is no state that stands open"),
        (lambda tree: Move(finish=(0,)), "0, which is no state that stands open"),
        (lambda tree: Move(expand=(1.0,)), "1.0, which is no state"),
        (lambda tree: Move(cut=(True,)), "True, which is no state"),
        (lambda tree: Move(expand=(1, 1)), "1 twice"),
        (lambda tree: Move(cut=(1,), rollout=(1,)), "1 twice"),
        (lambda tree: Move(), "no answer"),
        (lambda tree: Move(cut=tuple(tree.having("open"))), "no answer"),
    ],
)
def test_a_move_that_cannot_be_made_is_an_error_that_says_so(move: Callable[[Tree[Any]], Any], message: str) -> None:
    walkers = Walkers(World(depth=3), lambda path: 0.5)
    with pytest.raises(SearchError, match=message):
        searched(walkers, Own(move))
    assert walkers.born
    assert all(w.pruned for w in walkers.born)


@pytest.mark.parametrize("size", ["branches", "first", "steps", "at_once"])
@pytest.mark.parametrize("given", [0, None, "2", 1.0])
def test_the_sizes_of_a_strategy_of_ones_own_are_checked(size: str, given: Any) -> None:
    own = Own(lambda tree: Move(), **{size: given})
    with pytest.raises(amc.ConfigurationError, match=f"Own\\({size}"):
        amc.wrap(agent(seeded(2)), search=own, value=by_hash)


@pytest.mark.parametrize(
    ("search", "size"),
    [
        *((search, size) for search in (bfs, beam) for size in ("branches", "width", "steps")),
        *((dfs, size) for size in ("branches", "answers", "steps")),
        *((mcts, size) for size in ("branches", "thoughts", "steps")),
        (foa, "particles"),
    ],
)
def test_none_is_no_size(search: Callable[..., Any], size: str) -> None:
    with pytest.raises(amc.ConfigurationError, match=f"{search.__name__}\\({size}=…\\) is a whole number"):
        search(**{size: None})


def test_none_is_no_limit() -> None:
    assert bfs(depth=None, thoughts=None) == bfs()
    assert dfs(depth=None, thoughts=None).thoughts is None
    assert mcts(depth=None) == mcts()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("()", "it names none"),
        ("mcts(thoughts=nan)", "'nan' is no number"),
        ("mcts(evaluate=rollout)", "'rollout' is no number, and no text in quotation marks"),
        ("bfs(10**9)", r"'10 \*\* 9' is no number"),
        ("bfs(*[1])", r"'\*\[1\]' is no number"),
        ("bfs(**{})", r"has \*\* in it"),
        ("bfs(branches=2, branches=3)", "branches= is there twice"),
    ],
)
def test_what_cannot_be_read_is_said_in_the_users_words(text: str, message: str) -> None:
    with pytest.raises(amc.ConfigurationError, match=message) as caught:
        parse_searches(text)
    assert "object at 0x" not in str(caught.value)
