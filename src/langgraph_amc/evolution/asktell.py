"""Evolution as three pure functions: start, ask for a generation, tell its rewards. No model, no torch, no files.

>>> from langgraph_amc.evolution.asktell import ask, start, tell
>>> from langgraph_amc.evolution.strategy import Strategy
>>> strategy = Strategy(population=4, seed=1)
>>> state = start(strategy)
>>> generation = ask(strategy, state)
>>> update, state = tell(strategy, state, generation, [[1.0], [0.0], [0.5], [0.5]])
>>> update.coefficients, state.number
((46341, 0), 1)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.estimator import estimate, fixed_point
from langgraph_amc.evolution.members import Generation, Member
from langgraph_amc.evolution.signal import Signal, Trend
from langgraph_amc.evolution.strategy import Strategy


@dataclass(frozen=True, slots=True)
class State:
    """Between two generations: the number of the next one, and what the past has shown."""

    number: int = 0
    trend: Trend = field(default_factory=Trend)

    def to_json(self) -> dict[str, Any]:
        trend = self.trend
        return {"number": self.number, "sigma": trend.sigma, "slope": trend.slope, "noise": trend.noise}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> State:
        return cls(data["number"], Trend(data["sigma"], data["slope"], data["noise"]))


@dataclass(frozen=True, slots=True)
class Update:
    """One step of the weights: W += scale * unit * sum_p coefficients[p] * N_p - decay * (W - W_start).

    N_p is the integer direction of pair p and ``unit`` what one of its units stands for (``directions.unit_of``).

    Attributes
    ----------
    coefficients: one integer per pair.
    alpha: step size before the trust region. rms: root mean square of the step per weight, expected over the noise.
    trust: share of the step that the trust region left, 1 where it did not bind.
    """

    generation: Generation
    coefficients: tuple[int, ...]
    scale: float
    decay: float
    alpha: float
    rms: float
    trust: float
    signal: Signal

    @property
    def is_zero(self) -> bool:
        """Whether the weights stay exactly as they are."""
        return self.decay == 0 and not any(self.coefficients)

    @property
    def signal_to_noise(self) -> float | None:
        """See ``signal.py``; ``None`` where one task only had rewards."""
        return self.signal.ratio

    def to_json(self) -> dict[str, Any]:
        """Plain data from which the update can be repeated anywhere."""
        made = self.generation
        return {
            "number": made.number,
            "seed": made.seed,
            "sigma": made.sigma,
            "noise": made.kind,
            "rank": made.rank,
            "members": [[m.pair, m.sign] for m in made.members],
            "coefficients": list(self.coefficients),
            "scale": self.scale,
            "decay": self.decay,
            "alpha": self.alpha,
            "rms": self.rms,
            "trust": self.trust,
            "signal_variance": self.signal.signal,
            "noise_variance": self.signal.noise,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Update:
        members = tuple(Member(pair, sign) for pair, sign in data["members"])
        made = Generation(data["number"], data["seed"], data["sigma"], data["noise"], data["rank"], members)
        return cls(
            made,
            tuple(data["coefficients"]),
            data["scale"],
            data["decay"],
            data["alpha"],
            data["rms"],
            data["trust"],
            Signal(data["signal_variance"], data["noise_variance"]),
        )


def start(strategy: Strategy) -> State:
    """The state before the first generation."""
    return State()


def ask(strategy: Strategy, state: State) -> Generation:
    """The next generation: its members, in the order in which ``tell`` wants their rewards."""
    signs = (1, -1) if strategy.antithetic else (1,)
    members = tuple(Member(pair, sign) for pair in range(strategy.pairs) for sign in signs)
    sigma = strategy.schedule.at(state.number, state.trend)
    return Generation(state.number, strategy.seed, sigma, strategy.noise, strategy.rank, members)


def tell(strategy: Strategy, state: State, generation: Generation, rewards: ArrayLike) -> tuple[Update, State]:
    """What the rewards of a generation do to the weights.

    Parameters
    ----------
    generation: what ``ask`` gave for this state.
    rewards: [members, tasks]; NaN is missing (a failed rollout, a member stopped early). Columns may be repeats of
        tasks as well. If all are equal or missing, or sigma is zero (no direction was tried), the step is exactly zero.

    Raises
    ------
    ConfigurationError: rewards of another shape, infinite ones, or a generation that this state did not ask for.
    """
    if generation != ask(strategy, state):
        raise ConfigurationError(
            f"these are rewards of generation {generation.number}, but the state is at generation {state.number}: "
            "tell the generation that ask() gave for this very state"
        )
    found = estimate(
        _rewards(rewards, len(generation.members)),
        antithetic=strategy.antithetic,
        shaping=strategy.shaping,
        baseline=strategy.baseline,
    )
    weights = found.weights if generation.sigma > 0 else np.zeros_like(found.weights)
    coefficients, exponent = fixed_point(weights)
    alpha = strategy.step_size(generation.sigma)
    scale = alpha / strategy.pairs * math.ldexp(1.0, exponent)
    rms = scale * math.sqrt(sum(q * q for q in coefficients))
    trust = 1.0
    if strategy.trust_region is not None and rms > strategy.trust_region:
        trust = strategy.trust_region / rms
        scale, rms = scale * trust, strategy.trust_region
    update = Update(generation, coefficients, scale, strategy.decay, alpha, rms, trust, found.signal)
    return update, State(state.number + 1, state.trend.after(generation.sigma, found.signal))


def _rewards(given: ArrayLike, members: int) -> NDArray[np.float64]:
    try:
        rewards = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"rewards are numbers [members, tasks], NaN where missing: {error}") from error
    if rewards.ndim != 2 or len(rewards) != members or not rewards.shape[1]:
        raise ConfigurationError(
            f"rewards have shape [members, tasks] = [{members}, at least 1], got {list(rewards.shape)}"
        )
    if np.isinf(rewards).any():
        raise ConfigurationError("a reward is infinite: rewards are finite, or NaN where missing")
    return rewards
