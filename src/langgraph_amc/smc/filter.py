"""The particle filter of Agentic Monte Carlo: run, weigh, prune the bad, branch the good.

Paper: w_t = w_{t-1}·exp(V(s_t) − V(s_{t-1}) + r(s_{t-1})/β). Those factors telescope, so a particle's weight
at a check is its weight at the last resampling times exp(growth of its potential since), potential = (R +
V)/β: nothing is lost where no resampling happens. V(s_0) is the same for everybody and left out, so that Σw
estimates Z = E_π[exp(R/β)] itself; that is unbiased for any V, with a better V it varies less. A finished
particle has V = 0: it gets its final weight once and is set aside. Where the tempering weighs by level
instead of growth, a weight is the potential's exponential and resampling leaves nothing behind (see
`tempering.ess_target`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.smc.events import (
    Advanced,
    Archived,
    Arrival,
    Barrier,
    Collapsed,
    Event,
    FilterResult,
    FilterState,
    Final,
    Finished,
    Forked,
    Pruned,
    Resampled,
    Scored,
    Weighted,
)
from langgraph_amc.smc.resampling import Resampler, systematic
from langgraph_amc.smc.schedules import Check, Schedule
from langgraph_amc.smc.tempering import Bools, Tempering
from langgraph_amc.smc.weights import Floats, LogWeights, effective_sample_size

P = TypeVar("P")
T = TypeVar("T")


class PopulationError(AMCError):
    """A population or value function that answered with the wrong number of things, or with NaN."""


class Population(Protocol[P]):
    """The N running copies of the agent, as the filter sees them; particles are told apart by identity."""

    async def start(self, n: int) -> Sequence[P]:
        """n fresh particles at boundary 0."""
        ...

    async def advance(self, particles: Sequence[P], until: int | None) -> Sequence[Arrival]:
        """Run each on to boundary `until` or its end (None: to its end); no barrier in between."""
        ...

    async def score(self, particles: Sequence[P]) -> ArrayLike:
        """The future return each live particle can expect; never called with a finished one."""
        ...

    async def fork(self, particle: P) -> P:
        """An independent copy at the same point, made before the original goes on."""
        ...

    async def prune(self, particle: P) -> None:
        """Drop a particle that will not be asked for again."""
        ...


async def particle_filter(
    population: Population[P],
    *,
    particles: int,
    schedule: Schedule,
    tempering: Tempering,
    resampler: Resampler = systematic,
    objective: Literal["optimise", "sample"] = "optimise",
    rng: np.random.Generator,
    max_boundary: int = 10_000,
    scored: bool = True,
    start: FilterState[P] | None = None,
) -> AsyncGenerator[Event[P], None]:
    """Run a population to its end, resampling where the schedule says; yields events, last `Finished`.

    Parameters
    ----------
    particles: N, the number started, and the most that are live at any time.
    objective: "optimise" fills all N slots at a resampling, those of finished particles included, until 2N
        runs have ended or are under way; "sample"
        keeps one slot per live particle and refuses a tempering that is not exact. Both keep the total
        weight.
    max_boundary: after it nothing is compared any more: every particle runs to its end.
    scored: False if there is no value function: V is 0 everywhere.
    start: go on from here, for example where another filter's last `Barrier` stood, instead of with fresh
        particles.

    If the population raises, or the generator is closed early, every particle still held is pruned.
    Raises ConfigurationError for arguments that cannot work, PopulationError and WeightError for bad answers.
    """
    _validate(particles, objective, tempering, max_boundary)
    growth = tempering.weighs == "growth"
    fresh = list(await population.start(particles)) if start is None else []
    held = {id(p): p for p in (fresh if start is None else start.live)}  # everything to prune should we be stopped
    try:
        state = start or FilterState.fresh(_exactly(particles, fresh, "start"))
        live, finals, log_base = list(state.live), list(state.finals), state.log_base
        baseline, seen = np.array(state.baseline), np.array(state.seen)
        reached = state.boundary
        while live:
            yield Barrier(FilterState(reached, tuple(live), tuple(finals), log_base, tuple(baseline), tuple(seen)))
            boundary = _next_check(schedule, reached, max_boundary)
            arrivals = _exactly(len(live), await population.advance(live, boundary), "advance")
            yield Advanced(boundary, tuple(live), tuple(arrivals))

            ended = np.array([arrival.done or arrival.failed or boundary is None for arrival in arrivals])
            going = np.flatnonzero(~ended)
            value = np.zeros(len(live))  # stays 0 where a particle has ended: it has no future
            if scored and boundary is not None and going.size:
                value[going] = seen[going] = _values(going.size, await population.score([live[i] for i in going]))
                yield Scored(boundary, tuple(live[i] for i in going), tuple(value[going].tolist()))

            potential, sharpness, log_weights = _weigh(tempering, arrivals, value, ended, baseline, log_base)
            ess = effective_sample_size(log_weights[going]) / going.size if going.size else 0.0
            yield Weighted(boundary, tuple(live), tuple(log_weights.tolist()), sharpness, ess)
            for i in np.flatnonzero(ended):
                finals.append(_final(live[i], arrivals[i], log_weights[i], seen[i]))
                yield Archived(boundary, finals[-1])

            live = [live[i] for i in going]
            potential, baseline, seen = potential[going], baseline[going], seen[going]
            if boundary is None or not live:
                break
            reached = boundary
            weights = LogWeights(log_weights[going])
            if weights.log_sum == -math.inf:
                yield Collapsed(boundary, tuple(live))
                continue
            if not schedule.fires(Check(boundary, ess)):
                continue
            slots = _slots(particles, len(live), len(finals)) if objective == "optimise" else len(live)
            ancestors = resampler(rng, weights.log, slots)
            log_base = (weights.log_sum if growth else 0.0) - math.log(slots)
            yield Resampled(
                boundary,
                tuple(live),
                tuple(ancestors.tolist()),
                tuple(weights.log.tolist()),
                log_base,
                sharpness,
                ess,
            )
            live, changes = await _branch(population, boundary, live, ancestors.tolist(), held)
            baseline, seen = potential[ancestors] if growth else np.zeros(slots), seen[ancestors]
            for change in changes:
                yield change
    except BaseException as error:
        await _prune_all(population, list(held.values()), error)
        raise
    log_evidence = LogWeights(np.array([final.log_weight for final in finals])).log_sum
    yield Finished(FilterResult(tuple(finals), log_evidence if tempering.exact else None))


def _slots(particles: int, live: int, ended: int) -> int:
    """Slots for the living: all N, until as many runs as that have ended besides; then nobody is replaced any more.

    Without a bound, runs of varying length would be replaced for ever as they end, and the whole would not.
    """
    return min(particles, max(live, 2 * particles - ended))


def _next_check(schedule: Schedule, boundary: int, max_boundary: int) -> int | None:
    return next((b for b in range(boundary + 1, max_boundary + 1) if schedule.possible(b)), None)


def _weigh(
    tempering: Tempering,
    arrivals: Sequence[Arrival],
    value: Floats,
    ended: Bools,
    baseline: Floats,
    log_base: float,
) -> tuple[Floats, float, Floats]:
    """Potential [n], sharpness, and log-weights [n] = log_base + sharpness·(potential − baseline)."""
    failed = np.array([arrival.failed for arrival in arrivals])
    reward = np.array([0.0 if arrival.failed else arrival.reward for arrival in arrivals])
    potential = tempering.potential(reward, value, ended)
    log_ratio = potential - baseline
    # The living set the sharpness; where all have ended, those who did not fail.
    sharpness = tempering.sharpness(log_ratio[~failed if ended.all() else ~ended])
    log_weights = np.where(failed, -np.inf, log_base + sharpness * log_ratio)
    return potential, sharpness, LogWeights(log_weights).log


async def _branch(
    population: Population[P], boundary: int, live: list[P], ancestors: list[int], held: dict[int, P]
) -> tuple[list[P], list[Pruned[P] | Forked[P]]]:
    """The next generation, slot k descending from `live[ancestors[k]]`, and what it took."""
    changes: list[Pruned[P] | Forked[P]] = []
    offspring: list[P] = []
    first = set[int]()
    for i in sorted(set(range(len(live))) - set(ancestors)):
        await population.prune(held.pop(id(live[i])))
        changes.append(Pruned(boundary, live[i]))
    for i in ancestors:
        child = live[i]
        if i in first:
            child = await population.fork(live[i])
            if id(child) in held:
                raise PopulationError("Population.fork returned a particle that is in use: return a new one.")
            held[id(child)] = child
            changes.append(Forked(boundary, live[i], child))
        first.add(i)  # the first offspring is the particle itself
        offspring.append(child)
    return offspring, changes


async def _prune_all(population: Population[P], particles: Sequence[P], error: BaseException) -> None:
    """Prune everything that is left because of `error`, and note on it what could not be pruned."""
    failures: list[Exception] = []
    for particle in particles:
        try:
            await population.prune(particle)
        except Exception as failure:
            error.add_note(f"While cleaning up, a particle could not be pruned: {failure!r}")
            failures.append(failure)
    if failures and isinstance(error, GeneratorExit):  # which nobody ever sees
        raise ExceptionGroup("The filter was closed early and particles could not be pruned", failures)


def _validate(particles: int, objective: str, tempering: Tempering, max_boundary: int) -> None:
    if particles < 1 or max_boundary < 0:
        raise ConfigurationError(f"Need particles >= 1 and max_boundary >= 0, got {particles} and {max_boundary}.")
    if objective not in ("optimise", "sample"):
        raise ConfigurationError(f"objective must be 'optimise' or 'sample', got {objective!r}.")
    if objective == "sample" and not tempering.exact:
        raise ConfigurationError(
            "objective='sample' needs a given temperature: a solved sharpness (ess_target) samples from no "
            "known distribution. Use fixed(beta) or tilt(beta), or objective='optimise'."
        )


def _exactly(n: int, answer: Sequence[T], what: str) -> list[T]:
    if len(answer) != n:
        raise PopulationError(f"Population.{what} returned {len(answer)} items for {n} particles: return one for each.")
    return list(answer)


def _values(n: int, answer: ArrayLike) -> Floats:
    values = np.asarray(answer, dtype=np.float64)
    if values.shape != (n,) or np.isnan(values).any() or (values == np.inf).any():
        raise PopulationError(
            f"The value function must return one number below +inf for each of {n} particles, got "
            f"{values!r}: a score that could not be computed must be raised as an error, not returned as NaN."
        )
    return values


def _final(particle: P, arrival: Arrival, log_weight: float, seen: float) -> Final[P]:
    last_value = None if math.isnan(seen) else float(seen)
    return Final(particle, float(log_weight), arrival.reward, last_value, arrival.done, arrival.failed)
