"""``amc report``: a run of a journal, or what a command has left in a folder, as a page to open in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from langgraph_amc.cli.options import AsJson
from langgraph_amc.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph_amc.report import Report


def report(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run's id or the beginning of it, with --journal; or the folder of amc compare --out, train-value, "
            "evolve, optimize, coevolve or demo",
            show_default=False,
        ),
    ],
    journal: Annotated[
        str | None,
        typer.Option("--journal", envvar="AMC_JOURNAL", help="SQLite file or SQLAlchemy URL", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the page; by default in the folder, or amc-report-RUN.html here")
    ] = None,
    data: Annotated[bool, typer.Option(help="Also write everything as JSON beside it")] = True,
    plots: Annotated[
        str | None, typer.Option(help="Also write the charts as png, svg or pdf, into a folder beside it")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a report: one HTML file that opens from disk, without a network, and report data beside it.

    It holds what agents and tools have said: give it only to those who may read that.
    """
    from langgraph_amc.report import write_report
    from langgraph_amc.report.plots import save_plots

    made, page = _made(what, journal)
    page = out or page
    if page.suffix != ".html":
        raise ConfigurationError(f"--out is an HTML file, got {page}: say {page.with_suffix('.html')}")
    files = [write_report(made, page)]
    if data:
        files.append(write_report(made, page.with_suffix(".json")))
    if plots is not None:
        files += save_plots(made, page.with_name(f"{page.stem}-plots"), plots)  # type: ignore[arg-type]  # checked there
    if as_json:
        typer.echo(json.dumps({"title": made.title, "files": [str(file) for file in files]}))
        return
    typer.echo(made.title)
    for file in files:
        typer.echo(f"  {file}")


def _made(what: str, journal: str | None) -> tuple[Report, Path]:
    """The report, and where it goes if nobody says otherwise."""
    from langgraph_amc.report.sources import of_folder, of_journal

    place = Path(what)
    if place.exists():
        made = of_folder(place)
        return made, (place / "report.html" if place.is_dir() else place.with_name(f"{place.stem}-report.html"))
    if journal is None:
        raise ConfigurationError(
            f"there is no folder {what}; if it is a run's id, say in which journal: --journal FILE, or set AMC_JOURNAL"
        )
    from langgraph_amc.runtime.journal import Journal

    with Journal(journal, create=False) as opened:
        return of_journal(opened, what), Path(f"amc-report-{what[:12]}.html")
