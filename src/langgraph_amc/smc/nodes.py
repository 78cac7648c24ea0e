"""What a state in the tree of a search is to those who listen and to a journal: plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

P = TypeVar("P")
NodeStatus = Literal["pending", "open", "expanded", "ended", "failed", "cut"]


@dataclass(frozen=True, slots=True)
class TreeNode(Generic[P]):
    """A state in the tree of a search (`langgraph_amc.search`); parents come before children.

    Attributes
    ----------
    particle: who came here, or is on its way; None at a root that nobody has left yet. The first child of a state
        goes on in the same particle.
    parent: index of the state it follows; None for the root.
    boundary: where it is, or is to be; None: at the end of the run.
    status: "pending" (its particle is on its way), "open" (it stands there), "expanded", "ended", "failed" or "cut".
    seen: V's score there, NaN where there is none.
    worth: reward so far and to come; what the run was worth where it has ended, NaN if that is missing.
    visits, total, best: how many evaluations of it and of what follows it there were, their sum and their maximum.
    """

    particle: P | None
    parent: int | None
    boundary: int | None
    status: NodeStatus = "pending"
    seen: float = math.nan
    worth: float = math.nan
    visits: int = 0
    total: float = 0.0
    best: float = -math.inf
