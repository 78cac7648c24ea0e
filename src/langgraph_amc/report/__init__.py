"""Reports: what a run, a comparison or a training has come to, as one HTML file, as data, as plots."""

from __future__ import annotations

from langgraph_amc.report.sections import Report
from langgraph_amc.report.writing import write_report

__all__ = ["Report", "write_report"]
