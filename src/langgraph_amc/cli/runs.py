"""``amc runs``, ``show``, ``resume``, ``settle`` and ``prune``: what a journal holds, and going on with it."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from langgraph_amc.cli.account import moment, plain, table_of, tables
from langgraph_amc.cli.kept import kept
from langgraph_amc.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langgraph_amc.runtime.journal import Journal

Where = Annotated[
    str | None,
    typer.Option("--journal", envvar="AMC_JOURNAL", help="SQLite file or SQLAlchemy URL", show_default=False),
]
Status = Annotated[str | None, typer.Option(help="Only runs of this status; the list is above", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else")]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def runs(
    journal: Where = None,
    status: Status = None,
    limit: Annotated[int | None, typer.Option(help="Only the newest so many", min=1)] = 50,
    as_json: AsJson = False,
) -> None:
    """List the runs of a journal, newest first.

    \b
    running      a process runs it
    resumable    it was left, and can be gone on with: call again, or amc resume
    finished     it has answered
    interrupted  its winner asks a person and waits: go on with Command(resume=…)
    truncated    every particle was stopped, by a budget or the number of steps
    failed       every particle failed
    abandoned    it was left, and its thread has moved on since
    """
    with _opened(journal) as opened:
        found = opened.runs(status=status, limit=limit)
    if as_json:
        typer.echo(json.dumps(_finite([asdict(run) for run in found])))
        return
    table = table_of("run", "status", "app", "thread", "begun", "took")
    for run in found:
        about = run.about
        table.add_row(
            run.id[:12],
            run.status,
            str(about.get("app") or ""),
            str(about.get("thread_id") or ""),
            moment(run.created),
            _span((run.ended or run.heard_of) - run.created),
        )
    _print(table)


def show(
    run: Annotated[
        str, typer.Argument(help="Its id, or the beginning of it; or a folder of amc evolve", show_default=False)
    ],
    journal: Where = None,
    as_json: AsJson = False,
) -> None:
    """Show one run: who answered, its particles with their lineage, its checks, what it used, its effects.

    Of a folder that amc evolve writes to: its settings, its generations, and what it has come to.

    \b
    alive        the particle can run on
    finished     it has ended with an answer
    failed       it has ended with an error
    truncated    a budget or the number of steps has stopped it; its end is not kept
    pruned       resampling gave its place to another one
    paused       it asks a person, or stands before an effect that is held
    continued    it stood before an effect that was let happen, and its line went on
    dropped      it had paused, and another one was chosen
    """
    if _evolved(run, as_json):
        return
    with _opened(journal) as opened:
        info = opened.show(run)
    if as_json:
        typer.echo(json.dumps(_finite(plain(info))))
        return
    for table in tables(info):
        _print(table)
    for warning in (info.run.summary or {}).get("warnings", ()):
        typer.echo(f"warning: {warning}")


def prune(
    older_than: Annotated[str, typer.Option(help="Age since they ended, like 30d, 12h, 45m", show_default=False)],
    journal: Where = None,
    status: Annotated[
        str | None, typer.Option(help="Only runs of this status, see amc runs --help", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many it would be")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete runs that have ended; with --status resumable, those that were left and never gone on with."""
    seconds = _seconds(older_than)
    with _opened(journal) as opened:
        count = opened.prune(seconds, status=status, dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps({"would_delete" if dry_run else "deleted": count}))
    else:
        typer.echo(f"{count} run(s) {'would be ' if dry_run else ''}deleted")


def resume(
    run: Annotated[str, typer.Argument(help="Its id, or the beginning of it", show_default=False)],
    app: Annotated[str, typer.Argument(help="The wrapped app, as file.py:name", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was killed or interrupted; the app is the one that wrap(…, journal=…) returned.

    The journal is the app's own. A call that had a context or more configurable keys than its thread can only be
    gone on with in code: amc.resume(app, run, config=…, context=…).
    """
    from langgraph_amc.runtime.result import AMCOutput
    from langgraph_amc.runtime.resume import aresume
    from langgraph_amc.runtime.resume import resume as resume_now
    from langgraph_amc.runtime.wrap import last_run
    from langgraph_amc.tasks.loading import load_app

    loaded = load_app(app)
    kept.set("the run is kept in the app's journal, and the same command goes on with it")
    output = resume_now(loaded, run) if only_blocking(loaded.checkpointer) else asyncio.run(aresume(loaded, run))
    record = output.amc if isinstance(output, AMCOutput) else last_run(loaded)
    said = said_by(output)
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


def only_blocking(saver: Any) -> bool:
    """Whether a saver has no asynchronous methods, as LangGraph's `SqliteSaver`."""
    from langgraph.checkpoint.base import BaseCheckpointSaver

    kind = type(saver)
    return (kind.__module__, kind.__name__) == ("langgraph.checkpoint.sqlite", "SqliteSaver") or (
        isinstance(saver, BaseCheckpointSaver) and kind.aget_tuple is BaseCheckpointSaver.aget_tuple
    )


def _evolved(run: str, as_json: bool) -> bool:
    """Show a folder of ``amc evolve``; False where this is none."""
    folder = Path(run)
    if not folder.is_dir():
        return False
    from langgraph_amc.cli import evolution
    from langgraph_amc.evaluate.evolving.kept import is_kept, read_kept

    if not is_kept(folder):
        return False
    kept = read_kept(folder)
    if as_json:
        typer.echo(json.dumps(kept.to_json()))
        return True
    for table in evolution.tables(kept):
        _print(table)
    for line in evolution.lines(kept):
        typer.echo(line)
    return True


def said_by(output: Any) -> str | None:
    """The last message of what an app returned, where it has messages."""
    messages = (output.get("messages") or [None]) if isinstance(output, dict) else [None]
    return getattr(messages[-1], "text", None)


# -- inside --------------------------------------------------------------------------------------


@contextmanager
def _opened(journal: str | None) -> Iterator[Journal]:
    from langgraph_amc.runtime.journal import Journal

    if journal is None:
        raise ConfigurationError("which journal? Give --journal FILE or a database URL, or set AMC_JOURNAL")
    with Journal(journal, create=False) as opened:
        yield opened


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


def _print(table: Table) -> None:
    terminal = Console().is_terminal
    # a pipe has no width, and a table that is cut is of no use to who reads it
    Console(width=None if terminal else 200).print(table)
