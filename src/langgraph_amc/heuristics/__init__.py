"""Automatic heuristic design: functions that a model writes, run confined, scored by their problem, evolved."""

from langgraph_amc.heuristics.asking import ModelWriter, Request, Writer
from langgraph_amc.heuristics.errors import FailureKind, HeuristicFailure, SandboxUnavailableError
from langgraph_amc.heuristics.judging import Judged, judge
from langgraph_amc.heuristics.problems import PROBLEMS, BinPacking, Problem, Tour
from langgraph_amc.heuristics.sandbox import Limits, check_sandbox, sandboxed
from langgraph_amc.heuristics.search import Candidate, Search, Searched, search

__all__ = [
    "PROBLEMS",
    "BinPacking",
    "Candidate",
    "FailureKind",
    "HeuristicFailure",
    "Judged",
    "Limits",
    "ModelWriter",
    "Problem",
    "Request",
    "SandboxUnavailableError",
    "Search",
    "Searched",
    "Tour",
    "Writer",
    "check_sandbox",
    "judge",
    "sandboxed",
    "search",
]
