"""Reports of what is on disk: a run in a journal, or what a command has left in a folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.report.comparison import comparison_report
from langgraph_amc.report.evolution import evolution_report
from langgraph_amc.report.run import run_report
from langgraph_amc.report.sections import Report
from langgraph_amc.report.skills import coevolution_report, optimization_report
from langgraph_amc.report.training import training_report
from langgraph_amc.runtime.journal import Journal
from langgraph_amc.value.manifest import REPORT_FILE

RESULT = "result.json"
"""What compare, evolve, optimize, coevolve and the demo leave in their folder."""
_HAS = "the folder of amc compare --out, train-value, evolve, optimize, coevolve or demo"


def of_journal(journal: Journal, run: str) -> Report:
    """The report of the run whose id begins with ``run``; `JournalError` unless there is exactly one."""
    return run_report(journal.show(run, transcripts=True))


def of_folder(path: str | Path) -> Report:
    """The report of what is in a folder, or of one of its files; raises ConfigurationError where there is nothing."""
    given = Path(path)
    files = [given / RESULT, given / REPORT_FILE] if given.is_dir() else [given]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        raise ConfigurationError(
            f"{given} holds neither {RESULT} nor {REPORT_FILE}: give {_HAS}, or a run's id and --journal"
        )
    return of_result_file(file)


def of_result_file(file: Path) -> Report:
    """The report of a result, which is told by its fields."""
    try:
        text = file.read_text(encoding="utf-8")
        found = json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} is no JSON that can be read: {error}") from error
    if isinstance(found, dict):
        for fields, make in _KINDS:
            if fields <= found.keys():
                try:
                    return make(found)
                except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                    why = f"{type(error).__name__}: {error}"
                    raise ConfigurationError(f"{file} was written by another version, or changed ({why})") from error
    raise ConfigurationError(f"{file} is no result that has a report: give {_HAS}")


def _finite(number: str) -> float | None:
    """A number of JSON, which may be larger than any float."""
    read = float(number)
    return read if math.isfinite(read) else None


def _compared(found: Mapping[str, Any]) -> Report:
    report = comparison_report(found["comparisons"])
    if (value := found.get("value")) is None:
        return report
    trained = training_report(value)  # of the demo
    sections = tuple(replace(s, title=f"Value function: {s.title}") for s in trained.sections)
    return replace(report, sections=report.sections + sections)


_KINDS: tuple[tuple[set[str], Callable[[Mapping[str, Any]], Report]], ...] = (
    ({"comparisons"}, _compared),
    ({"arms", "difference_selected"}, lambda found: comparison_report([found])),
    ({"generations", "trials", "sharing"}, coevolution_report),
    ({"generations", "validations", "held_out"}, evolution_report),
    ({"trials", "changes", "validation_old"}, optimization_report),
    ({"quality", "measured_on"}, training_report),
)
"""By fields that none of those above has."""
