"""From a model's answer to a score, or to a failure with a name: nothing that a function does is an exception here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langgraph_amc.heuristics.errors import FailureKind, HeuristicFailure
from langgraph_amc.heuristics.problems import Problem
from langgraph_amc.heuristics.sandbox import Limits, sandboxed
from langgraph_amc.heuristics.screening import code_in, screen


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of an answer.

    Attributes
    ----------
    source: in the normal form of `screening.screen`, or as it came where it was refused.
    score: mean over the instances, ``None`` where it failed. failure, detail: how, and what is known of it.
    """

    source: str
    score: float | None
    failure: FailureKind | None = None
    detail: str = ""


def judge(problem: Problem, answer: str, instances: Sequence[Any], limits: Limits) -> Judged:
    """Screen the code in a model's answer and run it on all instances, in one process. Blocks."""
    source = code_in(answer)
    try:
        source = screen(source, problem.function, problem.arguments, limits.modules)
        with sandboxed(source, problem.function, limits) as function:
            scores = [problem.score(function, instance) for instance in instances]
    except HeuristicFailure as failure:
        return Judged(source, None, failure.kind, failure.detail)
    return Judged(source, sum(scores) / len(scores))
