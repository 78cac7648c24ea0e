"""A run as a report needs it, whether it is at hand as a result or comes out of a journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_amc.runtime.effects.records import EffectRecord
from langgraph_amc.runtime.journal import ParticleRecord, RunInfo
from langgraph_amc.runtime.result import AMCResult, Check, ParticleReport
from langgraph_amc.trajectories.types import Usage


@dataclass(frozen=True, slots=True)
class Particle:
    """One particle of the run.

    Attributes
    ----------
    status: ``None`` while it can run.
    segments, values, rewards: of its whole line, what it shares with its parent included; see `Trajectory`.
    reward: observed return, ``None`` where it is not known. log_weight: at its end, ``None`` where it had none.
    """

    name: str
    parent: str | None
    forked_at: int | None
    status: str | None
    segments: tuple[str, ...]
    values: tuple[float | None, ...]
    rewards: tuple[float, ...]
    reward: float | None
    log_weight: float | None
    usage: Usage
    error: str | None

    @property
    def first(self) -> int:
        """The first state that is its own."""
        return 0 if self.forked_at is None else self.forked_at + 1

    @property
    def last(self) -> int:
        """Its last state; before `first` where it was dropped before it had moved."""
        return len(self.segments) - 1

    @property
    def value(self) -> float | None:
        """V's last word."""
        return next((v for v in reversed(self.values) if v is not None), None)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run; particles are in order of birth.

    ``thoughts``: states that a search has tried, 0 for the filter. ``seconds``: ``None`` while it has not ended.
    """

    id: str
    app: str
    status: str
    seed: int
    seconds: float | None
    winner: str | None
    particles: tuple[Particle, ...]
    checks: tuple[Check, ...]
    usage: Usage
    effects: tuple[EffectRecord, ...]
    warnings: tuple[str, ...]
    started: int
    stopped: str | None
    abstained: bool
    selected_by: str
    thoughts: int = 0

    def particle(self, name: str) -> Particle:
        return next(p for p in self.particles if p.name == name)

    @property
    def lineage(self) -> tuple[Particle, ...]:
        """From the first ancestor of the winner down to itself."""
        line: list[Particle] = []
        name = self.winner
        while name is not None:
            line.append(self.particle(name))
            name = line[-1].parent
        return tuple(reversed(line))

    @property
    def path(self) -> frozenset[tuple[str, int]]:
        """Particle and step of every state that the winner descends from, and its own."""
        line = self.lineage
        ends = [*(child.forked_at or 0 for child in line[1:]), *(p.last for p in line[-1:])]
        return frozenset((p.name, t) for p, end in zip(line, ends, strict=True) for t in range(p.first, end + 1))

    @property
    def ended(self) -> tuple[Particle, ...]:
        """Those that came to an end of their own."""
        return tuple(p for p in self.particles if p.status in ("finished", "interrupted"))


def replaced(check: Check) -> int:
    """How many of those compared nobody goes on from; a resampling may well keep them all."""
    return len(set(range(len(check.particles))) - set(check.ancestors)) if check.resampled else 0


def of_result(result: AMCResult, app: str = "") -> RunRecord:
    """A run that has just ended."""
    reports = sorted((*result.particles, *result.pruned), key=lambda p: (len(p.name), p.name))
    return RunRecord(
        id=result.run_id,
        app=app,
        status=result.winner.trajectory.status,
        seed=result.seed,
        seconds=result.seconds,
        winner=result.winner.name,
        particles=tuple(map(_of_report, reports)),
        checks=result.checks,
        usage=result.usage,
        effects=result.effects,
        warnings=result.warnings,
        started=result.started,
        stopped=result.stopped,
        abstained=result.abstained,
        selected_by=result.selected_by,
        thoughts=result.thoughts,
    )


def of_journal(info: RunInfo) -> RunRecord:
    """A run as its journal has it (`Journal.show` with transcripts); it need not have ended."""
    told = info.run.summary or {}
    finals = {f["particle"]: f["log_weight"] for f in (info.population or {}).get("finals", ())}
    # copies at earlier states, which backtracking keeps, are no particles
    records = [p for p in info.particles if "@" not in p.name]
    return RunRecord(
        id=info.run.id,
        app=str(info.run.about.get("app") or ""),
        status=info.run.status,
        seed=info.run.seed,
        seconds=told.get("seconds") or (None if info.run.ended is None else info.run.ended - info.run.created),
        winner=info.winner,
        particles=tuple(_of_row(p, finals.get(p.name), info) for p in records),
        checks=tuple(map(_check, info.checks)),
        usage=info.usage,
        effects=tuple(
            EffectRecord(e.tool, e.arguments, e.policy or "", e.state, e.particle or "", e.key)  # type: ignore[arg-type]
            for e in info.asked
        ),
        warnings=tuple(told.get("warnings", ())),
        started=sum(p.parent is None for p in records),
        stopped=told.get("stopped"),
        abstained=bool(told.get("abstained")),
        selected_by=told.get("selected_by") or "",
        thoughts=told.get("thoughts", 0),
    )


def _of_report(report: ParticleReport) -> Particle:
    t = report.trajectory
    return Particle(
        t.particle,
        t.parent,
        t.forked_at,
        t.status,
        t.segments,
        t.values,
        t.rewards,
        report.reward,
        t.log_weight,
        t.usage,
        t.error,
    )


def _of_row(row: ParticleRecord, log_weight: float | None, info: RunInfo) -> Particle:
    status = row.status
    if status is None and info.run.ended is not None:
        status = "truncated"  # an end that a larger budget could undo is not kept
    # texts are missing where an older version wrote the journal
    states = max(len(row.rewards) + 1, len(row.segments), 1)
    segments = (*row.segments, *[""] * (states - len(row.segments)))
    return Particle(
        row.name,
        row.parent,
        row.forked_at,
        status,
        segments,
        (*row.values, *[None] * (states - len(row.values)))[:states] if row.values else (),
        row.rewards,
        None if row.outcome is None else sum(row.rewards) + row.outcome,
        log_weight,
        row.usage,
        row.error,
    )


def _check(stored: Mapping[str, Any]) -> Check:
    """A check from the journal, in which sequences are lists."""
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
    return Check(**fields)
