"""How a run is written into a journal, and how a broken one comes back.

A particle is written when it reaches a boundary or its end, the population at each barrier of the filter, and
the decision before it has consequences (effects, the commit of the winner). A run that comes back starts from
the last barrier; particles that had got further are where they had got to.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from langgraph.store.base import PutOp

from langgraph_amc.policy.account import Account
from langgraph_amc.runtime.engine import Engine
from langgraph_amc.runtime.inside import state_inside
from langgraph_amc.runtime.isolation import OverlayStore
from langgraph_amc.runtime.journal import RunInUseError
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.runtime.record import Record
from langgraph_amc.runtime.request import JOURNAL_KEY, RUN_KEY, StreamRequest
from langgraph_amc.runtime.result import AMCResult, Check
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.smc import FilterState, Final
from langgraph_amc.trajectories.types import Usage

if TYPE_CHECKING:
    from langgraph_amc.runtime.journal import ParticleRecord, RunJournal
    from langgraph_amc.runtime.population import AppPopulation


@dataclass(frozen=True, slots=True)
class Back:
    """What a journal brings back.

    Attributes
    ----------
    state: where the filter goes on, unless somebody has been chosen already.
    chosen: the particle that answers, or whose effects may happen.
    """

    state: FilterState[Particle] | None
    chosen: Particle | None
    finals: tuple[Final[Particle], ...]
    checks: tuple[Check, ...]


async def open_keeper(
    request: StreamRequest, engine: Engine, root: ParticleSaver, thread_id: str | None, head_id: str | None, seed: int
) -> JournalKeeper | None:
    """The keeper of this call: of a new run, or of the unfinished one that the same call had begun before."""
    journal = request.settings.journal
    if journal is None:
        return None
    about = {
        "app": request.app.get_name(),
        "thread_id": thread_id,
        "head": head_id,
        "particles": request.settings.particles,
    }
    key = _key(request, root, thread_id)
    attempt = 0
    while True:
        try:
            run = await engine.call(
                functools.partial(
                    journal.open,
                    f"{key}#{attempt}" if attempt else key,
                    seed=seed,
                    about=about,
                    input=request.input,
                    serde=root.serde,
                )
            )
        except RunInUseError:
            # without a thread or a name, two calls with the same input that run at once are two runs
            if thread_id is not None or not request.config["configurable"].keys().isdisjoint((RUN_KEY, JOURNAL_KEY)):
                raise
            attempt += 1
            continue
        keeper = JournalKeeper(run, engine, root, request.settings.particles)
        if keeper.goes_on_from(head_id):
            return keeper
        await engine.call(functools.partial(run.finish, "abandoned", {"why": "the thread has moved on since"}))


def _key(request: StreamRequest, root: ParticleSaver, thread_id: str | None) -> str:
    """What the same call has in common with an earlier one."""
    if (key := request.config["configurable"].get(JOURNAL_KEY)) is not None:
        return str(key)
    name = request.config["configurable"].get(RUN_KEY)
    if name is not None:
        return f"named:{name}"
    from langgraph_amc.runtime.journal.coding import dump

    settings = request.settings
    kind, data = dump(root.serde, request.input, "the input of the run")
    place = request.config["configurable"].get("checkpoint_ns") if request.nested else ""
    parts = (request.app.get_name(), thread_id, place, settings.particles, settings.objective, settings.seed, kind)
    return hashlib.blake2b(repr(parts).encode() + data, digest_size=16).hexdigest()


class JournalKeeper:
    """Writes one run into its journal."""

    def __init__(self, run: RunJournal, engine: Engine, root: ParticleSaver, particles: int) -> None:
        self.run = run
        self.account: Account | None = None
        """The run's own account, if it has one."""
        self._particles = particles
        self._engine = engine
        self._started = time.monotonic()
        self._told: set[str] = set()
        self._buried: set[str] = set()
        self._rows: list[dict[str, Any]] = []
        self._ended = False
        left = run.restore(root.base, root.serde, root.blank)
        self._state = None if left is None else left.population
        self._stored = {} if left is None else left.particles

    @property
    def restored(self) -> bool:
        """Whether there is anything to go on from."""
        return self._state is not None

    @property
    def seconds(self) -> float:
        """What the run has lasted, in this process and in those before it."""
        before = 0.0 if self._state is None else self._state["seconds"]
        return before + time.monotonic() - self._started

    def goes_on_from(self, head_id: str | None) -> bool:
        """Whether the user's thread still stands where this run began, or where it had begun to commit its winner."""
        if head_id == self.run.about["head"]:
            return True
        chosen = None if self._state is None else self._state["chosen"]
        saver = None if chosen is None else self._stored[chosen][1]
        return saver is not None and any(node.id == head_id for node in saver.lineage())

    # -- writing ---------------------------------------------------------------------------------

    def particle(self, particle: Particle) -> None:
        """A particle has reached a boundary or its end."""
        if particle.status == "truncated":
            return  # with a larger budget it can go on from where it was
        from langgraph_amc.runtime.journal import ParticleRecord

        self._told.add(particle.name)
        record = particle.record
        extra = {
            "judged": particle.judged,
            "store": [] if particle.store is None else [_put_json(op, when) for op, when in particle.store.pending()],
            "effects": None if particle.effects is None else particle.effects.state(),
            "parameters": dict(particle.calls.parameters),
        }
        self.run.particle(
            ParticleRecord(
                name=particle.name,
                parent=None if particle.parent is None else particle.parent.name,
                forked_at=particle.forked_at,
                status=particle.status,
                boundary=particle.boundary,
                step=particle.step,
                started=particle.started,
                ran=particle.ran,
                segments=record.segments,
                rewards=record.rewards,
                values=particle.values,
                outcome=particle.outcome,
                usage=particle.calls.usage,
                model_nodes=particle.calls.nodes,
                error=None if particle.error is None else f"{type(particle.error).__name__}: {particle.error}",
                output=particle.output if particle.done else None,
                extra=extra,
            ),
            None if particle.status in ("pruned", "failed") else particle.saver,
        )

    def barrier(
        self,
        population: AppPopulation,
        state: FilterState[Particle],
        rng: np.random.Generator,
        checks: Sequence[Check],
    ) -> None:
        """Everything up to here is decided."""
        for particle in population.born:
            new, gone = particle.name not in self._told, particle.status == "pruned"
            if new or (gone and particle.name not in self._buried):
                self.particle(particle)
            if gone:
                self._buried.add(particle.name)
        self._write(
            rng,
            checks,
            state.finals,
            filter={
                "boundary": state.boundary,
                "live": [p.name for p in state.live],
                "log_base": state.log_base,
                "baseline": [float(x) for x in state.baseline],
                "seen": [float(x) for x in state.seen],
            },
        )

    async def decided(
        self,
        chosen: Particle,
        finals: Sequence[Final[Particle]],
        rng: np.random.Generator,
        checks: Sequence[Check],
    ) -> None:
        """Store whom everything that follows depends on, before it follows."""
        if chosen.status == "truncated":
            return
        self.particle(chosen)
        self._write(rng, checks, finals, chosen=chosen.name, held=[effect.key for effect in chosen.held])
        await self._flush()

    def _write(
        self, rng: np.random.Generator, checks: Sequence[Check], finals: Sequence[Final[Particle]], **more: Any
    ) -> None:
        self.run.population(
            {
                "filter": None,
                "chosen": None,
                "held": [],
                **more,
                "finals": [{**_plain(final), "particle": final.particle.name} for final in finals],
                "rng": _rng_state(rng),
                "checks": self._check_rows(checks),
                "seconds": self.seconds,
                "spent": None if self.account is None else asdict(self.account.spent),
            }
        )

    def _check_rows(self, checks: Sequence[Check]) -> list[dict[str, Any]]:
        """The checks as plain data; only the last one can have changed since they were asked for."""
        del self._rows[max(0, len(self._rows) - 1) :]
        for check in checks[len(self._rows) :]:
            self._rows.append({name: getattr(check, name) for name in _CHECK})
        return self._rows

    async def finish(self, status: str, result: AMCResult) -> None:
        """The run is over and handed over."""
        summary = {
            "winner": result.winner.name,
            "warnings": list(result.warnings),
            "seconds": self.seconds,
            "usage": asdict(result.usage),
        }
        self._ended = True
        await self._engine.call(lambda: self.run.finish(status, summary))

    async def close(self) -> None:
        """Leave the run; one that is not finished can be gone on with."""
        if not self._ended:
            await self._engine.call(self.run.release)

    async def _flush(self) -> None:
        if self._engine.is_async:
            await self.run.aflush()
        else:
            self.run.flush()

    # -- reading ---------------------------------------------------------------------------------

    async def restore(self, population: AppPopulation, rng: np.random.Generator) -> Back:
        """Bring particles, weights and the random generator back to where the journal left off."""
        state, stored = self._state, self._stored
        assert state is not None
        by_name: dict[str, Particle] = {}
        for name, (record, saver) in stored.items():
            by_name[name] = await self._particle(population, record, saver, by_name)
        self._told.update(by_name)
        self._buried.update(name for name, particle in by_name.items() if particle.status == "pruned")
        population.take_back(list(by_name.values()))
        rng.bit_generator.state = _rng_back(state["rng"])
        if self.account is not None:
            self.account.restore(_spent(state["spent"], [p.calls.usage for p in by_name.values()]), state["seconds"])
        finals = tuple(
            Final(by_name[f["particle"]], **{k: v for k, v in f.items() if k != "particle"}) for f in state["finals"]
        )
        checks = tuple(_check_back(check) for check in state["checks"])
        if state["chosen"] is None:
            return Back(self._filter_state(state["filter"], by_name, finals), None, finals, checks)
        chosen = by_name[state["chosen"]]
        await population.only(chosen)
        if state["held"] and [effect.key for effect in chosen.held] != state["held"]:
            # the effects have happened, and it has gone on since
            return Back(await population.branch(chosen, self._particles), None, finals, checks)
        return Back(None, chosen, finals, checks)

    def _filter_state(
        self, filter: Mapping[str, Any], by_name: Mapping[str, Particle], finals: tuple[Final[Particle], ...]
    ) -> FilterState[Particle]:
        live = tuple(by_name[name] for name in filter["live"])
        for particle, value in zip(live, filter["seen"], strict=True):
            if not math.isnan(value):  # it was told before it was scored
                known = particle.values[: filter["boundary"]]
                particle.values = (*known, *(None,) * (filter["boundary"] - len(known)), value)
        return FilterState(
            filter["boundary"],
            live,
            finals,
            filter["log_base"],
            tuple(filter["baseline"]),
            tuple(filter["seen"]),
        )

    async def _particle(
        self,
        population: AppPopulation,
        record: ParticleRecord,
        saver: ParticleSaver | None,
        by_name: Mapping[str, Particle],
    ) -> Particle:
        launch, extra = population.launch, record.extra
        store = None if population.store is None else OverlayStore(population.store)
        if store is not None:
            store.take_back([_put_back(op) for op in extra["store"]])
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
            particle.record = Record.restored(
                launch.transcript, record.segments, record.rewards, seen, needed=launch.needs_text
            )
        particle.restore(state, record.output, started=record.started, ran=record.ran)
        return particle


def _spent(booked: Mapping[str, Any] | None, used: Sequence[Usage]) -> Usage:
    """What the particles have used, at the price at which it was booked where they do not know one."""
    total = sum(used, Usage())
    if total.cost is not None or booked is None or booked["cost"] is None:
        return total
    known = Usage(**booked)
    return replace(total, cost=booked["cost"] * max(1.0, total.tokens / max(1, known.tokens)))


class RestoredError(Exception):
    """What a particle failed with before its process ended, as text."""


_CHECK = tuple(field.name for field in fields(Check))


def _plain(final: Final[Particle]) -> dict[str, Any]:
    return {
        "log_weight": float(final.log_weight),
        "reward": float(final.reward),
        "last_value": final.last_value,
        "done": final.done,
        "failed": final.failed,
    }


def _check_back(check: Mapping[str, Any]) -> Check:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in check.items()}
    return Check(**fields)


def _rng_state(rng: np.random.Generator) -> dict[str, Any]:
    state: Any = rng.bit_generator.state
    # 128-bit numbers, which not every JSON reader can hold
    return {**state, "state": {k: str(v) for k, v in state["state"].items()}}


def _rng_back(state: Mapping[str, Any]) -> dict[str, Any]:
    return {**state, "state": {k: int(v) for k, v in state["state"].items()}}


def _put_json(op: PutOp, when: datetime) -> list[Any]:
    return [list(op.namespace), op.key, op.value, op.index, op.ttl, when.isoformat()]


def _put_back(stored: Sequence[Any]) -> tuple[PutOp, datetime]:
    namespace, key, value, index, ttl, when = stored
    return PutOp(tuple(namespace), key, value, index=index, ttl=ttl), datetime.fromisoformat(when)
