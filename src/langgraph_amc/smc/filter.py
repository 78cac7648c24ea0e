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
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc.backtracking import Backtrack, as_live
from langgraph_amc.smc.branching import PopulationError, branch, prune_all
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
    Past,
    Pruned,
    Resampled,
    Scored,
    Stopped,
    Weighted,
    Withheld,
)
from langgraph_amc.smc.live import Live, joined
from langgraph_amc.smc.resampling import Resampler, systematic
from langgraph_amc.smc.schedules import Check, Schedule
from langgraph_amc.smc.tempering import Tempering
from langgraph_amc.smc.weighing import too_little_said, weigh
from langgraph_amc.smc.weights import Floats, LogWeights, effective_sample_size

P = TypeVar("P")
T = TypeVar("T")


class Population(Protocol[P]):
    """The N running copies of the agent, as the filter sees them; particles are told apart by identity."""

    async def start(self, n: int) -> Sequence[P]:
        """n fresh particles at boundary 0."""
        ...

    async def advance(self, particles: Sequence[P], until: int | None) -> Sequence[Arrival]:
        """Run each on to boundary `until` or its end (None: to its end); no barrier in between.

        Who is still on its way when it returns is late, and is among the particles of a later call again.
        """
        ...

    async def score(self, particles: Sequence[P]) -> ArrayLike:
        """The future return each live particle can expect, NaN if missing; never called with a finished one."""
        ...

    async def fork(self, particle: P) -> P:
        """An independent copy at the same point, made before the original goes on."""
        ...

    async def prune(self, particle: P) -> None:
        """Drop a particle that will not be asked for again."""
        ...


class Parking(Protocol[P]):
    """What backtracking needs besides."""

    async def park(self, particle: P) -> P | None:
        """A copy that stays where the particle stands, to be forked later; None where there can be none."""
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
    uncertainty: Callable[[int], float] | None = None,
    stop: Callable[[Sequence[Final[P]]], str | None] | None = None,
    backtrack: tuple[Backtrack, Parking[P]] | None = None,
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
    uncertainty: of V at a boundary, in units of reward: where the scores differ by less, nothing is resampled.
    stop: why those that have ended are enough, or None; then the others are pruned. Not for "sample".
    backtrack: let resamplings go back to earlier states, which the population keeps. Not for "sample".

    If the population raises, or the generator is closed early, every particle still held is pruned.
    Raises ConfigurationError for arguments that cannot work, PopulationError and WeightError for bad answers.
    """
    _validate(particles, objective, tempering, max_boundary, stops=stop is not None, goes_back=backtrack is not None)
    growing = tempering.weighs == "growth"
    fresh = list(await population.start(particles)) if start is None else []
    held = {id(p): p for p in (fresh if start is None else start.live)}  # everything to prune should we be stopped
    try:
        state = start or FilterState.fresh(_exactly(particles, fresh, "start"))
        live, finals, pool, reached = Live.of(state), list(state.finals), list(state.pool), state.boundary
        held |= {id(past.particle): past.particle for past in pool}
        while live.particles:
            yield Barrier(live.state(reached, finals, pool))
            boundary = _next_check(schedule, reached, max_boundary)
            arrivals = _exactly(len(live), await population.advance(live.particles, boundary), "advance")
            yield Advanced(boundary, tuple(live.particles), tuple(arrivals))

            on_time = np.array([not arrival.late for arrival in arrivals])
            live, late = live.take(np.flatnonzero(on_time)), live.take(np.flatnonzero(~on_time))
            arrivals = [arrival for arrival in arrivals if not arrival.late]
            if not arrivals:
                raise PopulationError("Population.advance returned before anybody had arrived: wait for one at least.")
            ended = np.array([arrival.done or arrival.failed or boundary is None for arrival in arrivals])
            going = np.flatnonzero(~ended)
            value = np.zeros(len(live))  # stays 0 where a particle has ended: it has no future
            if scored and boundary is not None and going.size:
                asked = live.take(going).particles
                value[going] = live.seen[going] = _values(going.size, await population.score(asked))
                yield Scored(boundary, tuple(asked), tuple(value[going].tolist()))

            weighed = weigh(tempering, live, arrivals, value, ended)
            log_weights, sharpness = weighed.log_weights, weighed.sharpness
            ess = effective_sample_size(log_weights[going]) / going.size if going.size else 0.0
            yield Weighted(boundary, tuple(live.particles), tuple(log_weights.tolist()), sharpness, ess)
            for i in np.flatnonzero(ended):
                finals.append(_final(live.particles[i], arrivals[i], log_weights[i], live.seen[i]))
                yield Archived(boundary, finals[-1])
            if stop is not None and (why := stop(finals)):
                for particle in (*live.take(going).particles, *late.particles):
                    await population.prune(held.pop(id(particle)))
                    yield Pruned(boundary, particle)
                yield Stopped(boundary, why)
                break

            live.growth, live.checked[:] = weighed.growth, boundary or reached
            here = live.take(going)
            live = joined(here, late)
            if boundary is None or not len(here):
                continue
            reached = boundary
            if backtrack is not None:
                policy, parking = backtrack
                pool += await _remembered(parking, here, boundary)
                held |= {id(past.particle): past.particle for past in pool}
                pool, forgotten = policy.kept(pool, sharpness, boundary)
                for past in forgotten:
                    await population.prune(held.pop(id(past.particle)))
            weights = LogWeights(log_weights[going])
            if weights.log_sum == -math.inf:
                yield Collapsed(boundary, tuple(here.particles))
                continue
            if not schedule.fires(Check(boundary, ess)):
                continue
            error = uncertainty(boundary) if scored and uncertainty is not None else None
            if (reason := too_little_said(weighed.score[going], error)) is not None:
                yield Withheld(boundary, tuple(here.particles), reason)
                continue
            slots = len(here)
            if objective == "optimise":
                slots = _slots(particles, len(live), len(finals)) - len(late)
            before = weights.log
            if pool and backtrack is not None:
                before = np.concatenate([before, backtrack[0].log_weights(pool, sharpness, boundary)])
            ancestors = resampler(rng, before, slots)
            log_base = weights.log_sum - math.log(slots) if growing else -math.log(slots + len(late))
            behind = as_live(pool)
            yield Resampled(
                boundary,
                (*here.particles, *behind.particles),
                tuple(ancestors.tolist()),
                tuple(before.tolist()),
                log_base,
                sharpness,
                ess,
                len(pool),
            )
            offspring = joined(here, behind).take(ancestors)
            offspring.particles, changes = await branch(
                population, boundary, here.particles, ancestors.tolist(), held, behind.particles
            )
            offspring.log_base[:] = log_base
            offspring.baseline = offspring.baseline + offspring.growth if growing else np.zeros(slots)
            offspring.growth = np.zeros(slots)
            live = joined(offspring, late)
            for change in changes:
                yield change
        for past in pool:
            await population.prune(held.pop(id(past.particle)))
    except BaseException as error:
        await prune_all(population, list(held.values()), error)
        raise
    evidence = LogWeights(np.array([final.log_weight for final in finals])).log_sum
    sampled = tempering.exact and stop is None and backtrack is None
    yield Finished(FilterResult(tuple(finals), evidence if sampled else None))


async def _remembered(parking: Parking[P], here: Live[P], boundary: int) -> list[Past[P]]:
    """What a later resampling may go back to: those whose score is known and not impossible."""
    parked = [
        (i, await parking.park(here.particles[i]))
        for i in range(len(here))
        if not math.isnan(here.seen[i]) and here.growth[i] > -math.inf
    ]
    base, growth, potential, seen = here.log_base, here.growth, here.baseline + here.growth, here.seen
    return [
        Past(copy, boundary, float(base[i]), float(growth[i]), float(potential[i]), float(seen[i]))
        for i, copy in parked
        if copy is not None
    ]


def _slots(particles: int, live: int, ended: int) -> int:
    """Slots for the living: all N, until as many runs as that have ended besides; then nobody is replaced any more.

    Without a bound, runs of varying length would be replaced for ever as they end, and the whole would not.
    """
    return min(particles, max(live, 2 * particles - ended))


def _next_check(schedule: Schedule, boundary: int, max_boundary: int) -> int | None:
    return next((b for b in range(boundary + 1, max_boundary + 1) if schedule.possible(b)), None)


def _validate(
    particles: int, objective: str, tempering: Tempering, max_boundary: int, *, stops: bool, goes_back: bool
) -> None:
    if particles < 1 or max_boundary < 0:
        raise ConfigurationError(f"Need particles >= 1 and max_boundary >= 0, got {particles} and {max_boundary}.")
    if objective not in ("optimise", "sample"):
        raise ConfigurationError(f"objective must be 'optimise' or 'sample', got {objective!r}.")
    if objective == "sample" and not tempering.exact:
        raise ConfigurationError(
            "objective='sample' needs a given temperature: a solved sharpness (ess_target) samples from no "
            "known distribution. Use fixed(beta) or tilt(beta), or objective='optimise'."
        )
    if objective == "sample" and (stops or goes_back):
        raise ConfigurationError(
            "objective='sample' cannot stop early or go back to earlier states: what is left would be a sample of no "
            "known distribution. Use objective='optimise'."
        )


def _exactly(n: int, answer: Sequence[T], what: str) -> list[T]:
    if len(answer) != n:
        raise PopulationError(f"Population.{what} returned {len(answer)} items for {n} particles: return one for each.")
    return list(answer)


def _values(n: int, answer: ArrayLike) -> Floats:
    values = np.asarray(answer, dtype=np.float64)
    if values.shape != (n,) or (values == np.inf).any():
        raise PopulationError(
            f"The value function must return one number below +inf for each of {n} particles, or NaN where it is "
            f"missing, got {values!r}."
        )
    return values


def _final(particle: P, arrival: Arrival, log_weight: float, seen: float) -> Final[P]:
    last_value = None if math.isnan(seen) else float(seen)
    return Final(particle, float(log_weight), arrival.reward, last_value, arrival.done, arrival.failed)
