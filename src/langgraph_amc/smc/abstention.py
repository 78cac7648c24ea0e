"""Saying "I do not know": a selector that also tells when its best is not good enough, and where the line is.

`abstain` wraps a selector; below the line the index it returns is an `Abstention`, which says so. `fit_abstention`
puts the line where, with the confidence asked for, no more than a given part of the answers will be wrong: exact
binomial bounds (Clopper & Pearson 1934) on held-out tasks, at a few levels fixed beforehand, each at its share of the
error (selective classification with guaranteed risk, Geifman & El-Yaniv 2017; "learn then test", Angelopoulos et al.
2021, Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from langgraph_amc.checks import is_number
from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.smc.selection import (
    SELECTORS,
    Candidate,
    SelectionError,
    Selector,
    Vote,
    best_reward,
    best_value,
    weight_share,
)

LEVELS = 8
"""How many lines are tried."""

Confidence: TypeAlias = Callable[[Sequence[Candidate], int], float | None]
"""How sure one may be of the chosen candidate; None where nothing is known."""


class AbstainedError(AMCError):
    """No answer is good enough; ``confidence`` and ``below`` say by how much. Raised by ``abstain(raises=True)``."""

    def __init__(self, confidence: float | None, below: float) -> None:
        self.confidence, self.below = confidence, below
        super().__init__(f"no answer: {_why(confidence, below)}")


class Abstention(int):
    """The index of the best candidate, which is not good enough to answer with."""

    confidence: float | None
    below: float

    def __new__(cls, index: int, confidence: float | None, below: float) -> Abstention:
        made = super().__new__(cls, index)
        made.confidence, made.below = confidence, below
        return made

    @property
    def why(self) -> str:
        """In words."""
        return _why(self.confidence, self.below)


def _why(confidence: float | None, below: float) -> str:
    known = "unknown" if confidence is None else f"{confidence:.3g}"
    return f"the confidence in the best one is {known}, below {below:.3g}"


@dataclass(frozen=True, slots=True)
class Abstain:
    """See `abstain`."""

    below: float
    by: Selector
    confidence: Confidence
    raises: bool

    def __call__(self, rng: np.random.Generator, candidates: Sequence[Candidate]) -> int:
        chosen = int(self.by(rng, candidates))
        sure = self.confidence(candidates, chosen)
        if sure is not None and math.isnan(sure):
            raise SelectionError(f"The confidence in candidate {chosen} is NaN: return None where it is unknown.")
        if sure is not None and sure >= self.below:
            return chosen
        if self.raises:
            raise AbstainedError(sure, self.below)
        return Abstention(chosen, sure, self.below)


def abstain(
    below: float, by: Selector | str = best_value, *, confidence: Confidence | None = None, raises: bool = False
) -> Abstain:
    """Select by another selector, and abstain where the confidence in what it chose is below the line or unknown.

    Parameters
    ----------
    below: the line; `fit_abstention` finds one.
    by: a selector, or its name as for ``wrap(select=…)``.
    confidence: default: the chosen one's value for `best_value`, its reward for `best_reward`, its answer's share of
        the weight for `vote`, its own share for any other selector.
    raises: raise `AbstainedError` instead of marking the choice: nothing is answered, committed or let happen.
    """
    if not is_number(below) and not (isinstance(below, float) and math.isinf(below)):
        raise ConfigurationError(f"abstain(below=…) is a number, got {below!r}")
    if isinstance(by, str):
        by = SELECTORS.get(by, by)
    if isinstance(by, str) or not callable(by):
        names = ", ".join(sorted(SELECTORS))
        raise ConfigurationError(f"abstain(by=…) is one of {names}, or a selector such as vote(final_text), got {by!r}")
    if confidence is not None and not callable(confidence):
        raise ConfigurationError(
            f"abstain(confidence=…) is a function (candidates, chosen) -> number or None, got {confidence!r}"
        )
    return Abstain(float(below), by, confidence or confidence_of(by), raises)


def confidence_of(select: Selector) -> Confidence:
    """What `abstain` looks at for a selector."""
    if select is best_value:
        return _value
    if select is best_reward:
        return _reward
    return select.share if isinstance(select, Vote) else weight_share


@dataclass(frozen=True, slots=True)
class FittedAbstention:
    """A line, and what is known of answers above it.

    Attributes
    ----------
    below: abstain below this confidence.
    coverage: part of the held-out tasks that are answered.
    errors: part of these answers that were wrong; bound: not exceeded with the confidence asked for.
    tasks: how many tasks were held out.
    """

    below: float
    coverage: float
    errors: float
    bound: float
    tasks: int


def fit_abstention(
    scores: ArrayLike, outcomes: ArrayLike, *, risk: float = 0.1, confidence: float = 0.95
) -> FittedAbstention:
    """The lowest line above which, with this confidence, at most ``risk`` of the answers are wrong.

    Parameters
    ----------
    scores: [tasks] confidence in the answer of each held-out task, as `abstain` will see it; one entry per task, of
        tasks that neither V nor the settings were chosen on.
    outcomes: [tasks] whether that answer was right, 0 or 1.

    Raises
    ------
    ConfigurationError: arrays that do not fit, or fewer tasks than could ever show such a risk.
    SelectionError: no line keeps the risk.
    """
    try:
        s, right = np.asarray(scores, dtype=np.float64), np.asarray(outcomes, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError("scores and outcomes are two arrays of one number per task") from error
    if s.ndim != 1 or s.shape != right.shape or np.isnan(s).any():
        raise ConfigurationError("scores and outcomes are two arrays of one number per task, without NaN")
    if not np.isin(right, (0.0, 1.0)).all():
        raise ConfigurationError("outcomes are 0 or 1, wrong or right: say from which reward on an answer is right")
    if not all(is_number(share) and 0 < share < 1 for share in (risk, confidence)):
        raise ConfigurationError(f"risk and confidence lie between 0 and 1, got {risk!r} and {confidence!r}")
    level = (1 - confidence) / LEVELS
    fewest = math.ceil(math.log(level) / math.log1p(-risk))  # so many right answers without a wrong one are needed
    if len(s) < fewest:
        raise ConfigurationError(
            f"a risk of {risk:g} with confidence {confidence:g} needs at least {fewest} held-out tasks, got {len(s)}: "
            "hold out more, or ask for less"
        )
    falling = np.sort(s)[::-1]
    lines = {float(falling[n - 1]) for n in np.linspace(fewest, len(s), LEVELS).round().astype(int)}
    for line in sorted(lines):
        answered = s >= line
        n, wrong = int(answered.sum()), int((right[answered] == 0).sum())
        bound = upper_bound(wrong, n, 1 - level)
        if bound <= risk:
            return FittedAbstention(line, n / len(s), wrong / n, bound, len(s))
    raise SelectionError(
        f"no line keeps the risk of a wrong answer at {risk:g} with confidence {confidence:g} on {len(s)} tasks: the "
        "confidence does not tell right from wrong well enough; allow more risk, or hold out more tasks"
    )


def upper_bound(wrong: int, n: int, confidence: float) -> float:
    """One-sided Clopper-Pearson bound: with this confidence the error rate behind ``wrong`` of ``n`` is no more."""
    if wrong >= n:
        return 1.0
    low, high = wrong / n, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(wrong, n, middle) > 1 - confidence else (low, middle)
    return high


def _at_most(k: int, n: int, p: float) -> float:
    """P(X ≤ k) for X ~ Bin(n, p), 0 < p < 1."""
    i = np.arange(k + 1)
    choose = np.concatenate([[0.0], np.cumsum(np.log((n - i[:-1]) / (i[:-1] + 1)))])
    return float(np.exp(choose + i * math.log(p) + (n - i) * math.log1p(-p)).sum()) if p else 1.0


def _value(candidates: Sequence[Candidate], chosen: int) -> float | None:
    return candidates[chosen].value


def _reward(candidates: Sequence[Candidate], chosen: int) -> float | None:
    return candidates[chosen].reward
