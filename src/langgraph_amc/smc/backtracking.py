"""Going back: a resampling may branch an earlier state of any lineage, discounted by its age.

Fleet of Agents (Klein et al. 2024) resamples from the states of the last steps, each weighed by value·discount^age.
Here the value is the weight of the filter itself at the check where the state was weighed. It is a way to search:
states are weighed again and again, so the weights estimate no evidence and the `sample` objective refuses it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from langgraph_amc.checks import is_number, is_whole
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc.events import Past
from langgraph_amc.smc.live import Live
from langgraph_amc.smc.weights import Floats

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Backtrack:
    """How a resampling may go back.

    Attributes
    ----------
    discount: in (0, 1): the weight of an earlier state is multiplied by it for every boundary it lies back.
    most: how many earlier states are remembered; those of the smallest weight are forgotten first.
    """

    discount: float = 0.9
    most: int = 32

    def __post_init__(self) -> None:
        if not (is_number(self.discount) and 0 < self.discount < 1):
            raise ConfigurationError(f"backtrack needs a discount between 0 and 1, got {self.discount!r}.")
        if not is_whole(self.most, 1):
            raise ConfigurationError(f"backtrack(most=…) is a whole number of at least 1, got {self.most!r}.")

    def log_weights(self, pool: Sequence[Past[Any]], sharpness: float, boundary: int) -> Floats:
        """Discounted log-weights [m] of earlier states at a boundary; a state weighed right there has none (−inf)."""
        age = np.array([boundary - past.boundary for past in pool], dtype=np.float64)
        weights = np.array([past.log_base + sharpness * past.growth for past in pool], dtype=np.float64)
        return np.where(age > 0, weights + age * math.log(self.discount), -np.inf)

    def kept(self, pool: Sequence[Past[P]], sharpness: float, boundary: int) -> tuple[list[Past[P]], list[Past[P]]]:
        """What of a pool is remembered, in order, and what is forgotten."""
        age = np.array([boundary - past.boundary for past in pool], dtype=np.float64)
        worth = np.array([past.log_base + sharpness * past.growth for past in pool]) + age * math.log(self.discount)
        best = set(np.argsort(-worth, kind="stable")[: self.most].tolist())
        kept = [past for i, past in enumerate(pool) if i in best]
        return kept, [past for i, past in enumerate(pool) if i not in best]


def backtrack(discount: float = 0.9, most: int = 32) -> Backtrack:
    """Let resampling go back to earlier states, each discounted for every boundary it lies back (FoA)."""
    return Backtrack(discount, most)


def as_live(pool: Sequence[Past[P]]) -> Live[P]:
    """Earlier states as rows from which particles can be branched."""
    return Live(
        [past.particle for past in pool],
        np.array([past.log_base for past in pool]),
        np.array([past.potential - past.growth for past in pool]),
        np.array([past.growth for past in pool]),
        np.array([past.seen for past in pool]),
        np.array([past.boundary for past in pool], dtype=np.int64),
    )
