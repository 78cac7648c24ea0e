"""Real runs that several tests look at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from langgraph_amc.report.run import run_report
from langgraph_amc.report.sections import Report
from langgraph_amc.runtime.journal import Journal, RunInfo
from langgraph_amc.runtime.result import AMCResult
from tests.report import world


@dataclass(frozen=True)
class Told:
    """One run, as its result and as its journal tell it."""

    result: AMCResult
    info: RunInfo
    report: Report
    journal: Path


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    path = tmp_path_factory.mktemp("report") / "runs.sqlite"
    result = world.run(path).amc
    with Journal(path, create=False) as journal:
        (found,) = journal.runs()
        info = journal.show(found.id, transcripts=True)
    return Told(result, info, run_report(result), path)
