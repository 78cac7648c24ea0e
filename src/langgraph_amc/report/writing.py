"""Reports as files."""

from __future__ import annotations

import json
from pathlib import Path

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.report.page import to_html
from langgraph_amc.report.run import run_report
from langgraph_amc.report.sections import Report
from langgraph_amc.runtime.result import AMCOutput, AMCResult


def write_report(of: AMCOutput | AMCResult | Report, path: str | Path) -> Path:
    """Write the report of a run: ``*.html``, one file to open in a browser, or ``*.json``, everything as data.

    Parameters
    ----------
    of: what a wrapped app returned, its ``.amc``, `amc.last_run(app)`, or a report that is made already.

    Raises ConfigurationError for a name with another ending, or what has no report.
    """
    report = as_report(of)
    file = Path(path)
    check_place(file)
    try:
        file.write_bytes((to_html(report) if file.suffix == ".html" else to_json(report)).encode("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written ({error.strerror}): give another file") from error
    return file


def check_place(path: str | Path) -> None:
    """Raise ConfigurationError where no report can be written: said before what it reports on is paid for."""
    file = Path(path)
    if file.suffix not in (".html", ".json"):
        raise ConfigurationError(f"a report is written to a file that ends in .html or .json, got {file}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = not file.exists()
        with file.open("ab"):
            pass
        if new:
            file.unlink()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written ({error.strerror}): give another file") from error


def as_report(of: AMCOutput | AMCResult | Report) -> Report:
    """The report of what a run returned."""
    result = of.amc if isinstance(of, AMCOutput) else of
    if isinstance(result, AMCResult):
        return run_report(result)
    if isinstance(result, Report):
        return result
    raise ConfigurationError(
        f"there is no report of a {type(of).__name__}: give what the wrapped app returned, or amc.last_run(app)"
    )


def to_json(report: Report) -> str:
    """Everything as JSON, ASCII only."""
    return json.dumps(report.to_json(), allow_nan=False, indent=1)
