"""The tree of a search: states and what is known of them, and the moves by which it grows.

The tree is plain data (`smc.TreeNode`), so that a run that was broken off goes on from it; a strategy keeps nothing
of its own and answers the same question with the same move.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from langgraph_amc.checks import check_whole, is_number, is_whole
from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.smc.nodes import TreeNode

P = TypeVar("P")


class SearchError(AMCError):
    """A strategy that made a move which cannot be made, or that ended a search without an answer."""


class Tree(Generic[P]):
    """States in order of birth; index 0 is the root."""

    def __init__(self, nodes: Iterable[TreeNode[P]]) -> None:
        self.nodes = list(nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def add(self, parent: int, particle: P, boundary: int | None) -> int:
        """The index of a new state that its particle is on its way to."""
        self.nodes.append(TreeNode(particle, parent, boundary))
        return len(self.nodes) - 1

    def put(self, i: int, **known: Any) -> None:
        """Note what is known of a state."""
        self.nodes[i] = replace(self.nodes[i], **known)

    def having(self, *status: str) -> list[int]:
        """States in one of these conditions."""
        return [i for i, node in enumerate(self.nodes) if node.status in status]

    def children(self, i: int) -> list[int]:
        """States that follow a state directly."""
        return [k for k in range(i + 1, len(self.nodes)) if self.nodes[k].parent == i]

    def path(self, i: int) -> list[int]:
        """From a state up to the root, both included."""
        line = [i]
        while (parent := self.nodes[line[-1]].parent) is not None:
            line.append(parent)
        return line

    def depth(self, i: int) -> int:
        """Thoughts from the root."""
        return len(self.path(i)) - 1

    def rank(self, i: int) -> tuple[float, int]:
        """Sorts states by what they are worth, the earlier one first among equals; missing is worst."""
        worth = self.nodes[i].worth
        return (-math.inf if math.isnan(worth) else worth, -i)

    def best(self, among: Sequence[int]) -> int | None:
        """The most worthy of some states."""
        return max(among, key=self.rank, default=None)

    @property
    def thoughts(self) -> int:
        """How many have been tried."""
        return len(self.nodes) - 1


@dataclass(frozen=True, slots=True)
class Move:
    """How a tree grows next: indices of open states; nothing to expand, finish or roll out ends the search.

    Attributes
    ----------
    cut: given up.
    expand: followed by as many children as the strategy has branches.
    finish: run on to the end, alone.
    rollout: copied, and the copy run to the end; the state stays open.
    """

    cut: tuple[int, ...] = ()
    expand: tuple[int, ...] = ()
    finish: tuple[int, ...] = ()
    rollout: tuple[int, ...] = ()

    @property
    def grows(self) -> bool:
        return bool(self.expand or self.finish or self.rollout)


def checked_move(tree: Tree[Any], move: object) -> Move:
    """The move, if every state it names stands open and is named once; raises SearchError otherwise."""
    if not isinstance(move, Move):
        raise SearchError(f"TreeSearch.decide returns a Move, got {move!r}")
    named = [*move.cut, *move.expand, *move.finish, *move.rollout]
    standing = set(tree.having("open"))
    for i in named:
        if i not in standing or not is_whole(i):
            raise SearchError(
                f"TreeSearch.decide named {i!r}, which is no state that stands open: take them from tree.having('open')"
            )
        if named.count(i) > 1:
            raise SearchError(f"TreeSearch.decide named the state {i} twice: cut, expand, finish or roll it out")
    return move


@runtime_checkable
class TreeSearch(Protocol):
    """A strategy: which states are followed up. Made by `bfs`, `dfs`, `beam` and `mcts`; stateless."""

    @property
    def branches(self) -> int:
        """Children of a state."""
        ...

    @property
    def first(self) -> int:
        """Children of the root."""
        ...

    @property
    def steps(self) -> int:
        """Boundaries that a thought takes."""
        ...

    @property
    def at_once(self) -> int:
        """Particles that run at the same time, at most."""
        ...

    @property
    def needs_values(self) -> bool:
        """Whether states have to be told apart before their runs end."""
        ...

    def decide(self, tree: Tree[Any]) -> Move:
        """The next move; no state is pending."""
        ...

    def learn(self, tree: Tree[Any], reached: Sequence[int]) -> None:
        """Take note of states that have just been reached and evaluated."""
        ...


def closing(tree: Tree[Any], most: int | None = None) -> Move:
    """The last move: a state that promises more than any run that has ended is itself run to the end."""
    best = tree.best(tree.having("open"))
    ended = tree.best(tree.having("ended"))
    kept = ended is not None and best is not None and tree.rank(ended)[0] >= tree.rank(best)[0]
    if best is None or kept or (most is not None and tree.thoughts >= most):
        return Move()
    return Move(finish=(best,))


def affordable(tree: Tree[Any], most: int | None, cost: int) -> int | None:
    """How many moves of so many thoughts each `most` still allows; None: any number."""
    return None if most is None else max(0, most - tree.thoughts) // cost


def check_sizes(name: str, **given: object) -> None:
    """Raises ConfigurationError for what is no whole number of at least 1."""
    for argument, size in given.items():
        check_whole(f"{name}({argument}=…)", size, 1)


def check_limits(name: str, **given: int | None) -> None:
    """Raises ConfigurationError for what is no whole number of at least 1, and not None, which means no limit."""
    check_sizes(name, **{argument: size for argument, size in given.items() if size is not None})


def check_room(name: str, thoughts: int | None, least: int) -> None:
    """Raises ConfigurationError where the thoughts do not reach for the first level and an answer."""
    if thoughts is not None and thoughts < least:
        raise ConfigurationError(f"{name}(thoughts={thoughts}) ends before an answer: it needs at least {least}")


def check_number(name: str, value: float, good: Callable[[float], bool], what: str) -> None:
    """Raises ConfigurationError that says what the number has to be."""
    if not is_number(value) or not good(value):
        raise ConfigurationError(f"{name} is {what}, got {value!r}")
