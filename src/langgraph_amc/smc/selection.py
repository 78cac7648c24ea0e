"""Choosing the answer from the finished population: `(rng, candidates) -> index`.

Honest by default: the selectors see weights, the value function's scores, the answers themselves, or a reward
the user says is observable when serving. `oracle` sees true rewards and is for evaluation only; it has
another signature, so it cannot be passed where a selector is expected. Common rules: a failed candidate is
never chosen, an unfinished one only if none has finished, and a remaining tie goes to the larger weight, then
to the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.smc.weights import Floats, LogWeights, WeightError


class SelectionError(AMCError):
    """No candidate can be chosen by this rule."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One particle of the finished population.

    Attributes
    ----------
    log_weight: unnormalised, nats; −inf allowed, NaN and +inf refused.
    value: the value function's last word on it: its last score, or its estimate of the finished run's return.
    reward: the observed return; None where it is not observable or its evaluation failed.
    output: what the run answered.
    """

    log_weight: float
    value: float | None
    reward: float | None
    output: Any
    done: bool = True
    failed: bool = False

    def __post_init__(self) -> None:
        if math.isnan(self.log_weight) or self.log_weight == math.inf:
            raise WeightError(
                f"A candidate's log-weight cannot be {self.log_weight}: -inf is allowed, NaN and +inf not."
            )


Selector: TypeAlias = Callable[[np.random.Generator, Sequence[Candidate]], int]


def sample(rng: np.random.Generator, candidates: Sequence[Candidate]) -> int:
    """One candidate drawn by weight: a draw from the posterior, up to a bias of order 1/N."""
    eligible = _eligible(candidates)
    return int(eligible[rng.choice(len(eligible), p=_weights(candidates, eligible))])


def argmax(rng: np.random.Generator, candidates: Sequence[Candidate]) -> int:
    """The candidate of the largest weight."""
    return _best(candidates, {i: candidates[i].log_weight for i in _eligible(candidates)})


def best_value(rng: np.random.Generator, candidates: Sequence[Candidate]) -> int:
    """The candidate the value function thinks best; those it has not scored are passed over."""
    return _best(candidates, _known({i: candidates[i].value for i in _eligible(candidates)}, "value", _NO_VALUES))


def best_reward(rng: np.random.Generator, candidates: Sequence[Candidate]) -> int:
    """The candidate of the highest observed reward; only for a reward that can be observed when serving."""
    return _best(candidates, _known({i: candidates[i].reward for i in _eligible(candidates)}, "reward", _NO_REWARDS))


@dataclass(frozen=True, slots=True)
class Vote:
    """See `vote`."""

    key: Callable[[Any], Hashable] | None = None

    def __call__(self, rng: np.random.Generator, candidates: Sequence[Candidate]) -> int:
        camps, mass = self._count(candidates)
        # Rounded, so that the order of additions does not break ties.
        winner = max(camps, key=lambda answer: (round(mass[answer], 12), len(camps[answer])))
        return _best(candidates, {i: candidates[i].log_weight for i in camps[winner]})

    def share(self, candidates: Sequence[Candidate], chosen: int) -> float:
        """The part of the weight of all who voted that the chosen candidate's answer has, in [0, 1]."""
        camps, mass = self._count(candidates)
        own = next((answer for answer, members in camps.items() if chosen in members), None)
        return mass[own] / sum(mass.values()) if own in mass else 0.0

    def _count(self, candidates: Sequence[Candidate]) -> tuple[dict[Hashable, list[int]], dict[Hashable, float]]:
        """Who gave each answer, and the weight behind it; those that gave none have no vote, if anybody has."""
        eligible = _eligible(candidates)
        camps: dict[Hashable, list[int]] = {}
        mass: dict[Hashable, float] = {}
        for i, weight in zip(eligible, _weights(candidates, eligible), strict=True):
            answer = candidates[i].output if self.key is None else self.key(candidates[i].output)
            try:
                camps.setdefault(answer, []).append(i)
            except TypeError as error:
                raise SelectionError(
                    f"vote cannot compare answers of type {type(answer).__name__}: give vote(key=…) a "
                    "function that returns something hashable, such as final_text or last_number."
                ) from error
            mass[answer] = mass.get(answer, 0.0) + float(weight)
        if len(camps) > 1 and None in camps:
            del camps[None], mass[None]
        return camps, mass


def vote(key: Callable[[Any], Hashable] | None = None) -> Vote:
    """A selector that adds up weight per answer and takes the heaviest answer's heaviest candidate.

    `key` maps an output to what counts as the same answer: `answers.final_text`, `answers.last_number` or a function
    of one's own (default: the output itself, which must be hashable); None means no answer, which has no vote. Of two
    answers of the same weight the one given more often wins, then the one given first.
    """
    if key is not None and not callable(key):
        raise ConfigurationError(f"vote(key=…) is a function of an output such as final_text, got {key!r}.")
    return Vote(key)


SELECTORS: dict[str, Selector] = {
    "sample": sample,
    "argmax": argmax,
    "best_value": best_value,
    "best_reward": best_reward,
    "vote": vote(),
}
"""By the names that ``wrap(select=…)`` and ``abstain(by=…)`` take."""


def oracle(candidates: Sequence[Candidate], true_rewards: Sequence[float | None]) -> int:
    """The candidate of the highest true reward: evaluation only, what no selector can exceed."""
    if len(true_rewards) != len(candidates):
        raise SelectionError(f"oracle got {len(true_rewards)} true rewards for {len(candidates)} candidates.")
    alive = [i for i, candidate in enumerate(candidates) if not candidate.failed]
    return _best(candidates, _known({i: true_rewards[i] for i in alive}, "true reward", _NO_TRUE_REWARDS))


def weight_share(candidates: Sequence[Candidate], chosen: int) -> float:
    """The chosen candidate's part of the weight of all that could have been chosen, in [0, 1]."""
    eligible = _eligible(candidates)
    return float(_weights(candidates, eligible)[eligible.index(chosen)]) if chosen in eligible else 0.0


_NO_VALUES = "best_value needs a value function: no candidate has been scored. Give one, or use vote or sample."
_NO_REWARDS = (
    "best_reward is only for an observable reward: no candidate has one. Use best_value, vote or sample "
    "where the reward is not known when serving."
)
_NO_TRUE_REWARDS = "oracle needs true rewards of candidates that did not fail: none is known."


def _eligible(candidates: Sequence[Candidate]) -> list[int]:
    alive = [i for i, candidate in enumerate(candidates) if not candidate.failed]
    if not alive:
        raise SelectionError(
            f"All {len(candidates)} candidates failed: nothing is left to choose. Look at their failures."
        )
    return [i for i in alive if candidates[i].done] or alive


def _weights(candidates: Sequence[Candidate], eligible: Sequence[int]) -> Floats:
    # where nobody is possible under the target, somebody must answer all the same
    return LogWeights(np.array([candidates[i].log_weight for i in eligible])).shares


def _known(scores: dict[int, float | None], what: str, none_known: str) -> dict[int, float]:
    known = {i: score for i, score in scores.items() if score is not None}
    for i, score in known.items():
        if math.isnan(score):
            raise SelectionError(f"The {what} of candidate {i} is NaN: report a missing one as None.")
    if not known:
        raise SelectionError(none_known)
    return known


def _best(candidates: Sequence[Candidate], scores: dict[int, float]) -> int:
    return max(scores, key=lambda i: (scores[i], candidates[i].log_weight, -i))
