"""``amc runs``, ``show``, ``resume``, ``settle`` and ``prune``: what a journal holds, and going on with it."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from langgraph_amc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langgraph_amc.runtime.journal import Journal, ParticleRecord, RunInfo, RunSummary

Where = Annotated[
    str | None,
    typer.Option("--journal", envvar="AMC_JOURNAL", help="SQLite file or SQLAlchemy URL", show_default=False),
]
Status = Annotated[str | None, typer.Option(help="Only runs of this status: running, resumable, finished, failed, …")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else")]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def runs(
    journal: Where = None,
    status: Status = None,
    limit: Annotated[int | None, typer.Option(help="Only the newest so many", min=1)] = 50,
    as_json: AsJson = False,
) -> None:
    """List the runs of a journal, newest first."""
    with _opened(journal) as opened:
        found = opened.runs(status=status, limit=limit)
    if as_json:
        typer.echo(json.dumps(_finite([asdict(run) for run in found])))
        return
    table = _table("run", "status", "app", "thread", "begun", "took")
    for run in found:
        about = run.about
        table.add_row(
            run.id[:12],
            run.status,
            str(about.get("app") or ""),
            str(about.get("thread_id") or ""),
            _moment(run.created),
            _span((run.ended or run.heard_of) - run.created),
        )
    _print(table)


def show(
    run: Annotated[str, typer.Argument(help="Its id, or the beginning of it", show_default=False)],
    journal: Where = None,
    as_json: AsJson = False,
) -> None:
    """Show one run: its particles with their lineage, its checks, what it used, its effects."""
    with _opened(journal) as opened:
        info = opened.show(run)
    if as_json:
        typer.echo(json.dumps(_finite(_plain(info))))
        return
    _print(_facts(info))
    if info.particles:
        _print(_particles(info))
    if info.effects:
        table = _table("effect", "tool", "outcome", "begun")
        for effect in info.effects:
            table.add_row(effect.key, effect.tool, effect.outcome, _moment(effect.begun))
        _print(table)


def prune(
    older_than: Annotated[str, typer.Option(help="Age since they ended, like 30d, 12h, 45m", show_default=False)],
    journal: Where = None,
    status: Status = None,
    as_json: AsJson = False,
) -> None:
    """Delete runs that have ended; with --status resumable, those that were left and never gone on with."""
    seconds = _seconds(older_than)
    with _opened(journal) as opened:
        count = opened.prune(seconds, status=status)
    typer.echo(json.dumps({"deleted": count}) if as_json else f"{count} run(s) deleted")


def resume(
    run: Annotated[str, typer.Argument(help="Its id, or the beginning of it", show_default=False)],
    app: Annotated[str, typer.Argument(help="The wrapped app, as file.py:name", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was killed or interrupted; the app is the one that wrap(…, journal=…) returned."""
    from langgraph_amc.runtime.result import AMCOutput
    from langgraph_amc.runtime.resume import aresume
    from langgraph_amc.runtime.wrap import last_run
    from langgraph_amc.tasks.loading import load_app

    loaded = load_app(app)
    output = asyncio.run(aresume(loaded, run))
    record = output.amc if isinstance(output, AMCOutput) else last_run(loaded)
    said = getattr((output.get("messages") or [None])[-1], "text", None) if isinstance(output, dict) else None
    if as_json:
        answer = {"run": record.run_id, "winner": record.winner.name, "answer": said, "warnings": record.warnings}
        typer.echo(json.dumps(answer))
        return
    typer.echo(said if said is not None else repr(output))


def settle(
    run: Annotated[str, typer.Argument(help="The run's id, or the beginning of it", show_default=False)],
    key: Annotated[str, typer.Argument(help="The effect's key, as `amc show` lists it", show_default=False)],
    journal: Where = None,
    result: Annotated[str | None, typer.Option(help="It took place, and this is what the tool returned")] = None,
    failed: Annotated[str | None, typer.Option(help="It did not take place, for this reason")] = None,
) -> None:
    """Say what became of an effect whose outcome is unknown, so that its run can be gone on with."""
    from langgraph_amc.runtime.resume import settle as tell

    if (result is None) == (failed is None):
        raise ConfigurationError("say what happened: either --result TEXT or --failed REASON")
    with _opened(journal) as opened:
        tell(opened, run, key, result, error=None if failed is None else RuntimeError(failed))
    typer.echo(f"{key} is settled: call the app again, or use `amc resume`")


# -- inside --------------------------------------------------------------------------------------


@contextmanager
def _opened(journal: str | None) -> Iterator[Journal]:
    from langgraph_amc.runtime.journal import Journal

    if journal is None:
        raise ConfigurationError("which journal? Give --journal FILE or a database URL, or set AMC_JOURNAL")
    file = journal.removeprefix("sqlite:///")
    if "://" not in file and not Path(file).expanduser().exists():
        raise ConfigurationError(f"there is no journal {file}: wrap(…, journal={file!r}) begins one")
    with Journal(journal) as opened:
        yield opened


def _facts(info: RunInfo) -> Table:
    run: RunSummary = info.run
    used = info.usage
    table = Table(show_header=False, box=None)
    facts: dict[str, Any] = {
        "run": run.id,
        "status": run.status,
        "begun": _moment(run.created),
        "ended" if run.ended else "heard of": _moment(run.ended or run.heard_of),
        "owner": run.owner or "nobody",
        "seed": run.seed,
        **run.about,
        "checks": len(info.checks),
        "model calls": used.calls,
        "tokens": f"{used.input_tokens} in, {used.output_tokens} out",
        "cost": "unknown" if used.cost is None else f"${used.cost:.4f}",
    }
    for name, value in facts.items():
        table.add_row(name, str(value))
    return table


def _particles(info: RunInfo) -> Table:
    table = _table("particle", "from", "status", "boundary", "value", "reward", "calls", "error")
    for p in info.particles:
        value = next((v for v in reversed(p.values) if v is not None), None)
        table.add_row(
            p.name,
            "" if p.parent is None else f"{p.parent}@{p.forked_at}",
            p.status or "alive",
            str(p.boundary),
            _number(value),
            _number(_reward(p)),
            str(p.usage.calls),
            (p.error or "")[:60],
        )
    return table


def _reward(particle: ParticleRecord) -> float | None:
    if particle.outcome is None and not any(particle.rewards):
        return None
    return sum(particle.rewards) + (particle.outcome or 0.0)


def _plain(info: RunInfo) -> Mapping[str, Any]:
    particles = [
        {
            "name": p.name,
            "parent": p.parent,
            "forked_at": p.forked_at,
            "status": p.status,
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
        "usage": asdict(info.usage),
        "checks": list(info.checks),
        "particles": particles,
        "effects": [asdict(effect) for effect in info.effects],
    }


def _finite(value: Any) -> Any:
    """Strict JSON has no infinite numbers: they become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value


def _seconds(text: str) -> float:
    """Seconds of a span like ``30d``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", text.strip().lower())
    if found is None:
        raise ConfigurationError(f"a time span is a number with s, m, h, d or w, like 30d, got {text!r}")
    return float(found[1]) * _UNITS[found[2] or "s"]


def _span(seconds: float) -> str:
    unit, size = next(((u, n) for u, n in reversed(_UNITS.items()) if seconds >= n), ("s", 1))
    return f"{max(seconds, 0.0) / size:.1f} {unit}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _table(*columns: str) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table: Table) -> None:
    terminal = Console().is_terminal
    # a pipe has no width, and a table that is cut is of no use to who reads it
    Console(width=None if terminal else 200).print(table)
