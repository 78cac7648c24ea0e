"""A damaged field of a history is named, with its line and what to do, wherever it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from langgraph_amc.evolution import Cosine, HistoryError, Strategy, ask, read, start, tell
from langgraph_amc.evolution.history import Header, History, Record

STRATEGY = Strategy(population=4, sigma=Cosine(1e-2, 5e-3, 3), seed=2)


@pytest.fixture
def lines(tmp_path: Path) -> list[Any]:
    """The lines of a history of two generations."""
    path, state = tmp_path / "whole.jsonl", start(STRATEGY)
    with History(path, Header(STRATEGY, "all", "layout", "start", {"model": "m"})) as history:
        for number in range(2):
            rewards = [[1.0, 0.0], [0.0, 0.5], [0.5, float("nan")], [0.25, 0.5]]
            update, state = tell(STRATEGY, state, ask(STRATEGY, state), rewards)
            history.append(Record(update, np.array(rewards), state, f"hash {number}"))
    return [json.loads(line) for line in path.read_text().splitlines()]


def at(*keys: Any, to: Any = None, gone: bool = False) -> Callable[[list[Any]], None]:
    """Set, or take away, what is under these keys."""

    def change(lines: list[Any]) -> None:
        place: Any = lines
        for key in keys[:-1]:
            place = place[key]
        if gone:
            del place[keys[-1]]
        else:
            place[keys[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (at(0, to=[1]), 1, "the line is no object"),
        (at(1, to="text"), 2, "the line is no object"),
        (at(2, to=7), 3, "the line is no object"),
        (at(0, "strategy", to=None), 1, "'strategy' is no object"),
        (at(0, "strategy", "rank", gone=True), 1, "'rank' of the strategy is missing"),
        (at(0, "strategy", "speed", to=1), 1, "'speed' of the strategy is unknown"),
        (at(0, "strategy", "population", to="4"), 1, "population"),
        (at(0, "strategy", "sigma", "kind", to=["cosine"]), 1, "kind"),
        (at(0, "strategy", "sigma", "end", gone=True), 1, "'end'"),
        (at(0, "weights", to=5), 1, "'weights' must be text, and holds 5"),
        (at(0, "about", to=[]), 1, "'about' is no object"),
        (at(1, "update", to=[]), 2, "'update' is no object"),
        (at(1, "update", "coefficients", to="12"), 2, "'coefficients' must be a list of integers, and holds '12'"),
        (at(1, "update", "coefficients", 0, to=0.5), 2, "'coefficients' must be a list of integers, and holds 0.5"),
        (at(1, "update", "coefficients", 0, to=True), 2, "'coefficients'"),
        (at(1, "update", "coefficients", 1, gone=True), 2, "1 coefficients are given for 2 directions"),
        (at(1, "update", "noise", to="pink"), 2, "'noise' must be one of rademacher, gaussian, and holds 'pink'"),
        (at(1, "update", "noise", to=[1]), 2, "'noise' must be text"),
        (at(2, "update", "rank", to=0), 3, "'rank' must be an integer of at least 1"),
        (at(2, "update", "rank", gone=True), 3, "'rank' is missing"),
        (at(1, "update", "members", 0, to=[0]), 2, "'members'"),
        (at(1, "update", "members", 0, to=[0, 3]), 2, "'members'"),
        (at(1, "update", "sigma", to=-1), 2, "'sigma' must be a number of at least 0, and holds -1"),
        (at(1, "update", "scale", to=None), 2, "'scale'"),
        (at(1, "update", "alpha", to=10**400), 2, "'alpha'"),
        (at(1, "update", "signal_variance", to="x"), 2, "'signal_variance'"),
        (at(1, "rewards", to=[]), 2, "'rewards' must have 4 rows"),
        (at(1, "rewards", 0, to=[1.0]), 2, "'rewards' must have 4 rows of one length"),
        (at(1, "rewards", 0, 0, to="1"), 2, "'rewards' must be a list of rows of numbers and null"),
        (at(1, "state", "number", to="1"), 2, "'number'"),
        (at(1, "state", "number", to=5), 2, "state of generation 4"),
        (at(1, "state", "slope", gone=True), 2, "'slope' is missing"),
        (at(1, "weights", to=None), 2, "'weights' must be text"),
        (at(1, "notes", to="none"), 2, "'notes' is no object"),
    ],
)
def test_a_damaged_field_is_named(
    lines: list[Any], tmp_path: Path, change: Callable[[list[Any]], None], line: int, message: str
) -> None:
    change(lines)
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    before = path.read_bytes()
    for opened in (read, lambda p: History(p, Header(STRATEGY, "all", "layout", "start"))):
        with pytest.raises(HistoryError, match=f"damaged in line {line}: ") as found:
            opened(path)
        assert message in str(found.value)
        assert "restore it from a copy" in str(found.value)
        assert ("cut it before that line" in str(found.value)) == (line > 1)
    assert path.read_bytes() == before


def test_what_was_cut_before_the_damaged_line_goes_on(lines: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    lines[2]["update"]["coefficients"] = None
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(HistoryError, match="line 3"):
        read(path)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    assert read(path).state.number == 1
