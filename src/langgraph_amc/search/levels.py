"""Breadth first: a level of thoughts at a time, of which the best are kept.

`bfs` is Tree of Thoughts BFS (Yao et al. 2023, algorithm 1): at each level every kept state is followed by k thoughts,
all are valued (or voted on, with a value function that votes), the b best are kept. `beam` is the same with the rule
of beam search for ends: a run that has ended keeps its slot as long as it is among the b best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langgraph_amc.search.tree import Move, Tree, affordable, check_limits, check_room, check_sizes


@dataclass(frozen=True, slots=True)
class Levels:
    """See `bfs` and `beam`."""

    branches: int
    width: int
    depth: int | None
    steps: int
    thoughts: int | None
    holds: bool
    """Whether a run that has ended holds a slot."""

    def __post_init__(self) -> None:
        name = "beam" if self.holds else "bfs"
        check_sizes(name, branches=self.branches, width=self.width, steps=self.steps)
        check_limits(name, depth=self.depth, thoughts=self.thoughts)
        check_room(name, self.thoughts, self.first + self.width)

    @property
    def first(self) -> int:
        return max(self.branches, self.width)

    @property
    def at_once(self) -> int:
        return max(self.first, self.branches * self.width)

    @property
    def needs_values(self) -> bool:
        return True

    def decide(self, tree: Tree[Any]) -> Move:
        level = tree.having("open")
        compared = [*level, *tree.having("ended")] if self.holds else level
        kept = sorted(compared, key=tree.rank, reverse=True)[: self.width]
        kept = [i for i in kept if i in level]
        cut = tuple(i for i in level if i not in kept)
        if not kept:
            return Move(cut)
        # what is kept in the end is run to its end, which is a thought each
        can = affordable(tree, None if self.thoughts is None else self.thoughts - self.width, self.branches)
        deep = [i for i in kept if can == 0 or (self.depth is not None and tree.depth(i) >= self.depth)]
        more = [i for i in kept if i not in deep][:can]  # where thoughts run out within a level the best of it go on
        lost = [i for i in kept if i not in deep and i not in more]
        return Move((*cut, *lost), expand=tuple(more), finish=tuple(deep))

    def learn(self, tree: Tree[Any], reached: Sequence[int]) -> None:
        pass


def bfs(
    branches: int = 4,
    width: int = 2,
    *,
    depth: int | None = None,
    steps: int = 1,
    thoughts: int | None = None,
) -> Levels:
    """Tree of Thoughts, breadth first: of each level's thoughts the `width` best are followed by `branches` each.

    Parameters
    ----------
    branches, width: k and b of the paper. The first level has as many thoughts as the larger of the two.
    depth: levels of the tree; what is kept there runs on to its end. None: until all have ended.
    steps: agent steps (boundaries) that make one thought.
    thoughts: how many are tried at most, the runs to the end of what is kept included.
    """
    return Levels(branches, width, depth, steps, thoughts, holds=False)


def beam(
    width: int = 4,
    branches: int = 2,
    *,
    depth: int | None = None,
    steps: int = 1,
    thoughts: int | None = None,
) -> Levels:
    """Beam search: the `width` best by value go on, `branches` copies of each, chosen without any chance.

    A run that has ended competes with the others and keeps its slot, so that the search ends when the best `width` have
    all ended. Parameters are those of `bfs`.
    """
    return Levels(branches, width, depth, steps, thoughts, holds=True)
