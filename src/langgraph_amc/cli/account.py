"""What ``amc show`` tells of a run: tables to read, and plain data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from langgraph_amc.runtime.journal import ParticleRecord, RunInfo


def tables(info: RunInfo) -> Iterator[Table]:
    """The run itself, its particles, its checks, its effects; without those there are none of."""
    yield _facts(info)
    if info.particles:
        yield _particles(info)
    if info.checks:
        yield _checks(info)
    if info.asked:
        yield _effects(info)


def plain(info: RunInfo) -> Mapping[str, Any]:
    """All of it as plain data."""
    particles = [
        {
            "name": p.name,
            "parent": p.parent,
            "forked_at": p.forked_at,
            "status": p.status,
            "state": state_of(p, info),
            "boundary": p.boundary,
            "step": p.step,
            "rewards": p.rewards,
            "values": p.values,
            "outcome": p.outcome,
            "usage": asdict(p.usage),
            "error": p.error,
        }
        for p in info.particles
    ]
    return {
        **asdict(info.run),
        "winner": info.winner,
        "lineage": info.lineage,
        "usage": asdict(info.usage),
        "checks": list(info.checks),
        "particles": particles,
        "effects": [asdict(effect) for effect in info.asked],
    }


def state_of(particle: ParticleRecord, info: RunInfo) -> str:
    """How a particle stands, seen from the end of its run: see ``amc show --help``."""
    ended = info.run.ended is not None
    if particle.status == "interrupted":
        if not ended or particle.name == info.winner:
            return "paused"
        return "continued" if particle.name in info.lineage else "dropped"
    if particle.status is not None:
        return particle.status
    if not ended:
        return "alive"
    # an end that a larger budget could undo is not kept
    return info.run.status if particle.name == info.winner else "truncated"


def _facts(info: RunInfo) -> Table:
    run, used = info.run, info.usage
    table = Table(show_header=False, box=None)
    line = " < ".join(info.lineage)
    facts: dict[str, Any] = {
        "run": run.id,
        "status": run.status,
        "winner": line or "none yet",
        "begun": moment(run.created),
        "ended" if run.ended else "heard of": moment(run.ended or run.heard_of),
        "owner": run.owner or "nobody",
        "seed": run.seed,
        **run.about,
        "checks": f"{len(info.checks)}, {sum(bool(c.get('ancestors')) for c in info.checks)} of them resampled",
        "model calls": used.calls,
        "tokens": f"{used.input_tokens} in, {used.output_tokens} out",
        "cost": "unknown" if used.cost is None else f"${used.cost:.4f}",
    }
    for name, value in facts.items():
        table.add_row(name, str(value))
    return table


def _particles(info: RunInfo) -> Table:
    errors = any(p.error for p in info.particles)
    table = table_of(
        "particle", "from", "status", "boundary", "value", "reward", "calls", *(["error"] if errors else [])
    )
    for p in info.particles:
        value = next((v for v in reversed(p.values) if v is not None), None)
        table.add_row(
            f"{p.name} *" if p.name == info.winner else p.name,
            "" if p.parent is None else f"{p.parent}@{p.forked_at}",
            state_of(p, info),
            str(p.boundary),
            number(value),
            number(_reward(p)),
            str(p.usage.calls),
            *([p.error or ""] if errors else []),
        )
    return table


def _checks(info: RunInfo) -> Table:
    table = table_of("check at boundary", "live", "ESS", "resampled")
    for check in info.checks:
        ancestors = check.get("ancestors") or ()
        kept = f"{len(set(ancestors))} of {len(check.get('particles', ()))} go on" if ancestors else "no"
        table.add_row(
            str(check.get("boundary", "")), str(len(check.get("particles", ()))), number(check.get("ess")), kept
        )
    return table


def _effects(info: RunInfo) -> Table:
    table = table_of("effect", "tool", "particle", "state", "begun")
    for effect in info.asked:
        begun = "" if effect.begun is None else moment(effect.begun)
        table.add_row(effect.key, effect.tool, effect.particle or "", effect.state, begun)
    return table


def _reward(particle: ParticleRecord) -> float | None:
    if particle.outcome is None and not any(particle.rewards):
        return None
    return sum(particle.rewards) + (particle.outcome or 0.0)


def moment(seconds: float) -> str:
    """A time to read, on the clock of who reads it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def table_of(*columns: str) -> Table:
    """A table whose cells are never cut."""
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
