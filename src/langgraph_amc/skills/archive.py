"""Candidates that are best on some tasks (a Pareto front over tasks), whether the gate took them or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.skills.types import Proposal

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Entry:
    """A candidate that was measured on all validation tasks.

    Attributes
    ----------
    library: digest of what it was. proposal: what made it out of the champion, ``None`` for the start.
    rewards: mean by task [tasks], NaN where missing. difference: to the champion that it was compared with.
    """

    library: str
    proposal: Proposal | None
    rewards: Floats
    difference: float = 0.0

    @property
    def mean(self) -> float:
        """Over the tasks that have a reward."""
        return float(np.nanmean(self.rewards)) if not np.isnan(self.rewards).all() else float("nan")


def front(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Those that no other equals or beats on every task while beating it on one; of equals, the first."""
    if not entries:
        return ()
    rows = np.where(np.isnan([e.rewards for e in entries]), -np.inf, [e.rewards for e in entries])

    def beaten(i: int) -> bool:
        at_least = (rows >= rows[i]).all(axis=1)
        above = (rows > rows[i]).any(axis=1)
        return any(at_least[j] and (above[j] or j < i) for j in range(len(rows)) if j != i)

    return tuple(entry for i, entry in enumerate(entries) if not beaten(i))


def best_on(entries: Sequence[Entry]) -> tuple[int, ...]:
    """For each entry, on how many tasks none of the others is better."""
    if not entries:
        return ()
    rows = np.where(np.isnan([e.rewards for e in entries]), -np.inf, [e.rewards for e in entries])
    return tuple(int(n) for n in (rows >= rows.max(axis=0)).sum(axis=1))
