"""The particles that can still run, with what the filter knows of each: one column per quantity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.smc.events import FilterState, Final, Past
from langgraph_amc.smc.weights import Floats

P = TypeVar("P")
Ints = NDArray[np.int64]


@dataclass(slots=True)
class Live(Generic[P]):
    """Columns [n] as in `FilterState`; the filter writes into them."""

    particles: list[P]
    log_base: Floats
    baseline: Floats
    growth: Floats
    seen: Floats
    checked: Ints

    @classmethod
    def of(cls, state: FilterState[P]) -> Live[P]:
        """Those of a state, as columns of their own."""
        return cls(
            list(state.live),
            np.array(state.log_base, dtype=np.float64),
            np.array(state.baseline, dtype=np.float64),
            np.array(state.growth, dtype=np.float64),
            np.array(state.seen, dtype=np.float64),
            np.array(state.checked, dtype=np.int64),
        )

    def state(self, boundary: int, finals: Sequence[Final[P]], pool: Sequence[Past[P]]) -> FilterState[P]:
        """Where a filter stands with these."""
        return FilterState(
            boundary,
            tuple(self.particles),
            tuple(finals),
            tuple(self.log_base.tolist()),
            tuple(self.baseline.tolist()),
            tuple(self.growth.tolist()),
            tuple(self.seen.tolist()),
            tuple(self.checked.tolist()),
            pool=tuple(pool),
        )

    def __len__(self) -> int:
        return len(self.particles)

    def take(self, index: NDArray[np.intp] | Ints) -> Live[P]:
        """The rows [k] at `index`."""
        return Live(
            [self.particles[i] for i in index],
            self.log_base[index],
            self.baseline[index],
            self.growth[index],
            self.seen[index],
            self.checked[index],
        )


def joined(one: Live[P], other: Live[P]) -> Live[P]:
    """The rows of both."""
    return Live(
        [*one.particles, *other.particles],
        np.concatenate([one.log_base, other.log_base]),
        np.concatenate([one.baseline, other.baseline]),
        np.concatenate([one.growth, other.growth]),
        np.concatenate([one.seen, other.seen]),
        np.concatenate([one.checked, other.checked]),
    )
