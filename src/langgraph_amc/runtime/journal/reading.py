"""Reading the journal: the rows of a run, and the account of it that is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from langgraph_amc.runtime.journal import schema
from langgraph_amc.runtime.journal.owner import is_run
from langgraph_amc.runtime.journal.records import ParticleRecord, Transcripts, from_row
from langgraph_amc.runtime.journal.schema import OPEN
from langgraph_amc.trajectories.types import Usage

T = TypeVar("T")
Reader = Callable[[Callable[[sa.Connection], Any]], Any]
"""Runs a function of a connection in a transaction."""

RUNNING, RESUMABLE = "running", "resumable"
STATUSES = {
    RUNNING: "a process runs it",
    RESUMABLE: "it was left, and can be gone on with",
    "finished": "it has answered",
    "interrupted": "its winner asks a person and waits",
    "truncated": "every particle was stopped, by a budget or the number of steps",
    "failed": "every particle failed",
    "abandoned": "it was left, and its thread has moved on since",
}
"""What the status of a run says."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of a journal.

    Attributes
    ----------
    status: ``"running"``, ``"resumable"`` (it did not end, and nobody runs it), or what it ended with.
    created, heard_of, ended: seconds since the epoch; ``heard_of`` is the last sign of life of who ran it.
    """

    id: str
    key: str
    status: str
    seed: int
    owner: str | None
    created: float
    heard_of: float
    ended: float | None
    about: Mapping[str, Any]
    summary: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect of a run, as it is in the outbox."""

    key: str
    tool: str
    arguments: Any
    outcome: str
    begun: float
    ended: float | None


@dataclass(frozen=True, slots=True)
class AskedEffect:
    """An effect that a particle asked for, and what became of it.

    Attributes
    ----------
    particle, policy: ``None`` where only the outbox knows of it.
    state: of `langgraph_amc.runtime.effects.records.EffectState`.
    begun: when its tool was called, in seconds since the epoch; ``None`` if it was not.
    """

    key: str
    tool: str
    arguments: Any
    particle: str | None
    policy: str | None
    state: str
    begun: float | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """All that a journal tells of a run without reading its state.

    Attributes
    ----------
    effects: the outbox: what was begun.
    asked: every effect that was asked for, also those that are held or were dropped or denied.
    checks: fields of `langgraph_amc.runtime.result.Check`.
    """

    run: RunSummary
    population: Mapping[str, Any] | None
    particles: tuple[ParticleRecord, ...]
    effects: tuple[Effect, ...]
    checks: Sequence[Any] = field(default_factory=tuple)
    asked: tuple[AskedEffect, ...] = ()

    @property
    def winner(self) -> str | None:
        """Name of the particle that answered."""
        return None if self.run.summary is None else self.run.summary.get("winner")

    @property
    def lineage(self) -> tuple[str, ...]:
        """The winner, and the particles that it descends from."""
        parents = {p.name: p.parent for p in self.particles}
        line = [] if self.winner is None else [self.winner]
        while line and (parent := parents.get(line[-1])) is not None:
            line.append(parent)
        return tuple(line)

    @property
    def usage(self) -> Usage:
        """Of all its particles, and of the models that judged them as far as it is known."""
        told = (self.run.summary or {}).get("usage")
        if told is not None:
            return Usage(**told)
        return sum((p.usage for p in self.particles), Usage())


class RunRows:
    """The rows of one run."""

    def __init__(self, no: int, read: Reader) -> None:
        self._no, self._read = no, read

    def particles(self) -> list[Any]:
        rows = self._all(schema.particles, schema.particles.c.name)
        return sorted(rows, key=lambda row: (len(row.name), row.name))  # p2 before p10: in order of birth

    def nodes(self) -> list[Any]:
        return self._all(schema.nodes, schema.nodes.c.no)

    def steps(self) -> list[Any]:
        return self._all(schema.steps, schema.steps.c.t)

    def answers(self) -> list[Any]:
        return self._all(schema.answers, schema.answers.c.nth)

    def asked(self) -> list[Any]:
        return self._all(schema.asked, schema.asked.c.call)

    def effects(self) -> list[Any]:
        return self._all(schema.effects, schema.effects.c.begun)

    def population(self) -> str | None:
        query = sa.select(schema.runs.c.population).where(schema.runs.c.no == self._no)
        return self._read(lambda connection: connection.execute(query).scalar_one())

    def _all(self, table: sa.Table, order: sa.ColumnElement[Any]) -> list[Any]:
        query = sa.select(table).where(table.c.run == self._no).order_by(order)
        return self._read(lambda connection: connection.execute(query).all())


def info(row: Any, rows: RunRows, lease: float, now: float, *, transcripts: bool = False) -> RunInfo:
    """The account of one run; the segments of its particles only with ``transcripts``."""
    population = None if row.population is None else json.loads(row.population)
    summary = None if row.summary is None else json.loads(row.summary)
    found = rows.particles()
    segments = Transcripts().load(found, rows.steps()) if transcripts else {}
    particles = tuple(from_row(p, segments.get(p.name, ())) for p in found)
    effects = tuple(Effect(e.key, e.tool, json.loads(e.arguments), e.outcome, e.begun, e.ended) for e in rows.effects())
    return RunInfo(
        summary_of(row, lease, now),
        population,
        particles,
        effects,
        tuple((summary or {}).get("checks") or (population or {}).get("checks") or ()),
        _asked(particles, effects, ended=row.status != OPEN),
    )


def _asked(particles: Sequence[ParticleRecord], effects: Sequence[Effect], *, ended: bool) -> tuple[AskedEffect, ...]:
    """What particles say of their effects, where the outbox does not know better; clones repeat their parents."""
    found: dict[str, AskedEffect] = {}
    for particle in particles:
        state = particle.extra.get("effects") or {}
        for told in state.get("records", ()):
            parts = (told["key"], told["tool"], told["arguments"], told["particle"], told["policy"], told["state"])
            found[told["key"]] = AskedEffect(*parts)
        for held in state.get("pending", ()):
            what = (held["key"], held["tool"], held["arguments"], particle.name, "commit")
            found.setdefault(held["key"], AskedEffect(*what, "dropped" if ended else "held"))
    for effect in effects:
        known = found.get(effect.key)
        who = (None, None) if known is None else (known.particle, known.policy)
        became = _BECAME[effect.outcome]
        found[effect.key] = AskedEffect(effect.key, effect.tool, effect.arguments, *who, became, effect.begun)
    return tuple(found.values())


_BECAME = {"done": "committed", "failed": "failed", "unknown": "unknown"}


def summary_of(row: Any, lease: float, now: float) -> RunSummary:
    status = row.status
    if status == OPEN:
        status = RUNNING if is_run(row, lease, now) else RESUMABLE
    return RunSummary(
        row.id,
        row.key,
        status,
        int(row.seed),
        row.owner,
        row.created,
        row.heartbeat,
        row.ended,
        json.loads(row.about),
        None if row.summary is None else json.loads(row.summary),
    )
