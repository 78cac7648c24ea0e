"""Monte Carlo tree search: UCT over checkpoints (Kocsis & Szepesvári 2006), as RAP and LATS use it with agents.

One round: from the root down, the child with the highest Q + c·√(ln n_parent / n) until a state that has not been
followed up; k thoughts are tried from it; each is evaluated, by V where it stands (LATS, Zhou et al. 2024) or by
running a copy to its end (RAP, Hao et al. 2023); and what is found counts for all states on the way back. What has
ended is evaluated once, with its reward only where that is observed when serving: subtrees of which every run has ended
are closed, and not visited again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langgraph_amc.errors import ConfigurationError
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

Backup = Literal["mean", "max"]
Evaluate = Literal["value", "rollout"]


@dataclass(frozen=True, slots=True)
class MCTS:
    """See `mcts`."""

    branches: int
    thoughts: int
    exploration: float
    backup: Backup
    evaluate: Evaluate
    depth: int | None
    steps: int

    def __post_init__(self) -> None:
        check_sizes("mcts", branches=self.branches, thoughts=self.thoughts, steps=self.steps)
        check_limits("mcts", depth=self.depth)
        check_room("mcts", self.thoughts, self.branches + 1)
        check_number("mcts(exploration=…)", self.exploration, lambda c: c >= 0, "a number of at least 0")
        if self.backup not in ("mean", "max"):
            raise ConfigurationError(f"mcts(backup=…) is 'mean' or 'max', got {self.backup!r}")
        if self.evaluate not in ("value", "rollout"):
            raise ConfigurationError(f"mcts(evaluate=…) is 'value' or 'rollout', got {self.evaluate!r}")

    @property
    def first(self) -> int:
        return self.branches

    @property
    def at_once(self) -> int:
        return self.branches

    @property
    def needs_values(self) -> bool:
        return self.evaluate == "value"

    def decide(self, tree: Tree[Any]) -> Move:
        leaf = self._select(tree)
        if leaf is None:
            return Move()
        rolls = self.evaluate == "rollout" and tree.nodes[leaf].visits == 0
        if affordable(tree, self.thoughts - 1, 1 if rolls else self.branches) == 0:
            return closing(tree, self.thoughts)
        if rolls:
            return Move(rollout=(leaf,))
        if self.depth is not None and tree.depth(leaf) >= self.depth:
            return Move(finish=(leaf,))
        return Move(expand=(leaf,))

    def learn(self, tree: Tree[Any], reached: Sequence[int]) -> None:
        counted = ("ended",) if self.evaluate == "rollout" else ("ended", "open")
        for i in reached:
            node = tree.nodes[i]
            if node.status in counted and not math.isnan(node.worth):
                backed_up(tree, i, node.worth)

    def _select(self, tree: Tree[Any]) -> int | None:
        """The state to follow up: down the tree by UCT; None where everything has ended."""
        inside: dict[int, list[int]] = {}
        alive = [False] * len(tree)
        for i in range(len(tree) - 1, -1, -1):  # children come after their parents
            node = tree.nodes[i]
            alive[i] = alive[i] or node.status == "open"
            if alive[i] and node.parent is not None:
                alive[node.parent] = True
                inside.setdefault(node.parent, []).append(i)
        at = 0
        while alive[at] and tree.nodes[at].status == "expanded":
            at = max(inside[at], key=lambda i: self._score(tree, i))
        return at if alive[at] else None

    def _score(self, tree: Tree[Any], i: int) -> tuple[float, tuple[float, int]]:
        """UCT; what has not been visited comes first, the most worthy of it before the others."""
        node = tree.nodes[i]
        assert node.parent is not None
        if not node.visits:
            return math.inf, tree.rank(i)
        q = node.best if self.backup == "max" else node.total / node.visits
        spread = math.sqrt(math.log(max(1, tree.nodes[node.parent].visits)) / node.visits)
        return q + self.exploration * spread, tree.rank(i)


def backed_up(tree: Tree[Any], i: int, worth: float) -> None:
    """Count an evaluation for a state and for all before it."""
    for k in tree.path(i):
        node = tree.nodes[k]
        tree.put(k, visits=node.visits + 1, total=node.total + worth, best=max(node.best, worth))


def mcts(
    branches: int = 3,
    thoughts: int = 64,
    *,
    exploration: float = 0.5,
    backup: Backup = "mean",
    evaluate: Evaluate = "value",
    depth: int | None = None,
    steps: int = 1,
) -> MCTS:
    """Monte Carlo tree search by UCT.

    Parameters
    ----------
    branches: thoughts that are tried from a state, once, when it is followed up.
    thoughts: how many are tried in all, a run to the end counting as one. The last ones are for the best states that
        still stand, if they promise more than what has ended.
    exploration: c of UCT, in units of reward.
    backup: what a state is worth to UCT: the mean of all evaluations behind it, or their maximum.
    evaluate: "value": V of each new state. "rollout": a copy runs to its end, and what it is worth counts, its reward
        where it is observed, else V of its last state; of states that were not visited yet the best by V is first.
    depth: below it a run goes on to its end alone.
    steps: agent steps (boundaries) that make one thought.

    Runs that have ended get the weight Π n(s)/Σ n(siblings) along their way, so that ``select="argmax"`` answers by
    visits; the default answers by reward or value.
    """
    return MCTS(branches, thoughts, exploration, backup, evaluate, depth, steps)
