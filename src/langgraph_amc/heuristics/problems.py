"""Problems whose heuristics are priority functions: what the function is told, and how well it does.

A problem calls the function through its sandbox, one decision at a time, with numbers that are known at that moment:
an online problem stays online, whatever the function tries. It scores what was decided, by itself, from decisions that
it has checked; so a function cannot claim a score, only earn it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from langgraph_amc.heuristics.errors import HeuristicFailure


class Priorities(Protocol):
    """A function that is called with many lists of arguments at a time; a `SandboxedFunction` is one."""

    def map(self, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """What it returns for each."""
        ...


class Problem(Protocol):
    """A problem and its instances."""

    @property
    def name(self) -> str:
        """For files and reports."""
        ...

    @property
    def about(self) -> str:
        """What is to be done, in the words that a model is told."""
        ...

    @property
    def function(self) -> str:
        """The function's name."""
        ...

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of what it takes."""
        ...

    @property
    def meaning(self) -> str:
        """What the arguments are, in the words that a model is told."""
        ...

    @property
    def known(self) -> str:
        """Source of a well-known heuristic to compare with; no model is shown it."""
        ...

    def instances(self, seed: int, count: int) -> tuple[Any, ...]:
        """Instances that are a function of the seed."""
        ...

    def score(self, function: Priorities, instance: Any) -> float:
        """How well it does on one instance; higher is better. Raises HeuristicFailure."""
        ...


@dataclass(frozen=True, slots=True)
class BinPacking:
    """Online bin packing: each item goes into a bin before the next is seen.

    Items are Weibull (scale 45, shape 3) and bins hold 100, as in FunSearch (Romera-Paredes et al., Nature 2024) and
    EoH (Liu et al., ICML 2024). The score is minus the share of bins above the lower bound, the items' sum by the
    capacity; best fit has about -0.04 at 500 items.
    """

    items: int = 250
    capacity: int = 100
    name: str = "bin-packing"
    about: str = (
        "Online bin packing: items arrive one by one, and each must at once be put into a bin that has room for it, so "
        "that in the end as few bins as possible are used. For each bin that the item fits into, and for a new one, "
        "the function returns a priority; the item goes into the bin with the highest."
    )
    function: str = "priority"
    arguments: tuple[str, ...] = ("item", "room")
    meaning: str = "item: the item's size, 1 to 100. room: what is free in the bin before it, item to 100."
    known: str = "def priority(item, room):\n    return item - room\n"  # best fit

    def instances(self, seed: int, count: int) -> tuple[tuple[int, ...], ...]:
        """Sizes of the items, in the order in which they come."""
        rng = np.random.default_rng([seed, self.items])
        sizes = np.clip(np.rint(45 * rng.weibull(3, size=(count, self.items))), 1, self.capacity).astype(int)
        return tuple(tuple(int(size) for size in row) for row in sizes)

    def score(self, function: Priorities, instance: Sequence[int]) -> float:
        """Minus the share of bins above the lower bound."""
        rooms: list[int] = []
        for item in instance:
            choices = sorted({room for room in rooms if room >= item} | {self.capacity})
            room = choices[_best(function, [(item, room) for room in choices])]
            if room in rooms:
                rooms[rooms.index(room)] -= item
            else:
                rooms.append(self.capacity - item)
        least = math.ceil(sum(instance) / self.capacity)
        return -(len(rooms) - least) / least


@dataclass(frozen=True, slots=True)
class Tour:
    """The travelling salesman, built node by node, on uniform points of the unit square.

    The score is minus the tour's length over 0.7124 sqrt(n), what the best tour comes to for large n (Beardwood,
    Halton and Hammersley 1959; Johnson and McGeoch 1996). The nearest neighbour has about -1.3.
    """

    nodes: int = 50
    name: str = "tour"
    about: str = (
        "The travelling salesman problem: a tour through all points of the unit square is built step by step, and "
        "shall be short. For each point that was not visited yet the function returns a priority; the tour goes on "
        "to the one with the highest, and at the end back to the start."
    )
    function: str = "priority"
    arguments: tuple[str, ...] = ("step", "home", "rest", "left")
    meaning: str = (
        "step: distance from where the tour is to the point. home: distance from the point to the start. rest: mean "
        "distance from the point to the other unvisited points. left: share of the points that are unvisited."
    )
    known: str = "def priority(step, home, rest, left):\n    return -step\n"  # the nearest neighbour

    def instances(self, seed: int, count: int) -> tuple[Any, ...]:
        """Points [nodes, 2] each."""
        return tuple(np.random.default_rng([seed, self.nodes]).random((count, self.nodes, 2)))

    def score(self, function: Priorities, instance: Any) -> float:
        """Minus the length, in units of what a best tour comes to."""
        distances = np.linalg.norm(instance[:, None] - instance[None, :], axis=-1)
        todo, at, length = list(range(1, len(instance))), 0, 0.0
        while todo:
            among = distances[np.ix_(todo, todo)].sum(axis=1) / max(1, len(todo) - 1)
            left = len(todo) / len(instance)
            rows = [(distances[at, k], distances[k, 0], rest, left) for k, rest in zip(todo, among, strict=True)]
            chosen = todo.pop(_best(function, [[round(float(x), 6) for x in row] for row in rows]))
            length += float(distances[at, chosen])
            at = chosen
        return -(length + float(distances[at, 0])) / (0.7124 * math.sqrt(len(instance)))


def _best(function: Priorities, rows: Sequence[Sequence[Any]]) -> int:
    """The row with the highest priority, the first of equals."""
    found = [_priority(value) for value in function.map(rows)]
    return max(range(len(found)), key=found.__getitem__)


def _priority(value: Any) -> float:
    with contextlib.suppress(OverflowError):  # of a whole number that no float holds
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    raise HeuristicFailure("invalid", f"{value!r:.60} is no priority: return a finite number")


PROBLEMS: dict[str, Problem] = {problem.name: problem for problem in (BinPacking(), Tour())}
"""By name, for the command line."""
