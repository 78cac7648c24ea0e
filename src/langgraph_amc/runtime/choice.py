"""Which particle answers, and what is raised where none can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from langgraph.errors import ParentCommand

from langgraph_amc.errors import AMCError
from langgraph_amc.policy.budget import BudgetExceededError
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.runtime.population import AppPopulation
from langgraph_amc.runtime.request import StreamRequest
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.smc import (
    Abstain,
    AbstainedError,
    Abstention,
    Candidate,
    Final,
    SelectionError,
    Selector,
    argmax,
    best_reward,
    best_value,
)

_DONE = ("finished", "interrupted")


class AllParticlesFailedError(AMCError):
    """Every particle of a run failed; ``.errors`` holds the cause of each."""

    def __init__(self, errors: Sequence[BaseException]) -> None:
        self.errors = tuple(errors)
        causes: dict[str, int] = {}
        for error in errors:
            cause = f"{type(error).__name__}: {error}"
            causes[cause] = causes.get(cause, 0) + 1
        listed = "; ".join(f"{cause} ({n}x)" for cause, n in sorted(causes.items(), key=lambda c: -c[1])[:5])
        super().__init__(f"all {len(self.errors)} particles failed: {listed}")


def choose(
    population: AppPopulation, finals: Mapping[int, Final[Particle]], settings: Settings, rng: np.random.Generator
) -> Particle:
    """The particle that answers, or whose effects may happen.

    Those that ended by themselves or paused before an effect come before those that a budget stopped.
    """
    ended = [p for p in population.born if id(p) in finals]
    if all(p.status == "failed" for p in ended) or (len(ended) == 1 and not isinstance(settings.select, Abstain)):
        return ended[0]
    try:
        sure = isinstance(settings.select, Abstain)  # who may abstain counts on what is known
        index = settings.select(rng, candidates([finals[id(p)] for p in ended], stand_in=not sure))
    except SelectionError as error:
        account = population.launch.account
        other = None if account is None or account.refused is None else _stand_in(settings.select)
        if other is not None:
            index = other(rng, candidates([finals[id(p)] for p in ended]))
        elif population.unrewarded:
            why = f"{error} Rewards are missing, the first because {population.unrewarded[0]}"
            raise SelectionError(why) from error
        else:
            raise
    chosen = ended[_index(index, len(ended))]
    population.abstention = index if isinstance(index, Abstention) else None
    if population.abstention is not None and chosen.held:  # nothing is done to the world for want of a better answer
        raise AbstainedError(population.abstention.confidence, population.abstention.below)
    return chosen


def _stand_in(select: Selector) -> Selector | None:
    """The rule where the budget ended before anybody had what the given one looks at; None for a rule of one's own."""
    if isinstance(select, Abstain):
        by = _stand_in(select.by)
        return None if by is None else replace(select, by=by, confidence=lambda candidates, chosen: None)
    return _best_known if select in (best_value, best_reward) else None


def _best_known(rng: np.random.Generator, candidates: Sequence[Candidate]) -> int:
    try:
        return best_value(rng, candidates)
    except SelectionError:
        return argmax(rng, candidates)


def candidates(finals: Sequence[Final[Particle]], *, stand_in: bool = True) -> list[Candidate]:
    """Particles that have ended, as selectors and the rules that end a run see them.

    Where the value function has given no score to the last state of anybody who may be chosen, the last score that each
    particle has stands in, if it may.
    """
    ended = [f for f in finals if f.particle.status in _DONE] or finals
    at_end = not stand_in or any(f.particle.values and f.particle.values[-1] is not None for f in ended)
    return [_candidate(final, at_end) for final in finals]


def _candidate(final: Final[Particle], at_end: bool) -> Candidate:
    particle = final.particle
    known = particle.values[-1:] if at_end else [v for v in particle.values if v is not None]
    value = known[-1] if known else None
    reward = None if particle.outcome is None else particle.observed
    if particle.held and value is not None:
        reward = particle.observed + value  # what it has got, and what it may expect once the effect has happened
    done, failed = particle.status in _DONE, particle.status == "failed"
    return Candidate(final.log_weight, value, reward, particle.output, done=done, failed=failed)


def _index(chosen: Any, n: int) -> int:
    if not isinstance(chosen, int | np.integer) or not 0 <= chosen < n:
        raise SelectionError(f"select has to return the index of one of {n} candidates, got {chosen!r}")
    return int(chosen)


def raise_failure(request: StreamRequest, population: AppPopulation, winner: Particle) -> None:
    """Raise what a plain run that ended like the winner would have raised, if anything."""
    if winner.command is not None:
        # a particle is a root, whose parent LangGraph calls ""; in truth it is the graph around
        around = request.config["configurable"].get("checkpoint_ns", "")
        raise ParentCommand(replace(winner.command, graph=around))
    if winner.error is None:
        return
    if isinstance(winner.error, BudgetExceededError):
        if winner.boundary == 0:  # not one agent step was paid for: there is nothing to answer with
            raise winner.error
        return
    errors = [p.error for p in population.born if p.error is not None]
    if len({type(e) for e in errors}) == 1:
        # what a plain run would have raised, so that the caller's handlers still match
        winner.error.add_note(f"all {len(errors)} particles of this run failed like this")
        raise winner.error
    raise AllParticlesFailedError(errors) from winner.error
