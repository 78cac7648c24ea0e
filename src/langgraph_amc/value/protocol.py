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

        NaN marks a score that is *missing*; a run that needs it ends with a `ScoreError`, never with a 0.
        """
        ...


@runtime_checkable
class SoftValueFunction(ValueFunction, Protocol):
    """A value function that also knows the exact soft value."""

    def soft_score(self, transcripts: Sequence[Segments], beta: float) -> FloatArray:
        """β·log E[exp(R/β)] of each state, shape ``[n]``, in units of reward."""
        ...


ScoreCallable = Callable[[Sequence[Segments]], Sequence[float]]
