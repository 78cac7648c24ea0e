"""What reward and value are worth in nats, and how sharply the population is weighed by it.

The optimum of KL-regularised RL at temperature β is π*(s) ∝ π(s)·exp(r(s)/β) (AMC paper, section "RL as
posterior sampling"), and a particle at s_t is worth exp((R_t + V(s_t))/β), with R the reward so far and V the
soft value of the future. `potential` is the logarithm of that; the filter weighs by its growth since the last
resampling. `sharpness` multiplies the growth: 1 where the temperature is given, solved where it is not.

Which one: `fixed(beta)` for a soft value trained at that β; `tilt(beta)` for 0/1 outcomes, where V is the
calibrated chance of success and the soft value is known exactly; `ess_target()` when the aim is the best
answer, because with V in [0, 1] and τ = 1 weights differ by a factor of e at most and hardly select.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc.weights import Floats, WeightError, ess_of_possible

Bools = NDArray[np.bool_]

# How sharp ess_target gets by itself, per unit of reward and per nat; ess_target says why.
_PER_REWARD = 16.0
_PER_NAT = 3.0


class Tempering(Protocol):
    """How reward [n] and value [n] become log-weights.

    `exact` says that sharpness is always 1, so that the weights mean what they say. `weighs` says by what:
    the "growth" of the potential since the last resampling (a properly weighted sample), or its "level".
    """

    @property
    def exact(self) -> bool: ...

    @property
    def weighs(self) -> Literal["growth", "level"]: ...

    def potential(self, reward: Floats, value: Floats, done: Bools) -> Floats:
        """Worth [n] in nats of cumulative reward and value of the future; value counts as 0 where done."""
        ...

    def sharpness(self, log_ratio: Floats) -> float:
        """Multiplier (1/τ') for what the particles [n] are weighed by, in nats."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Potential (R + V)/τ."""

    tau: float
    exact: ClassVar[bool] = True
    weighs: ClassVar[Literal["growth"]] = "growth"

    def potential(self, reward: Floats, value: Floats, done: Bools) -> Floats:
        return (reward + np.where(done, 0.0, value)) / self.tau

    def sharpness(self, log_ratio: Floats) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Tilt:
    """Potential R/β + log(1 − p + p·e^{1/β}), p the chance that a 0/1 outcome still to come is 1."""

    beta: float
    exact: ClassVar[bool] = True
    weighs: ClassVar[Literal["growth"]] = "growth"

    def potential(self, reward: Floats, value: Floats, done: Bools) -> Floats:
        p = np.where(done, 0.0, value)
        outside = np.flatnonzero(~((p >= -1e-6) & (p <= 1 + 1e-6)))
        if outside.size:
            raise WeightError(
                f"tilt({self.beta}) needs the value function to give chances of success in [0, 1], got "
                f"{p[outside[0]]} for particle {outside[0]}: calibrate it, or use fixed(tau)."
            )
        p = np.clip(p, 0.0, 1.0)
        with np.errstate(divide="ignore"):  # log 0 = -inf is meant
            return reward / self.beta + np.logaddexp(np.log1p(-p), np.log(p) + 1 / self.beta)

    def sharpness(self, log_ratio: Floats) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class EssTarget:
    """The base's potential, weighed as sharply as the ESS target allows."""

    fraction: float
    base: Tempering
    max_sharpness: float
    weighs: Literal["growth", "level"]
    exact: ClassVar[bool] = False

    def potential(self, reward: Floats, value: Floats, done: Bools) -> Floats:
        return self.base.potential(reward, value, done)

    def sharpness(self, log_ratio: Floats) -> float:
        ratio = log_ratio[log_ratio > -np.inf]  # the impossible have weight 0 whatever the multiplier
        spread = float(np.ptp(ratio)) if ratio.size else 0.0
        if spread == 0.0:
            return 1.0  # one particle, or all equal: nothing to solve
        target = self.fraction * ratio.size
        if ess_of_possible(self.max_sharpness * ratio) >= target:
            return self.max_sharpness
        # Weights in [e^-a, 1] have ESS >= n/cosh²(a/2) (Kantorovich), so this multiplier is soft enough.
        low, high = min(2 * math.acosh(self.fraction**-0.5) / spread, self.max_sharpness), self.max_sharpness
        while high > low * (1 + 1e-12):  # the ESS falls as the multiplier grows: bisect its logarithm
            middle = math.sqrt(low) * math.sqrt(high)
            if not low < middle < high:
                break
            if ess_of_possible(middle * ratio) >= target:
                low = middle
            else:
                high = middle
        return high


def fixed(tau: float) -> Fixed:
    """Weigh by (R + V)/τ; τ > 0 in units of reward; the paper's filter if V is the soft value at β = τ."""
    return Fixed(_temperature("fixed", tau))


def tilt(beta: float) -> Tilt:
    """Weigh 0/1 outcomes exactly: V is p = P(success), its soft value log(1 − p + p·e^{1/β}) nats.

    As β → 0 the weights e^{V/β} tend to p itself, up to a factor all share: sampling conditioned on success.
    Needs p within 1e-6 of [0, 1]; WeightError otherwise.
    """
    return Tilt(_temperature("tilt", beta))


def ess_target(
    fraction: float = 0.5,
    base: Tempering | None = None,
    max_sharpness: float | None = None,
    weighs: Literal["growth", "level"] = "level",
) -> EssTarget:
    """Weigh as sharply as leaves an ESS of `fraction` of the possible particles, by `max_sharpness` at most.

    For the `optimise` objective only: a solved multiplier makes the weights a means of steering, not a sample
    of a known distribution. `base` (default `fixed(1.0)`) gives the potential. `ess_below(fraction)` then
    fires as soon as the target can be reached.

    `weighs="level"`, the default, ranks by R + V as it stands. A learned V is noisy, and survivors were
    chosen partly for its errors: the growth R + V − V_last, which a posterior sample needs, punishes them at
    the next check for having been lucky. In simulated worlds of 0/1 outcome level was seldom worse, mostly
    much better, and the more so the noisier V was from step to step.

    `max_sharpness` (default: 16 per unit of reward for `fixed(tau)`, 3 where that is more or the base is
    another) keeps differences of the size of V's own error small: at 16, with V in [0, 1], half the ESS goes
    for a spread in V of about 0.05; at 3, over `tilt`, weights are p³ at most. In the same simulations these
    kept most of the gain of an unbounded multiplier where V saw dead from alive, and lost nothing to
    best-of-N where V was close to noise and the trigger `ess_below(0.5)`; twice as much did.
    """
    if isinstance(fraction, bool) or not (0 < fraction < 1):
        raise ConfigurationError(f"ess_target needs a fraction between 0 and 1, got {fraction!r}.")
    base = Fixed(1.0) if base is None else base
    if max_sharpness is None:
        max_sharpness = max(_PER_NAT, _PER_REWARD * base.tau) if isinstance(base, Fixed) else _PER_NAT
    if isinstance(max_sharpness, bool) or not (0 < max_sharpness < math.inf):
        raise ConfigurationError(f"ess_target needs a finite max_sharpness above 0, got {max_sharpness!r}.")
    if weighs not in ("growth", "level"):
        raise ConfigurationError(f"ess_target weighs by 'level' or by 'growth', got {weighs!r}.")
    if not base.exact:
        raise ConfigurationError("ess_target(base=…) needs a base that solves nothing itself: fixed or tilt.")
    return EssTarget(float(fraction), base, float(max_sharpness), weighs)


def _temperature(name: str, value: float) -> float:
    if isinstance(value, bool) or not (0 < value < math.inf) or 1 / value == math.inf:
        raise ConfigurationError(f"{name} needs a finite temperature above 0, got {value!r}.")
    return float(value)
