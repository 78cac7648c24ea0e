"""Depth first: follow the best thought, drop what falls below a threshold, go back to the next best.

Tree of Thoughts DFS (Yao et al. 2023, algorithm 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langgraph_amc.search.tree import (
    Move,
    Tree,
    affordable,
    check_limits,
    check_number,
    check_room,
    check_sizes,
    closing,
)


@dataclass(frozen=True, slots=True)
class DepthFirst:
    """See `dfs`."""

    branches: int
    threshold: float
    answers: int
    depth: int | None
    steps: int
    thoughts: int | None

    def __post_init__(self) -> None:
        check_sizes("dfs", branches=self.branches, answers=self.answers, steps=self.steps)
        check_limits("dfs", depth=self.depth, thoughts=self.thoughts)
        check_room("dfs", self.thoughts, self.branches + 1)
        check_number("dfs(threshold=…)", self.threshold, lambda x: True, "a finite number in units of reward")

    @property
    def _most(self) -> int | None:
        """Thoughts that may be tried before the last one, which runs to its end."""
        return None if self.thoughts is None else self.thoughts - 1

    @property
    def first(self) -> int:
        return self.branches

    @property
    def at_once(self) -> int:
        return self.branches

    @property
    def needs_values(self) -> bool:
        return True

    def decide(self, tree: Tree[Any]) -> Move:
        found = [i for i in tree.having("ended") if tree.rank(i)[0] >= self.threshold]
        if len(found) >= self.answers:
            return Move()
        standing = tree.having("open")
        good = [i for i in standing if tree.rank(i)[0] >= self.threshold]
        poor = [i for i in standing if i not in good]
        spare = tree.best(poor)  # all that is left to answer with if nothing better is found
        cut = tuple(i for i in poor if i != spare)
        if not good or affordable(tree, self._most, self.branches) == 0:
            return Move(cut, finish=closing(tree, self.thoughts).finish)
        last = tree.nodes[good[-1]].parent  # the thoughts tried last are the first to be followed
        best = tree.best([i for i in good if tree.nodes[i].parent == last])
        assert best is not None
        if self.depth is not None and tree.depth(best) >= self.depth:
            return Move(cut, finish=(best,))
        return Move(cut, expand=(best,))

    def learn(self, tree: Tree[Any], reached: Sequence[int]) -> None:
        pass


def dfs(
    branches: int = 3,
    threshold: float = 0.5,
    *,
    answers: int = 1,
    depth: int | None = None,
    steps: int = 1,
    thoughts: int | None = 64,
) -> DepthFirst:
    """Tree of Thoughts, depth first: the best of `branches` thoughts is followed; below the threshold none is.

    Parameters
    ----------
    threshold: a state worth less (reward so far plus V) is given up, and the search goes back to the next best thought
        tried last. Where nothing is left and nothing has ended, the best of those given up runs to its end.
    answers: runs that have ended worth the threshold or more (their reward where it is observed, else V of their last
        state) after which the search ends.
    depth: below it a run goes on to its end alone.
    steps: agent steps (boundaries) that make one thought.
    thoughts: how many are tried at most.
    """
    return DepthFirst(branches, threshold, answers, depth, steps, thoughts)
