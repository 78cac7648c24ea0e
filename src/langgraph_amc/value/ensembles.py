"""Several value functions as one: their mean or median is V, and how far they differ says how little it is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.trajectories.types import Segments
from langgraph_amc.value.callables import as_value
from langgraph_amc.value.protocol import FloatArray, SoftValueFunction, ValueFunction

How = Literal["mean", "median"]


class Ensemble:
    """Members' scores joined; a member without a score for a state is left out there. Made by `ensemble`."""

    def __init__(self, members: Sequence[ValueFunction], how: How, weights: FloatArray) -> None:
        self.members = tuple(members)
        self.how: How = how
        self.weights = weights

    def score(self, transcripts: Sequence[Segments]) -> FloatArray:
        """Joint expected future return of each state, float64 [n]; NaN where no member has a score."""
        return self.score_with_spread(transcripts)[0]

    def score_with_spread(self, transcripts: Sequence[Segments]) -> tuple[FloatArray, FloatArray]:
        """Joint score and the members' standard deviation, both float64 [n], in units of reward.

        The deviation is NaN where fewer than two members have a score: one alone says nothing of its error.
        """
        return self._join([member.score(transcripts) for member in self.members])

    def _join(self, scores: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
        mean, spread = mean_and_spread(np.stack(scores), self.weights)
        return (_median(np.stack(scores), self.weights) if self.how == "median" else mean), spread


class SoftEnsemble(Ensemble):
    """An `Ensemble` whose members all know their exact soft value."""

    def __init__(self, members: Sequence[SoftValueFunction], how: How, weights: FloatArray) -> None:
        super().__init__(members, how, weights)
        self._soft = tuple(members)

    def soft_score(self, transcripts: Sequence[Segments], beta: float) -> FloatArray:
        """β·log E[exp(R/β)] of each state, float64 [n]: the members' soft values, joined as their scores are.

        With ``how="mean"`` it is that of the mixture of the members' return distributions, which is exact.
        """
        soft = np.stack([member.soft_score(transcripts, beta) for member in self._soft])
        return _median(soft, self.weights) if self.how == "median" else _mixture(soft, self.weights, beta)


def ensemble(
    values: Sequence[ValueFunction | Callable[..., Any] | str], how: How = "mean", weights: ArrayLike | None = None
) -> Ensemble:
    """Several value functions as one; a `SoftValueFunction` if all of them are.

    Parameters
    ----------
    values: anything `as_value` takes, in the same units of reward.
    how: ``"mean"``, or ``"median"``, which one wild member cannot move.
    weights: one positive number per member; equal by default.

    Raises ConfigurationError for no members, an unknown ``how`` or weights that do not fit.
    """
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ConfigurationError("ensemble takes a list of value functions, at least one")
    if how not in get_args(How):
        raise ConfigurationError(f"how is one of {', '.join(get_args(How))}, got {how!r}")
    weighed = _weights(weights, len(values))
    members = [as_value(value) for value in values]
    soft = [member for member in members if isinstance(member, SoftValueFunction)]
    if len(soft) == len(members):
        return SoftEnsemble(soft, how, weighed)
    return Ensemble(members, how, weighed)


def _weights(given: ArrayLike | None, members: int) -> FloatArray:
    if given is None:
        return np.ones(members)
    try:
        weighed = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        weighed = np.empty(0)
    if weighed.shape != (members,) or not (np.isfinite(weighed).all() and (weighed > 0).all()):
        raise ConfigurationError(f"weights are {members} positive numbers, one per member, got {given!r}")
    return weighed


def mean_and_spread(scores: FloatArray, weights: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
    """Weighted mean and standard deviation over members of ``scores`` [members, n], NaN left out; both [n].

    The mean is NaN where all are missing. The deviation is that of the members as a sample (weights of reliability,
    so n/(n − 1) when they are equal), NaN where fewer than two are there.
    """
    weighed = np.where(np.isnan(scores), 0.0, 1.0 if weights is None else weights[:, None])
    total = weighed.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = weighed / total
        mean = (share * np.nan_to_num(scores)).sum(0)
        around = np.square(np.nan_to_num(scores) - mean)
        spread = np.sqrt((share * around).sum(0) / (1 - np.square(share).sum(0)))
    several = (weighed > 0).sum(0) > 1
    return np.where(total > 0, mean, np.nan), np.where(several, spread, np.nan)


def _median(scores: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted median over members of ``scores`` [members, n], NaN left out: between two equal halves their middle."""
    order = np.argsort(scores, axis=0)  # NaN last
    ordered = np.take_along_axis(scores, order, 0)
    weighed = np.where(np.isnan(ordered), 0.0, weights[order])
    reached, half = np.cumsum(weighed, 0), weighed.sum(0) / 2
    tie = np.isclose(reached, half)
    low = np.argmax((reached >= half) | tie, axis=0)
    high = np.argmax((reached > half) & ~tie, axis=0)
    columns = np.arange(scores.shape[1])
    middle: FloatArray = (ordered[low, columns] + ordered[high, columns]) / 2
    return middle


def _mixture(soft: FloatArray, weights: FloatArray, beta: float) -> FloatArray:
    """β·log of the weighted mean of exp(soft/β) over members, [n]; NaN left out."""
    there = ~np.isnan(soft)
    weighed = np.where(there, weights[:, None], 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        terms = np.where(there, soft / beta + np.log(weighed / weighed.sum(0)), -math.inf)
        top = terms.max(0)
        joint = beta * (top + np.log(np.exp(terms - top).sum(0)))
    return np.where(there.any(0), joint, np.nan)
