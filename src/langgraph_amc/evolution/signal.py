"""Signal and noise of an update, from how well tasks agree on which directions are good.

C[p, t] is what pair p gained on task t: (R+ - R-) / 2, or the member's reward above the baseline. Its mean over tasks,
c_p, is the pair's coefficient. Products of different tasks' gains have no common noise, so

    signal = mean over p of the mean over t != t' of C[p, t] C[p, t']     (all split halves at once; can fall below 0)
    noise  = mean over p of the sample variance over t of C[p, t] / T

add up to mean c_p^2. Signal-to-noise ratio = max(signal, 0) / noise: at 1, half the variance of the coefficients comes
from the directions, and half is luck of sampling and choice of tasks. One task cannot disagree with itself: unknown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MEMORY = 0.7  # weight of the past in the trend: about three generations


@dataclass(frozen=True, slots=True)
class Signal:
    """Variance of the coefficients by source, in squared units of the reward; ``None`` where it cannot be told."""

    signal: float | None = None
    noise: float | None = None

    @property
    def ratio(self) -> float | None:
        """The signal-to-noise ratio of the update (module docstring); infinite if tasks agree perfectly."""
        if self.signal is None or self.noise is None:
            return None
        signal = max(self.signal, 0.0)
        if self.noise == 0:
            return math.inf if signal > 0 else 0.0
        return signal / self.noise


@dataclass(frozen=True, slots=True)
class Trend:
    """What past generations have shown: their sigma, and smoothed signal / sigma^2 and noise."""

    sigma: float | None = None
    slope: float | None = None
    noise: float | None = None

    def after(self, sigma: float, seen: Signal) -> Trend:
        """The trend with one more generation in it."""
        variance = sigma * sigma
        if seen.signal is None or seen.noise is None or variance == 0:
            return Trend(sigma, self.slope, self.noise)
        return Trend(sigma, _smooth(self.slope, seen.signal / variance), _smooth(self.noise, seen.noise))


def signal_of(gains: NDArray[np.float64]) -> Signal:
    """Signal and noise of gains [pairs, tasks]; NaN where missing. Pairs with one task are left out."""
    known = ~np.isnan(gains)
    counts = known.sum(axis=1)
    gains, known, counts = gains[counts > 1], known[counts > 1], counts[counts > 1]
    if not len(gains):
        return Signal()
    total = np.where(known, gains, 0.0).sum(axis=1)
    squares = np.where(known, gains, 0.0) ** 2
    signal = (total**2 - squares.sum(axis=1)) / (counts * (counts - 1))
    mean = total / counts
    deviations = np.where(known, gains - mean[:, None], 0.0) ** 2
    noise = deviations.sum(axis=1) / ((counts - 1) * counts)
    return Signal(float(signal.mean()), float(noise.mean()))


def _smooth(past: float | None, new: float) -> float:
    return new if past is None else _MEMORY * past + (1 - _MEMORY) * new
