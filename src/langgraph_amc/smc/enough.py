"""When those that have ended are enough: small composable conditions such as `agreement(0.75) | value_above(0.9)`.

A rule looks at the candidates as a selector does, and says why they are enough, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from langgraph_amc.checks import is_number, is_whole
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc.answers import final_text
from langgraph_amc.smc.selection import Candidate, vote


@runtime_checkable
class Enough(Protocol):
    """A rule; any object with this method will do."""

    def why(self, candidates: Sequence[Candidate]) -> str | None:
        """Why these are enough; None if they are not."""
        ...


class _Composable:
    __slots__ = ()

    def __or__(self: Enough, other: Enough) -> Enough:
        return AnyOf(self, _rule(other))

    def __and__(self: Enough, other: Enough) -> Enough:
        return AllOf(self, _rule(other))


@dataclass(frozen=True, slots=True)
class AnyOf(_Composable):
    """One of the two says so."""

    left: Enough
    right: Enough

    def why(self, candidates: Sequence[Candidate]) -> str | None:
        return self.left.why(candidates) or self.right.why(candidates)


@dataclass(frozen=True, slots=True)
class AllOf(_Composable):
    """Both say so."""

    left: Enough
    right: Enough

    def why(self, candidates: Sequence[Candidate]) -> str | None:
        left, right = self.left.why(candidates), self.right.why(candidates)
        return f"{left}, and {right}" if left and right else None


@dataclass(frozen=True, slots=True)
class ValueAbove(_Composable):
    """The best finished particle is worth at least the threshold."""

    threshold: float

    def why(self, candidates: Sequence[Candidate]) -> str | None:
        worth = [c.value if c.reward is None else c.reward for c in _finished(candidates)]
        best = max((w for w in worth if w is not None and not math.isnan(w)), default=-math.inf)
        return f"one is worth {best:.3g}, at least {self.threshold:.3g}" if best >= self.threshold else None


@dataclass(frozen=True, slots=True)
class Unbeatable(_Composable):
    """A finished particle has an observed return that none can exceed."""

    best_possible: float

    def why(self, candidates: Sequence[Candidate]) -> str | None:
        rewards = (c.reward for c in _finished(candidates) if c.reward is not None)
        if any(reward >= self.best_possible for reward in rewards):
            return f"one has the best possible return, {self.best_possible:.6g}"
        return None


@dataclass(frozen=True, slots=True)
class Agreement(_Composable):
    """The leading answer has at least this share of the weight of all that have finished, `among` at least."""

    share: float
    among: int
    key: Callable[[Any], Hashable] = final_text

    def why(self, candidates: Sequence[Candidate]) -> str | None:
        finished = _finished(candidates)
        if len(finished) < self.among:
            return None
        votes = vote(self.key)
        chosen = votes(np.random.default_rng(0), finished)
        share = votes.share(finished, chosen)
        if share < self.share * (1 - 1e-9) or self.key(finished[chosen].output) is None:
            return None
        return f"{share:.0%} of the weight of {len(finished)} finished particles is on one answer"


def value_above(threshold: float) -> ValueAbove:
    """Enough when a finished particle's observed return, else its value (calibrated!), is at least `threshold`."""
    if not is_number(threshold):
        raise ConfigurationError(f"value_above needs a finite number, got {threshold!r}.")
    return ValueAbove(float(threshold))


def agreement(share: float = 0.75, among: int = 3, key: Callable[[Any], Hashable] = final_text) -> Agreement:
    """Enough when one answer has `share` of the weight of those that finished, `among` of them at least.

    `key` maps an output to what counts as the same answer, as for `vote`; None is no answer.
    """
    if not (is_number(share) and 0 < share <= 1):
        raise ConfigurationError(f"agreement needs a share in (0, 1], as in 0.75, got {share!r}.")
    if not is_whole(among, 2):
        raise ConfigurationError(f"agreement needs a whole number of at least 2 to agree, got {among!r}.")
    if not callable(key):
        raise ConfigurationError(f"agreement(key=…) is a function of an output such as final_text, got {key!r}.")
    return Agreement(float(share), among, key)


def _rule(other: Any) -> Enough:
    if not isinstance(other, Enough) or isinstance(other, type):
        raise ConfigurationError(f"| and & combine rules such as agreement(0.75) and value_above(0.9), got {other!r}.")
    return other


def _finished(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [c for c in candidates if c.done and not c.failed]
