"""How large the perturbation of each generation is: sigma as a function of the generation's number, or of what is seen.

Constant, linear and cosine are those of Agentic ESOpt: the first generation has exactly ``start``, the last exactly
``end``. Automatic keeps the signal-to-noise ratio of the update (``signal.py``) near a target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.checks import as_float, at_least, finite, whole
from langgraph_amc.evolution.signal import Trend


@runtime_checkable
class Schedule(Protocol):
    """Standard deviation of the perturbation of each weight."""

    def at(self, number: int, trend: Trend) -> float:
        """Sigma of generation ``number`` (from 0), given the trend over all generations before it."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """The same sigma for ever."""

    sigma: float

    def __post_init__(self) -> None:
        finite("sigma", self.sigma, above=0)
        as_float(self, "sigma")

    def at(self, number: int, trend: Trend) -> float:
        return self.sigma


@dataclass(frozen=True, slots=True)
class Linear:
    """A straight line from ``start`` to ``end`` over ``generations``; ``end`` from there on."""

    start: float
    end: float
    generations: int

    def __post_init__(self) -> None:
        _check_ends(self.start, self.end, self.generations)
        as_float(self, "start", "end")

    def at(self, number: int, trend: Trend) -> float:
        return _between(self.start, self.end, _progress(number, self.generations))


@dataclass(frozen=True, slots=True)
class Cosine:
    """Half a cosine from ``start`` to ``end``: an end above zero for training, zero for search at test time."""

    start: float
    end: float
    generations: int

    def __post_init__(self) -> None:
        _check_ends(self.start, self.end, self.generations)
        as_float(self, "start", "end")

    def at(self, number: int, trend: Trend) -> float:
        return _between(self.start, self.end, (1 - math.cos(math.pi * _progress(number, self.generations))) / 2)


@dataclass(frozen=True, slots=True)
class Automatic:
    """Sigma at which the update's signal-to-noise ratio would be ``target``.

    The variance that directions explain grows with sigma^2 as long as the reward is locally linear, the noise of
    rewards does not depend on it: sigma* = sqrt(target * noise / slope), both smoothed over generations. Sigma moves
    towards it by at most ``pace`` per generation and stays within [low, high] (default: start / 4, 4 * start). Where
    nothing can be measured (one task, all rewards equal) it stays as it is.
    """

    start: float
    low: float | None = None
    high: float | None = None
    target: float = 1.0
    pace: float = 1.2

    def __post_init__(self) -> None:
        finite("start", self.start, above=0)
        finite("target", self.target, above=0)
        finite("pace", self.pace, above=1)
        low, high = self.bounds
        finite("low", low, above=0)
        finite("high", high, above=0)
        if not low <= self.start <= high:
            raise ConfigurationError(f"low <= start <= high must hold, got {low}, {self.start} and {high}")
        as_float(self, "start", "low", "high", "target", "pace")

    @property
    def bounds(self) -> tuple[float, float]:
        return (
            self.start / 4 if self.low is None else self.low,
            4 * self.start if self.high is None else self.high,
        )

    def at(self, number: int, trend: Trend) -> float:
        sigma = self.start if trend.sigma is None else trend.sigma
        if trend.slope is None or trend.noise is None or (trend.slope <= 0 and trend.noise == 0):
            return sigma
        wanted = math.sqrt(self.target * trend.noise / trend.slope) if trend.slope > 0 else math.inf
        low, high = self.bounds
        return min(max(wanted, sigma / self.pace, low), sigma * self.pace, high)


_BY_NAME = {"constant": Constant, "linear": Linear, "cosine": Cosine, "automatic": Automatic}


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """Plain data of one of this module's schedules."""
    for name, kind in _BY_NAME.items():
        if isinstance(schedule, kind):
            return {"kind": name} | {f.name: getattr(schedule, f.name) for f in fields(kind)}
    raise ConfigurationError(f"only the schedules of this library can be stored in a history, not {schedule!r}")


def schedule_from_json(data: dict[str, Any]) -> Schedule:
    """The schedule that ``schedule_to_json`` described."""
    given = dict(data)
    named = given.pop("kind", None)
    kind = _BY_NAME.get(named) if isinstance(named, str) else None
    if kind is None:
        raise ConfigurationError(f"a stored schedule has a kind out of {', '.join(_BY_NAME)}, got {data!r}")
    if odd := sorted({f.name for f in fields(kind)} ^ given.keys()):
        raise ConfigurationError(f"a stored {named} schedule has other fields, see {odd[0]!r}")
    schedule: Schedule = kind(**given)
    return schedule


def _check_ends(start: float, end: float, generations: int) -> None:
    finite("start", start, above=0)
    at_least("end", end, 0)
    whole("generations", generations, 1)


def _progress(number: int, generations: int) -> float:
    return min(number / (generations - 1), 1.0) if generations > 1 else 0.0


def _between(start: float, end: float, share: float) -> float:
    """Exactly ``start`` at 0 and ``end`` at 1."""
    return end if share == 1 else start + (end - start) * share
