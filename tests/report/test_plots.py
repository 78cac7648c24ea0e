"""The charts as files: real matplotlib, one file each, the same bytes for the same report."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.report.plots import save_plots
from langgraph_amc.report.sections import Forest, Interval, Report
from tests.report.conftest import Told


def test_every_chart_becomes_a_file(told: Told, tmp_path: Path) -> None:
    saved = save_plots(told.report, tmp_path / "plots")
    assert [file.name for file in saved] == [
        "01-the-tree-of-the-run.png",
        "02-values-on-the-way.png",
        "03-weights-at-each-check.png",
        "04-how-many-runs-still-counted.png",
        "05-tokens-per-branch.png",
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 5000 for file in saved)


def test_svg(tmp_path: Path) -> None:
    rows = (Interval("a", 0.5, 0.4, 0.6), Interval("b", None, None, None), Interval("c", 0.1, None, None))
    report = Report("", "", (), (Forest(title="Gains", lead="", x_label="difference", rows=rows, zero=0.0),))
    (file,) = save_plots(report, tmp_path, "svg")
    first = file.read_bytes()
    assert ET.fromstring(first).tag.endswith("svg")
    assert b"<dc:date>" not in first


def test_another_format_is_refused(told: Told, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="png, svg or pdf"):
        save_plots(told.report, tmp_path, "gif")  # type: ignore[arg-type]
