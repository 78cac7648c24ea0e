"""The view in a terminal and without one, through the Python API and the commands, in real terminals."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

import langgraph_amc as amc
from tests.cli.walker import WALK, made
from tests.cli.walker import amc as command
from tests.report import world


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("app"))


def test_without_a_terminal_it_says_lines() -> None:
    file = io.StringIO()
    result = world.run(callbacks=[amc.LiveView(console=Console(file=file, width=80))]).amc
    lines = file.getvalue().splitlines()
    resampled = [line for line in lines if "resampled" in line]
    assert len(resampled) == sum(c.resampled for c in result.checks)
    assert all(re.match(r"\[\d+:\d\d\] ", line) for line in lines)
    assert any(f"{result.winner.name} answers" in line for line in lines)
    assert "\x1b" not in file.getvalue()


def test_in_a_terminal_it_leaves_the_last_picture_behind_and_can_be_used_again() -> None:
    file = io.StringIO()
    view = amc.LiveView(console=Console(file=file, width=80, height=40, force_terminal=True, color_system=None))
    for seed in (1, 2):
        result = world.run(seed=seed, callbacks=[view]).amc
        assert f"★ {result.winner.name}" in file.getvalue().splitlines()[-40:].__str__()
        assert "\x1b[?25h" in file.getvalue()[-40:], "the cursor is shown again"


@pytest.mark.parametrize("terminal", [True, False])
def test_where_the_encoding_has_no_blocks_ascii_is_drawn(terminal: bool) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    console = Console(file=file, width=80, height=40, force_terminal=terminal, color_system=None)
    result = world.run(callbacks=[amc.LiveView(console=console)]).amc
    file.flush()
    said = raw.getvalue().decode("ascii")
    assert (f"* {result.winner.name}" in said) == terminal
    assert re.search(r"step \d: resampled, \d of \d go on . copied p\d x\d", said)


def test_nothing_is_printed_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    world.run()
    assert capfd.readouterr() == ("", "")


def in_a_terminal(folder: Path, width: int, *words: str, until: str | None = None, code: int = 0) -> str:
    """What a command writes to a terminal of this width; it is interrupted where it has written ``until``."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(width), "LINES": "40", "TERM": "xterm-256color", "NAP": "0.3"}
    process = subprocess.Popen(
        [sys.executable, "-m", "langgraph_amc", *words],
        cwd=folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said, end = b"", time.monotonic() + 100
    while time.monotonic() < end:
        ready, _, _ = select.select([ours], [], [], 0.2)
        try:
            said += os.read(ours, 65536) if ready else b""
        except OSError:  # the terminal's other end is closed
            break
        if until is not None and re.search(until, _plain(said)):
            until = None
            process.send_signal(signal.SIGINT)
        if not ready and process.poll() is not None:
            break
    os.close(ours)
    assert process.wait(10) == code, said.decode()
    return _plain(said)


def _plain(said: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode(errors="replace"))


def test_interrupted_it_leaves_the_runs_that_were_under_way_and_says_what_is_kept(folder: Path) -> None:
    words = ("collect", "agent.py:graph", "--tasks", "tasks.jsonl", "--reward", "agent.py:fine", "-n", "2")
    given = ("--store", "kept.sqlite", "--concurrency", "2")
    said = in_a_terminal(folder, 100, *words, *given, until=r"[1-5]/6 .*\s+task[^/]*\s+t\d ", code=130)
    last = said[said.rindex("collecting") :]
    assert re.search(r"^t\d +\d+ .* the run was broken off", last, re.M), last
    assert last.rstrip().endswith("amc: interrupted; the runs that have ended are kept in kept.sqlite")
    said = in_a_terminal(folder, 80, "run", *WALK, "walk on", until=r"\bstep [12]\b", code=130)
    assert said.rstrip().endswith("amc: interrupted")


@pytest.mark.parametrize("width", [80, 140])
def test_run_shows_its_particles(folder: Path, width: int) -> None:
    said = in_a_terminal(folder, width, "run", *WALK, "walk on", "--seed", "3")
    assert "walker · step" in said
    assert re.search(r"★ p\d+", said)
    assert re.search(r"step 2: resampled, \d of 6 go on", said)
    assert said.rstrip().endswith("ok"), "the answer comes last"


def test_compare_shows_runs_side_by_side(folder: Path) -> None:
    words = ("compare", *WALK, "--tasks", "tasks.jsonl", "--reward", "agent.py:fine")
    said = in_a_terminal(folder, 100, *words)
    assert re.search(r"comparing\s.*\d+/\d+ · \d:\d\d", said)
    assert "AMC, N = 6" in said


def test_lines_without_a_terminal_and_nothing_beside_json(folder: Path) -> None:
    words = ("collect", "agent.py:graph", "--tasks", "tasks.jsonl", "--reward", "agent.py:fine", "-n", "2")
    told = command(folder, *words, "--store", "a.sqlite").stderr
    assert re.search(r"collecting: 3/6 in \d:\d\d, \d:\d\d left, \d+ tokens", told)
    assert told.rstrip().endswith("collecting: done")
    loud = command(folder, *words, "--store", "c.sqlite", "--json")
    assert loud.stderr == ""
    assert json.loads(loud.stdout)["runs"] == 12
