"""How a run is written into a journal; `restoring` is how a broken one comes back.

A particle is written when it reaches a boundary or its end, the population at each barrier of the filter, and
the decision before it has consequences (effects, the commit of the winner). Between two barriers a boundary that
comes within `FRESH` seconds of the last one written is left out: what it would save is quicker done again.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from langchain_core.runnables import RunnableConfig
from langgraph.store.base import PutOp

from langgraph_amc.policy.account import Account
from langgraph_amc.runtime.engine import Engine
from langgraph_amc.runtime.journal import JournalError, RunInUseError
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.runtime.request import CONTEXT, JOURNAL_KEY, RUN_KEY, StreamRequest
from langgraph_amc.runtime.restoring import Back, bring_back, spent, stored_final, stored_state
from langgraph_amc.runtime.result import AMCResult, Check
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.smc import FilterState, Final

if TYPE_CHECKING:
    from langgraph_amc.runtime.journal import Journal, RunJournal
    from langgraph_amc.runtime.population import AppPopulation


FRESH = 0.5
"""Seconds of nodes and tools that are run again after a kill at most; model answers are kept one by one."""
ABANDONED = "abandoned"
"""Status of a run with which nobody can go on."""


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
        "given": [*sorted(set(_public(request.config)) - {"thread_id"}), *_context(request.options)],
    }
    from langgraph_amc.runtime.journal.coding import dump

    stored = dump(root.serde, request.input, "the input of the run")
    key = _key(request, stored, thread_id)
    named = thread_id is not None or not request.config["configurable"].keys().isdisjoint((RUN_KEY, JOURNAL_KEY))
    while True:
        run = await _open(
            engine,
            journal,
            key,
            named,
            {"seed": seed, "about": about, "input": request.input, "stored": stored, "serde": root.serde},
        )
        keeper = JournalKeeper(run, engine, root)
        if keeper.goes_on_from(head_id):
            return keeper
        if JOURNAL_KEY in request.config["configurable"]:
            await engine.call(run.release)
            raise JournalError(
                f"run {run.id} cannot be gone on with: thread {thread_id!r} has moved on since (it stood at "
                f"{run.about['head']}, and stands at {head_id}); delete it with `amc prune --status resumable`"
            )
        await engine.call(functools.partial(run.finish, ABANDONED, {"why": "the thread has moved on since"}))


async def _open(engine: Engine, journal: Journal, key: str, named: bool, call: Mapping[str, Any]) -> RunJournal:
    """The run of a call; without a thread or a name, calls with the same input that are made at once are several."""
    keys = itertools.chain([key], (f"{key}#{n}" for n in itertools.count(1)))
    if not named:
        left = await engine.call(journal.left_behind, key)
        keys = itertools.chain(left, keys)
    for candidate in keys:
        try:
            return await engine.call(functools.partial(journal.open, candidate, **call))
        except RunInUseError:
            if named:
                raise
    raise AssertionError("unreachable: there is always one more key")


def _key(request: StreamRequest, stored: tuple[str, bytes], thread_id: str | None) -> str:
    """What the same call has in common with an earlier one."""
    if (key := request.config["configurable"].get(JOURNAL_KEY)) is not None:
        return str(key)
    name = request.config["configurable"].get(RUN_KEY)
    if name is not None:
        return f"named:{name}"
    settings = request.settings
    kind, data = stored
    place = request.config["configurable"].get("checkpoint_ns") if request.nested else ""
    public = _public(request.config)
    parts: tuple[Any, ...] = (
        _graph(request.app),
        thread_id,
        place,
        sorted(public.items()),
        request.options.get("context"),
        settings.particles,
        settings.objective,
        settings.seed,
        kind,
    )
    if settings.search is not None:
        parts = (*parts, settings.search)
    said = _ADDRESS.sub("", repr(parts))  # of objects, which differ from process to process
    return hashlib.blake2b(said.encode() + data, digest_size=16).hexdigest()


def _public(config: RunnableConfig) -> dict[str, Any]:
    """What the caller has configured."""
    hidden = ("__", "checkpoint_ns", "checkpoint_map", RUN_KEY, JOURNAL_KEY)
    return {k: v for k, v in config["configurable"].items() if not k.startswith(hidden)}


def _context(options: Mapping[str, Any]) -> list[str]:
    return [] if options.get("context") is None else [CONTEXT]


_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


def _graph(app: Any) -> tuple[Any, ...]:
    """What tells one app from another."""
    nodes = [(name, type(node.bound).__qualname__) for name, node in sorted(app.nodes.items())]
    return app.get_name(), type(app).__qualname__, nodes, sorted(app.channels)


class JournalKeeper:
    """Writes one run into its journal."""

    def __init__(self, run: RunJournal, engine: Engine, root: ParticleSaver) -> None:
        self.run = run
        self.account: Account | None = None
        self.more: dict[str, Any] = {}
        """What else the run has to know of itself; JSON."""
        self._engine = engine
        self._started = time.monotonic()
        self._told: dict[str, float] = {}
        """When each particle was last written."""
        self._behind: set[str] = set()
        """Particles that have moved on since."""
        self._buried: set[str] = set()
        self._rows: list[dict[str, Any]] = []
        self._born: list[str] = []
        self._ended = False
        left = run.restore(root.base, root.serde, root.blank)
        self._state = None if left is None else left.population
        self._stored = {} if left is None else left.particles
        self._unanswered = {} if left is None else left.unanswered

    def charges(self, account: Account) -> None:
        """This is the run's own account: what it lets go is written, and what was on its way before counts."""
        self.account = account
        counted = () if self._state is None else self._state.get("lost", ())
        account.lose({call: worst for call, worst in self._unanswered.items() if str(call) not in counted})
        account.witness = self.run

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

    async def restore(self, population: AppPopulation, rng: np.random.Generator) -> Back:
        """Bring particles, weights and the random generator back to where the journal left off."""
        assert self._state is not None
        back = await bring_back(population, self._stored, self._state)
        rng.bit_generator.state = back.rng
        self._told.update((p.name, -math.inf) for p in population.born)
        self._born = [p.name for p in population.born]
        self._buried.update(p.name for p in population.born if p.status == "pruned")
        if self.account is not None:
            used = [p.calls.usage for p in population.born]
            self.account.restore(spent(self._state["spent"], used), self._state["seconds"])
        return back

    def boundary(self, particle: Particle) -> None:
        """A particle has reached a boundary, at which it may be compared with others or not."""
        if time.monotonic() - self._told.get(particle.name, -math.inf) < FRESH:
            self._behind.add(particle.name)
        else:
            self.particle(particle)

    def particle(self, particle: Particle) -> None:
        """Write where a particle stands, or how it has ended."""
        if not lasts(particle):
            return
        from langgraph_amc.runtime.journal import ParticleRecord

        self._told[particle.name] = time.monotonic()
        self._behind.discard(particle.name)
        record = particle.record
        extra = {
            "judged": particle.judged,
            "messages": len(record.messages),
            "seen": record.seen,
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
        self._born = [p.name for p in population.born]
        for particle in population.born:
            new = particle.name not in self._told or particle.name in self._behind
            gone = particle.status == "pruned"
            if new or (gone and particle.name not in self._buried):
                self.particle(particle)
            if gone:
                self._buried.add(particle.name)
        self._write(
            rng,
            checks,
            state.finals,
            filter=stored_state(state),
        )

    async def decided(
        self,
        chosen: Particle,
        finals: Sequence[Final[Particle]],
        rng: np.random.Generator,
        checks: Sequence[Check],
    ) -> None:
        """Store whom everything that follows depends on, before it follows."""
        if not lasts(chosen):
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
                "born": self._born,
                "more": self.more,
                **more,
                "finals": [stored_final(final) for final in finals],
                "rng": _rng_state(rng),
                "checks": self._check_rows(checks),
                "seconds": self.seconds,
                "spent": None if self.account is None else asdict(self.account.spent),
                "lost": [] if self.account is None else [str(call) for call in self.account.lost],
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
            "started": result.started,
            "stopped": result.stopped,
            "abstained": result.abstained,
            "selected_by": result.selected_by,
            "log_evidence": result.log_evidence,
            "thoughts": result.thoughts,
        }
        self._ended = True
        await self._engine.call(lambda: self.run.finish(status, summary))

    async def abandon(self, why: str) -> None:
        """The run is over, and nothing comes of it."""
        self._ended = True
        await self._engine.call(functools.partial(self.run.finish, ABANDONED, {"why": why}))

    async def close(self) -> None:
        """Leave the run; one that is not finished can be gone on with."""
        if not self._ended:
            await self._engine.call(self.run.release)

    async def _flush(self) -> None:
        if self._engine.is_async:
            await self.run.aflush()
        else:
            self.run.flush()


def lasts(particle: Particle) -> bool:
    """Whether the end of a particle is kept: if not, it comes back alive at its last boundary and ends again.

    With a larger budget it can go on; and a command to the graph around has no safe stored form.
    """
    return particle.status != "truncated" and particle.command is None


_CHECK = tuple(field.name for field in fields(Check))


def _rng_state(rng: np.random.Generator) -> dict[str, Any]:
    state: Any = rng.bit_generator.state
    # 128-bit numbers, which not every JSON reader can hold
    return {**state, "state": {k: str(v) for k, v in state["state"].items()}}


def _put_json(op: PutOp, when: datetime) -> list[Any]:
    return [list(op.namespace), op.key, op.value, op.index, op.ttl, when.isoformat()]
