"""The live board follows real runs: what it shows at the end is what the record says."""

from __future__ import annotations

import io
import math
import threading
from typing import Any

import pytest
from rich.console import Console

import langgraph_amc as amc
from langgraph_amc.live.board import Board
from langgraph_amc.live.view import bar, clock, many_runs, one_run, sparkline
from langgraph_amc.runtime.watching import (
    ParticleChosen,
    ParticleEnded,
    ParticleStarted,
    ParticleStepped,
    RunEnded,
    RunEvent,
    RunStarted,
)
from langgraph_amc.trajectories.types import Usage
from tests.report import world


def drawn(renderable: Any, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None, force_terminal=True)
    console.print(renderable)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    return str(text)


@pytest.fixture(scope="module")
def watched() -> tuple[Board, amc.AMCResult, list[str]]:
    said: list[str] = []
    board = Board(lambda run, text: said.append(text))
    result = world.run(callbacks=[board.hear]).amc
    return board, result, said


def test_rows_are_the_particles(watched: tuple[Board, amc.AMCResult, list[str]]) -> None:
    board, result, _ = watched
    (run,) = board.runs.values()
    assert {name: row.parent for name, row in run.rows.items()} == {t.particle: t.parent for t in result.trajectories}
    for report in result.particles:
        row = run.rows[report.name]
        assert (row.state, row.reward, row.value) == (report.trajectory.status, report.reward, report.value)
        assert row.step == len(report.trajectory.segments) - 1
    assert {row.name for row in run.rows.values() if row.state == "pruned"} == {p.name for p in result.pruned}
    assert run.winner == result.winner.name
    assert run.usage == result.usage == board.usage
    assert run.resamplings == sum(check.resampled for check in result.checks)
    assert run.past_ess == pytest.approx([c.ess / len(c.particles) for c in result.checks])
    assert run.ended
    assert board.ended == 1


def test_what_happens_is_said(watched: tuple[Board, amc.AMCResult, list[str]]) -> None:
    _, result, said = watched
    first = next(c for c in result.checks if c.resampled)
    kept = len(set(first.ancestors))
    assert f"step {first.boundary}: resampled, {kept} of {len(first.particles)} go on" in said[0]
    gone = [p for k, p in enumerate(first.particles) if k not in first.ancestors]
    assert said[0].endswith(f"stopped {', '.join(gone)}")
    assert any(text.startswith("effect mail of ") and text.endswith("committed") for text in said)
    assert said[-1].startswith(f"{result.winner.name} answers") or any(
        f"{result.winner.name} answers" in s for s in said
    )


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_picture_fits(watched: tuple[Board, amc.AMCResult, list[str]], width: int) -> None:
    board, result, _ = watched
    (run,) = board.runs.values()
    text = drawn(one_run(run, width, 30), width)
    assert f"★ {result.winner.name}" in text
    assert all(name in text for name in ("digger", "ESS", "particle", "step", "value", "weight", "last action"))
    small = drawn(one_run(run, width, 9), width)
    assert f"★ {result.winner.name}" in small, "the winner is shown however little room there is"
    assert len(small.splitlines()) <= 10


def test_runs_side_by_side() -> None:
    board, lock = Board(), threading.Lock()
    pictures: list[str] = []

    def hear(event: RunEvent) -> None:
        with lock:
            board.hear(event)
            pictures.append(drawn(many_runs("collecting", board, board.ended, 2, 80, 20)))

    threads = [threading.Thread(target=world.run, kwargs={"rounds": 3, "seed": s, "callbacks": [hear]}) for s in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert board.ended == 2
    assert "2/2" in pictures[-1]
    assert any(len(p.splitlines()) == 4 for p in pictures), "two runs were under way at once"
    head = ["task", "step", "live", "ESS", "best", "tokens", "last"]
    tables = [p.splitlines() for p in pictures if len(p.splitlines()) > 1]
    assert all(lines[1].split() == head for lines in tables), "however long the last column is"
    assert len(pictures[-1].splitlines()) == 1, "no empty table is left behind"
    board.forget_ended()
    assert not board.runs


@pytest.mark.parametrize("width", [16, 20, 40, 55])
def test_a_narrow_terminal_has_what_matters_most(watched: tuple[Board, amc.AMCResult, list[str]], width: int) -> None:
    board, result, _ = watched
    (run,) = board.runs.values()
    lines = drawn(one_run(run, width, 30), width).splitlines()
    row = next(line for line in lines if f"★ {result.winner.name} " in line)
    _, name, step, value = row.split()
    report = result.winner
    assert (name, int(step), float(value)) == (report.name, run.rows[name].step, pytest.approx(report.value, abs=0.01))
    assert lines[2].startswith("parti"), "a line above it is cut and not wrapped"
    assert len(drawn(many_runs("comparing", board, 1, 2, width, 20), width).splitlines()) == 1


def test_texts_of_agents_stay_in_their_line_and_do_not_steer_the_terminal() -> None:
    said: list[str] = []
    board = Board(lambda run, text: said.append(text))
    about: dict[str, Any] = {"run_id": "r", "seconds": 0.0}
    hostile = "a\x1b[2J\nb\u2028c\u202ed\r\x07\ud800e"
    names: dict[str, Any] = {"thread_id": "t", "objective": "optimise", "schedule": "", "resampler": ""}
    facts: dict[str, Any] = {"seed": 1, "particles": 1, "value": None, "reward": None, "restored": False}
    board.hear(RunStarted(app=hostile, task=hostile, **names, **facts, **about))
    board.hear(ParticleStarted(particle="p0", parent=None, boundary=0, **about))
    step: dict[str, Any] = {"step": 1, "nodes": (), "reward": 0.0, "usage": Usage()}
    board.hear(ParticleStepped(particle="p0", boundary=1, action=hostile, **step, **about))
    (run,) = board.runs.values()
    pictures = [one_run(run, 80, 20), many_runs("x", board, 0, 1, 80, 20)]
    end: dict[str, Any] = {"reward": None, "value": None, "log_weight": 0.0, "usage": Usage()}
    board.hear(ParticleEnded(particle="p0", boundary=1, status="failed", error=hostile, **end, **about))
    board.hear(ParticleChosen(particle="p0", effects=(), **about))
    assert said == ["p0 failed after step 1: a [2J b c d e", "p0 stands for all: every one failed"]
    for picture in (*pictures, one_run(run, 80, 20)):
        text = drawn(picture)
        assert all(c.isprintable() for c in text.replace("\n", ""))
        assert "a [2J b c d e" in text


@pytest.mark.parametrize(("broken_off", "told"), [(True, "the run was broken off"), (False, "the run broke: Oh: no")])
def test_a_run_that_is_interrupted_is_no_error(broken_off: bool, told: str) -> None:
    said: list[str] = []
    board = Board(lambda run, text: said.append(text))
    about: dict[str, Any] = {"run_id": "r", "seconds": 0.0}
    names: dict[str, Any] = {"app": "a", "thread_id": "t", "task": None, "objective": "optimise", "schedule": ""}
    facts: dict[str, Any] = {"seed": 1, "particles": 1, "value": None, "reward": None, "restored": False}
    board.hear(RunStarted(resampler="", **names, **facts, **about))
    board.hear(RunEnded(result=None, error="Oh: no", broken_off=broken_off, **about))
    assert said == [told]


def test_parts() -> None:
    assert [bar(x, 4) for x in (0.0, 0.5, 1.0, 2.0, -1.0)] == ["    ", "██  ", "████", "████", "    "]
    assert len(bar(0.33, 8)) == 8
    assert sparkline([0.0, 0.5, 1.0, 1.0], 3) == "▅██"
    assert [clock(s) for s in (0, 61, 3661, -1)] == ["0:00", "1:01", "1:01:01", "0:00"]
    assert math.isclose(sum(bar(1 / 3, 24).count("█") for _ in range(3)), 24)
