"""What a value function is: V(s), the expected future return of a state, given its transcript.

V predicts what is still to come (AMC, section on the twisted target): an absorbing particle has V = 0 once
its outcome is known. At a finished state whose outcome is not observable, the score estimates that outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.trajectories.types import Segments

FloatArray = NDArray[np.float64]


@runtime_checkable
class ValueFunction(Protocol):
    """Scores states; batched."""

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """Expected future return of each state, shape ``[n]``, in units of reward.

        NaN marks a score that is *missing*, never a 0: its particle keeps its weight relative to the others' mean. A
        run in which every score is missing ends with a `ScoreError`.
        """
        ...


@runtime_checkable
class SoftValueFunction(ValueFunction, Protocol):
    """A value function that also knows the exact soft value."""

    def soft_score(self, transcripts: Sequence[Segments], beta: float) -> FloatArray:
        """β·log E[exp(R/β)] of each state, shape ``[n]``, in units of reward."""
        ...


@runtime_checkable
class SupportsUncertainty(Protocol):
    """A value function that knows how far the differences of its scores can be trusted."""

    def uncertainty(self, step: int) -> float:
        """Standard deviation of the error of `score` among states of one task at a step; NaN where it is not known.

        In units of reward. Where the scores of the particles spread by less, nothing is resampled.
        """
        ...


ScoreCallable = Callable[[Sequence[Segments]], Sequence[float]]
