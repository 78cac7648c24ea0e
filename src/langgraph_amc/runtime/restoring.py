"""How a run that was broken off comes back from its journal.

It starts from the last barrier of the filter; particles that had got further are where they had got to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from langgraph.store.base import PutOp

from langgraph_amc.runtime.inside import state_inside
from langgraph_amc.runtime.isolation import OverlayStore
from langgraph_amc.runtime.journal import JournalError
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.runtime.record import Kept, Record
from langgraph_amc.runtime.result import Check
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.smc import FilterState, Final, Past, TreeNode
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
    more: what `JournalKeeper.more` held.
    """

    state: FilterState[Particle] | None
    chosen: Particle | None
    finals: tuple[Final[Particle], ...]
    checks: tuple[Check, ...]
    rng: Mapping[str, Any]
    more: Mapping[str, Any]


async def bring_back(population: AppPopulation, stored: Stored, state: Mapping[str, Any]) -> Back:
    """Put a run's particles into the population; ``state`` is the last one of the journal."""
    if "more" not in state:
        raise JournalError(
            "this run was begun by an older version of langgraph-amc, which kept less of it: let that version finish "
            "it, or delete it with `amc prune --status resumable`"
        )
    by_name: dict[str, Particle] = {}
    for name in state["born"]:  # one that was born after this is born again
        record, saver = stored[name]
        by_name[name] = await _particle(population, record, saver, by_name)
    born = list(by_name.values())
    for name in () if state["filter"] is None else [past["particle"] for past in state["filter"]["pool"]]:
        record, saver = stored[name]
        by_name[name] = await _particle(population, record, saver, by_name)
    population.take_back(born, list(by_name.values())[len(born) :])
    more, rng, checks = state["more"], _rng(state["rng"]), tuple(_check(check) for check in state["checks"])
    finals = tuple(_final(final, by_name) for final in state["finals"])
    ended = tuple(final for final in finals if final.particle.done)
    if state["chosen"] is None:
        revived = [final.particle for final in finals if not final.particle.done]
        return Back(_filter_state(state["filter"], by_name, ended, revived), None, ended, checks, rng, more)
    chosen = by_name[state["chosen"]]
    await population.only(chosen)
    if state["held"] and [effect.key for effect in chosen.held] != state["held"]:
        # the effects have happened, and it has gone on since
        return Back(await population.branch(chosen, population.founders), None, ended, checks, rng, more)
    return Back(None, chosen, ended, checks, rng, more)


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


def stored_state(state: FilterState[Particle]) -> dict[str, Any]:
    """Where a filter stands, as JSON; those that ended in it are stored beside it."""
    return {
        "boundary": state.boundary,
        "live": [p.name for p in state.live],
        **{name: list(getattr(state, name)) for name in _COLUMNS},
        "earlier": [stored_final(final) for final in state.earlier],
        "started": state.started,
        "pool": [{**_plain(past), "particle": past.particle.name} for past in state.pool],
        "tree": [{**_plain(node), "particle": node.particle and node.particle.name} for node in state.tree],
    }


def stored_final(final: Final[Particle]) -> dict[str, Any]:
    """A particle that has ended, as JSON."""
    return {**_plain(final), "particle": final.particle.name}


_COLUMNS = ("log_base", "baseline", "growth", "seen", "checked")


def _plain(row: Any) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row) if field.name != "particle"}


def _final(stored: Mapping[str, Any], by_name: Mapping[str, Particle]) -> Final[Particle]:
    return Final(**{**stored, "particle": by_name[stored["particle"]]})


def _filter_state(
    filter: Mapping[str, Any],
    by_name: Mapping[str, Particle],
    finals: tuple[Final[Particle], ...],
    revived: Sequence[Particle],
) -> FilterState[Particle]:
    live = tuple(by_name[name] for name in filter["live"])
    for particle, value, checked in zip(live, filter["seen"], filter["checked"], strict=True):
        missing = checked + 1 - len(particle.values)
        if missing > 0 and not math.isnan(value):  # it was told before it was scored
            particle.values = (*particle.values, *(None,) * (missing - 1), value)
    n = len(revived)
    base = max(filter["log_base"], default=-math.log(max(n, 1)))
    return FilterState(
        filter["boundary"],
        (*live, *revived),
        finals,
        (*filter["log_base"], *(base,) * n),
        (*filter["baseline"], *(0.0,) * n),
        (*filter["growth"], *(0.0,) * n),
        (*filter["seen"], *(math.nan,) * n),
        (*filter["checked"], *(filter["boundary"],) * n),
        tuple(_final(final, by_name) for final in filter["earlier"]),
        filter["started"],
        tuple(Past(**{**past, "particle": by_name[past["particle"]]}) for past in filter["pool"]),
        tuple(_node(node, by_name) for node in filter.get("tree", ())),
    )


def _node(stored: Mapping[str, Any], by_name: Mapping[str, Particle]) -> TreeNode[Particle]:
    return TreeNode(**{**stored, "particle": stored["particle"] and by_name[stored["particle"]]})


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
        judged=extra["judged"] and not _unknown(population, record),
        calls=launch.calls(record.name),
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


def _unknown(population: AppPopulation, record: ParticleRecord) -> bool:
    """Whether what a particle was worth is missing although there is a value function, which may be asked again."""
    value = record.values[-1] if record.values else None
    return population.score_states is not None and record.outcome is None and value is None


def _check(check: Mapping[str, Any]) -> Check:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in check.items()}
    return Check(**fields)


def _rng(state: Mapping[str, Any]) -> dict[str, Any]:
    return {**state, "state": {k: int(v) for k, v in state["state"].items()}}


def _put(stored: Sequence[Any]) -> tuple[PutOp, datetime]:
    namespace, key, value, index, ttl, when = stored
    return PutOp(tuple(namespace), key, value, index=index, ttl=ttl), datetime.fromisoformat(when)
