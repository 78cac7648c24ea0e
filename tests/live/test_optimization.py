"""The view of a run of optimising: progress and candidates in a terminal, a line per proposal elsewhere."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from langgraph_amc.evaluate.optimizing import Standing
from langgraph_amc.evaluate.optimizing.history import Trial
from langgraph_amc.evaluate.optimizing.spending import Plan
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.live.optimization import SHOWN, Search
from langgraph_amc.skills.gate import Verdict
from langgraph_amc.skills.types import Edit, Proposal
from langgraph_amc.trajectories.types import Usage


def proposal(section: str) -> Proposal:
    return Proposal((Edit("add section", "desk", section, "Do it."),), "someone")


def verdict(difference: float, *, accepted: bool = False) -> Verdict:
    return Verdict(accepted, difference, difference - 0.2, difference + 0.2, 0.01, 0.05, 4, 3, 1, 0, "why")


TRIALS = (
    Trial(0, 0, proposal("Weigh"), "accepted", "better: \x1b[2J so it is", "c", verdict(0.25, accepted=True), (0.5, 1)),
    Trial(0, 1, proposal("Hurry"), "rejected", "given up", "c", verdict(-0.5)),
    Trial(0, 2, proposal("Copy"), "refused", "it repeats the reference of a task", "c"),
    Trial(1, 0, proposal("Break"), "rejected", "half of its runs have no reward", "c", verdict(math.nan)),
)


def at(trials: int, *waiting: str, **more: Any) -> Standing:
    given: dict[str, Any] = {
        "doing": "round 2, candidate 2",
        "done": 3,
        "total": 16,
        "plan": Plan(8, 300, 32, 7),
        "round": 2,
        "rounds": 4,
        "trials": TRIALS[:trials],
        "waiting": tuple(map(proposal, waiting)),
        "champion": Estimate(0.5, 0.25, 0.75),
        "usage": Usage(120, 9000, 1000, 0.5),
        "seconds_left": 75.0,
    }
    return Standing(**{**given, **more})


def drawn(view: Search, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None, force_terminal=True)
    console.print(view.picture(width))
    text = str(console.file.getvalue())  # type: ignore[attr-defined]
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "\x1b" not in text
    return text


@pytest.mark.parametrize("width", [40, 80, 140])
def test_candidates_stand_beside_the_champion(width: int) -> None:
    view = Search()
    assert drawn(view, width).strip() == "starting"
    heard = [
        view.hear(s) for s in (at(0, round=0, champion=None, plan=None), at(1), at(1), at(2), at(4, "Insure", "Greet"))
    ]
    assert heard == [False, True, False, True, True]
    lines = drawn(view, width).splitlines()
    rows = {line.split()[0]: line for line in lines if re.match(r"★|\d\.\d", line)}
    assert set(rows) == {"★", "1.1", "1.2", "1.3", "2.1", "2.2", "2.3"}
    assert rows["1.1"].split()[1] == "taken"
    assert "+0.250" in rows["1.1"]
    assert "not taken" in rows["2.1"]
    assert "refused" in rows["1.3"]
    assert "is tried" in rows["2.2"]
    assert "waits" in rows["2.3"]
    if width >= 80:
        assert rows["★"].split() == ["★", "champion", "0.500", "0.250–0.750"]
        assert rows["1.1"].split()[2:5] == ["0.750", "+0.250", "+0.050…+0.450"]
        assert rows["2.1"].split() == ["2.1", "not", "taken", "add", *rows["2.1"].split()[4:]]  # nothing is known of it
        head = " ".join(" ".join(lines[:2]).split())
        assert head.startswith("round 2/4 · 4 tried, 1 taken · 0:00 · at most 1:15 left")
        assert "120 calls · 10,000 tokens · $0.5000" in head
    assert ("why" in lines[-8]) == (width == 140)


def test_the_last_candidates_are_shown_where_there_are_many() -> None:
    view = Search()
    many = tuple(Trial(0, k, proposal(f"s{k}"), "rejected", "no", "c", verdict(-0.1)) for k in range(30))
    view.hear(replace(at(0), trials=many))
    rows = [line.split()[0] for line in drawn(view, 80).splitlines() if line.startswith("1.")]
    assert rows == [f"1.{k + 1}" for k in range(30 - SHOWN, 30)]


def test_without_a_terminal_a_proposal_is_a_line() -> None:
    view = Search()
    assert view.hear(at(1))
    said = "add section 'Weigh' of desk: accepted, better: [2J so it is · 1 tried, 1 taken · validation 0.500 · "
    assert view.line() == said + "120 calls · 10,000 tokens · $0.5000 · at most 1:15 left"
