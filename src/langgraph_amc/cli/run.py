"""``amc run``: one input, answered by the app as particles, watched while it runs."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from langgraph_amc.checks import without_password
from langgraph_amc.cli.kept import kept
from langgraph_amc.cli.options import AppName, AsJson, Boundary, EffectsOf, Quiet, Resample, in_runs, read_effects
from langgraph_amc.cli.plan import MaxCalls, MaxSeconds, MaxTokens, MaxUsd, PriceOf, read_budget
from langgraph_amc.cli.progress import stderr
from langgraph_amc.cli.runs import only_blocking, said_by
from langgraph_amc.errors import ConfigurationError


def run(
    app_name: AppName,
    text: Annotated[
        str | None, typer.Argument(help="What to ask, as the user's message; - reads it from standard input")
    ] = None,
    state: Annotated[
        str | None, typer.Option("--input", help="The app's input as JSON instead, or @FILE", show_default=False)
    ] = None,
    value: Annotated[str | None, in_runs(help="Folder of a value function, URL, or file.py:function")] = None,
    particles: Annotated[int | None, in_runs("--particles", "-n", help="N (8)", min=1)] = None,
    config: Annotated[Path | None, in_runs(help="What `amc tune` wrote; other options count more")] = None,
    boundary: Boundary = None,
    resample: Resample = None,
    effects: EffectsOf = None,
    thread: Annotated[str | None, in_runs(help="Thread of the app's own checkpointer; a new one by default")] = None,
    journal: Annotated[
        str | None, typer.Option(envvar="AMC_JOURNAL", help="SQLite file or SQLAlchemy URL, to go on after a kill")
    ] = None,
    seed: Annotated[int | None, in_runs(help="Repeats the run, if the model does", min=0)] = None,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_calls: MaxCalls = None,
    max_seconds: MaxSeconds = None,
    price: PriceOf = None,
    report: Annotated[Path | None, typer.Option(help="Write a report of the run to this .html or .json file")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the app on one input as particles, and print the answer of the one that is selected.

    Each particle really runs: a tool without a policy acts once per particle, so give --effects for those that write.
    """
    from langgraph_amc.evaluate.execution.work import load_served_app, load_value_by_name
    from langgraph_amc.live import LiveView
    from langgraph_amc.report.writing import check_place, write_report
    from langgraph_amc.runtime.wrap import last_run, wrap

    if report is not None:
        check_place(report)
    if journal is not None:
        kept.set(f"the run is kept in {without_password(journal)}: amc runs lists it")
    given = {
        "particles": particles,
        "value": None if value is None else load_value_by_name(value),
        "config": config,
        "boundary": boundary,
        "resample": resample,
        "effects": read_effects(effects),
        "journal": journal,
        "seed": seed,
        "budget": read_budget(max_usd, max_tokens, max_calls, max_seconds, price),
    }
    asked = _asked(text, state)
    graph = load_served_app(app_name)
    with nullcontext() if quiet or as_json else LiveView(console=stderr) as view:
        callbacks = [] if view is None else [view]
        app = wrap(graph, callbacks=callbacks, **{k: v for k, v in given.items() if v is not None})
        where: Any = {"configurable": {"thread_id": thread or uuid.uuid4().hex}}
        # as in production: its savers may know one of the two ways only
        try:
            if only_blocking(app.checkpointer):
                output = app.invoke(asked, where)
            else:
                output = asyncio.run(app.ainvoke(asked, where))
        except Exception:
            if report is not None:
                _report_failed(app, report)
            raise
    result = last_run(app)
    said = said_by(output)
    if as_json:
        used = {"calls": result.usage.calls, "tokens": result.usage.tokens, "cost": result.usage.cost}
        told = {"run": result.run_id, "seed": result.seed, "winner": result.winner.name, "answer": said, **used}
        typer.echo(json.dumps({**told, "warnings": result.warnings, "report": report and str(report)}))
    else:
        for warning in result.warnings:
            stderr.print(f"amc: warning: {warning}", markup=False, highlight=False, soft_wrap=True)
        typer.echo(said if said is not None else repr(output))
    if report is not None:
        write_report(result, report)


def _report_failed(app: Any, report: Path) -> None:
    """A report of a run in which every particle failed; one that broke before its end has no record."""
    from langgraph_amc.report import write_report
    from langgraph_amc.runtime.wrap import last_run

    with suppress(ConfigurationError):
        write_report(last_run(app), report)
        stderr.print(f"amc: what failed, and where: {report}", markup=False, highlight=False, soft_wrap=True)


def _asked(text: str | None, state: str | None) -> Any:
    if (text is None) == (state is None):
        raise ConfigurationError(
            "say what to run on: a text for the user's message, or --input JSON (@FILE for a file)"
        )
    if text is not None:
        return {"messages": [("user", sys.stdin.read() if text == "-" else text)]}
    assert state is not None
    try:
        told = Path(state[1:]).read_text(encoding="utf-8") if state.startswith("@") else state
        return json.loads(told)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"--input is JSON, or @ and the name of a JSON file: {error}") from error
