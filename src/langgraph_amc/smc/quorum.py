"""Not waiting for stragglers: a check goes on with those that have arrived, once they are enough and time is up.

A late particle keeps its weight and is neither scored nor resampled; those that have arrived are resampled among
themselves, to equal weights of the same total. That leaves E[Σ w·f] as it is, also where being late goes with
being good or bad: given everything that is known when the check goes on, the arrived group's total is unbiased
for its own future, and the late ones are left as they are. What it takes is that an agent's next steps do not
depend on the clock. (Only dropping the late ones would be a bias; at the end of a run all are waited for.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from langgraph_amc.checks import is_number
from langgraph_amc.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Quorum:
    """When a check goes on without those that are still on their way.

    Attributes
    ----------
    share: of the particles that can still run, in (0, 1]: so many must have arrived.
    patience: how many times the median time of those that have arrived is waited, from the start of the segment.
    seconds: waited at least, whatever the median says.
    """

    share: float = 0.8
    patience: float = 2.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not (is_number(self.share) and 0 < self.share <= 1):
            raise ConfigurationError(f"quorum is a share of the particles in (0, 1], as in 0.8, got {self.share!r}.")
        if not (is_number(self.patience) and self.patience >= 1):
            raise ConfigurationError(f"quorum(patience=…) is a finite multiple of at least 1, got {self.patience!r}.")
        if not (is_number(self.seconds) and self.seconds >= 0):
            raise ConfigurationError(f"quorum(seconds=…) is a finite number of at least 0, got {self.seconds!r}.")

    def goes_on_after(self, took: Sequence[float], n: int) -> float | None:
        """Seconds after its start at which a segment of n particles ends, given the times of those that arrived.

        None while they are too few; the time may lie in the past.
        """
        if len(took) < math.ceil(self.share * n - 1e-9):
            return None
        return max(self.patience * float(np.median(took)), self.seconds)


def quorum(share: float = 0.8, patience: float = 2.0, seconds: float = 0.0) -> Quorum:
    """Go on without stragglers once `share` has arrived and `patience` times their median time is over."""
    return Quorum(share, patience, seconds)
