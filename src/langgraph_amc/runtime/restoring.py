"""How a run that was broken off comes back from its journal.

It starts from the last barrier of the filter; particles that had got further are where they had got to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from langgraph.store.base import PutOp

from langgraph_amc.runtime.inside import state_inside
from langgraph_amc.runtime.isolation import OverlayStore
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.runtime.record import Kept, Record
from langgraph_amc.runtime.result import Check
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.smc import FilterState, Final
from langgraph_amc.trajectories.types import Usage

if TYPE_CHECKING:
    from langgraph_amc.runtime.journal import ParticleRecord
    from langgraph_amc.runtime.population import AppPopulation

Stored = Mapping[str, tuple["ParticleRecord", ParticleSaver | None]]
"""Records and savers of particles, by name, in order of birth."""


@dataclass(frozen=True, slots=True)
class Back:
    """What a journal brings back.

    Attributes
    ----------
    state: where the filter goes on, unless somebody has been chosen already.
    chosen: the particle that answers, or whose effects may happen.
    rng: state of the bit generator.
    """

    state: FilterState[Particle] | None
    chosen: Particle | None
    finals: tuple[Final[Particle], ...]
    checks: tuple[Check, ...]
    rng: Mapping[str, Any]


async def bring_back(population: AppPopulation, stored: Stored, state: Mapping[str, Any], n: int) -> Back:
    """Put a run's particles into the population; ``state`` is the last one of the journal, ``n`` its particles."""
    by_name: dict[str, Particle] = {}
    for name in state["born"]:  # one that was born after this is born again
        record, saver = stored[name]
        by_name[name] = await _particle(population, record, saver, by_name)
    population.take_back(list(by_name.values()))
    rng, checks = _rng(state["rng"]), tuple(_check(check) for check in state["checks"])
    finals = tuple(
        Final(by_name[f["particle"]], **{k: v for k, v in f.items() if k != "particle"}) for f in state["finals"]
    )
    ended = tuple(final for final in finals if final.particle.done)
    if state["chosen"] is None:
        revived = [final.particle for final in finals if not final.particle.done]
        return Back(_filter_state(state["filter"], by_name, ended, revived), None, ended, checks, rng)
    chosen = by_name[state["chosen"]]
    await population.only(chosen)
    if state["held"] and [effect.key for effect in chosen.held] != state["held"]:
        # the effects have happened, and it has gone on since
        return Back(await population.branch(chosen, n), None, ended, checks, rng)
    return Back(None, chosen, ended, checks, rng)


def spent(booked: Mapping[str, Any] | None, used: Sequence[Usage]) -> Usage:
    """What a run has spent: at least what was booked, judges included, and what its particles used.

    Where they do not know a price, it is the one at which was booked.
    """
    total = sum(used, Usage())
    if booked is None:
        return total
    known = Usage(**booked)
    if total.cost is None and known.cost is not None:
        total = replace(total, cost=known.cost * max(1.0, total.tokens / max(1, known.tokens)))
    return Usage(
        max(total.calls, known.calls),
        max(total.input_tokens, known.input_tokens),
        max(total.output_tokens, known.output_tokens),
        None if total.cost is None else max(total.cost, known.cost or 0.0),
    )


class RestoredError(Exception):
    """What a particle failed with before its process ended, as text."""


def _filter_state(
    filter: Mapping[str, Any],
    by_name: Mapping[str, Particle],
    finals: tuple[Final[Particle], ...],
    revived: Sequence[Particle],
) -> FilterState[Particle]:
    live = tuple(by_name[name] for name in filter["live"])
    for particle, value in zip(live, filter["seen"], strict=True):
        missing = filter["boundary"] + 1 - len(particle.values)
        if missing > 0 and not math.isnan(value):  # it was told before it was scored
            particle.values = (*particle.values, *(None,) * (missing - 1), value)
    return FilterState(
        filter["boundary"],
        (*live, *revived),
        finals,
        filter["log_base"],
        (*filter["baseline"], *(0.0 for _ in revived)),
        (*filter["seen"], *(math.nan for _ in revived)),
    )


async def _particle(
    population: AppPopulation,
    record: ParticleRecord,
    saver: ParticleSaver | None,
    by_name: Mapping[str, Particle],
) -> Particle:
    launch, extra = population.launch, record.extra
    store = None if population.store is None else OverlayStore(population.store)
    if store is not None:
        store.take_back([_put(op) for op in extra["store"]])
    particle = Particle(
        launch,
        record.name,
        saver or population.root.fork(),
        store,
        population.own_input(),
        population.scope(record.name, extra["effects"]),
        parent=None if record.parent is None else by_name[record.parent],
        forked_at=record.forked_at,
        status=record.status,
        boundary=record.boundary,
        step=record.step,
        values=record.values,
        outcome=record.outcome,
        judged=extra["judged"],
        calls=launch.calls(),
    )
    particle.calls.take_back(record.usage, record.model_nodes, extra["parameters"])
    if record.error is not None:
        particle.error = RestoredError(record.error)
    state = None
    if record.segments:
        seen = None
        if saver is not None:
            state = await launch.engine.state(launch.app, saver, launch.thread_id)
            seen = state_inside(saver, launch.thread_id, state, Record(), launch.transcript)
        kept = Kept(record.segments, record.rewards, extra["messages"], extra["seen"])
        particle.record = Record.restored(launch.transcript, kept, seen, launch.needs_text)
    particle.restore(state, record.output, started=record.started, ran=record.ran)
    return particle


def _check(check: Mapping[str, Any]) -> Check:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in check.items()}
    return Check(**fields)


def _rng(state: Mapping[str, Any]) -> dict[str, Any]:
    return {**state, "state": {k: int(v) for k, v in state["state"].items()}}


def _put(stored: Sequence[Any]) -> tuple[PutOp, datetime]:
    namespace, key, value, index, ttl, when = stored
    return PutOp(tuple(namespace), key, value, index=index, ttl=ttl), datetime.fromisoformat(when)
