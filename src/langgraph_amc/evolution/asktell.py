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
from langgraph_amc.evolution.errors import HistoryError
from langgraph_amc.evolution.estimator import estimate, fixed_point
from langgraph_amc.evolution.fields import is_whole, items, number, number_or_none, text, whole
from langgraph_amc.evolution.members import NOISES, Generation, Member
from langgraph_amc.evolution.signal import Signal, Trend
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.tasks.rewards import LARGEST


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
        """Raises HistoryError for a damaged field."""
        sigma, slope, noise = (number_or_none(data, name) for name in ("sigma", "slope", "noise"))
        return cls(whole(data, "number"), Trend(sigma, slope, noise))


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
        """Raises HistoryError for a damaged field."""
        made = _generation_from_json(data)
        coefficients = tuple(items(data, "coefficients", is_whole, "integers"))
        if len(coefficients) != made.pairs:
            raise HistoryError(f"{len(coefficients)} coefficients are given for {made.pairs} directions")
        scale, decay, alpha, rms, trust = (number(data, n, 0) for n in ("scale", "decay", "alpha", "rms", "trust"))
        signal = Signal(number_or_none(data, "signal_variance"), number_or_none(data, "noise_variance"))
        return cls(made, coefficients, scale, decay, alpha, rms, trust, signal)


def _generation_from_json(data: dict[str, Any]) -> Generation:
    kind = next((kind for kind in NOISES if kind == text(data, "noise")), None)
    if kind is None:
        raise HistoryError(f"the field 'noise' must be one of {', '.join(NOISES)}, and holds {data['noise']!r}")
    rank = None if data.get("rank", 0) is None else whole(data, "rank", 1)
    members = tuple(Member(*told) for told in items(data, "members", _is_member, "[pair, sign]"))
    return Generation(whole(data, "number"), whole(data, "seed"), number(data, "sigma", 0), kind, rank, members)


def _is_member(told: Any) -> bool:
    return isinstance(told, list) and len(told) == 2 and all(map(is_whole, told)) and told[0] >= 0 and abs(told[1]) == 1


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
    if not (np.abs(rewards[~np.isnan(rewards)]) <= LARGEST).all():
        raise ConfigurationError(f"a reward is infinite, or above {LARGEST:g} in size: divide it, or NaN where missing")
    return rewards
