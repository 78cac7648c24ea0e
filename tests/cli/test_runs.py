"""``amc runs``, ``amc show`` and ``amc prune`` on real journals, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from langgraph_amc.runtime.journal import Journal, ParticleRecord
from langgraph_amc.trajectories.types import Usage


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with a run that has ended and one that can be gone on with."""
    where = tmp_path / "runs.sqlite"
    with Journal(where) as journal:
        run = journal.open("a", seed=4, about={"app": "agent", "thread_id": "t1"})
        run.particle(
            ParticleRecord("p0", boundary=3, rewards=(0.5,), values=(0.25, None), usage=Usage(2, 10, 5, 0.5)), None
        )
        run.particle(
            ParticleRecord("p1", "p0", 2, status="failed", error="ValueError: down", usage=Usage(1, 5, 5, 0.25)), None
        )
        run.population({"checks": [{"log_weights": [float("-inf"), 0.0]}]})
        run.outbox.begin("mail-1", "mail", {"to": "you"})
        run.finish("finished", {"winner": "p0", "checks": [{"log_weights": [float("-inf"), 0.0]}]})
        journal.open("b", seed=5, about={"app": "agent", "thread_id": "t2"}).release()
    return where


def amc(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "langgraph_amc", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def answer(*arguments: object, **environment: str) -> Any:
    done = amc(*arguments, "--json", **environment)
    assert done.returncode == 0, done.stderr
    assert "Infinity" not in done.stdout
    return json.loads(done.stdout)


def test_runs(path: Path) -> None:
    found = answer("runs", "--journal", path)
    assert [(r["key"], r["status"], r["about"]["thread_id"]) for r in found] == [
        ("b", "resumable", "t2"),
        ("a", "finished", "t1"),
    ]
    assert [r["key"] for r in answer("runs", "--status", "finished", AMC_JOURNAL=str(path))] == ["a"]
    assert [r["key"] for r in answer("runs", "--limit", 1, "--journal", f"sqlite:///{path}")] == ["b"]
    shown = amc("runs", "--journal", path).stdout
    for text in ("resumable", "finished", "agent", "t1", found[0]["id"][:12]):
        assert text in shown


def test_show(path: Path) -> None:
    run_id = answer("runs", "--journal", path, "--status", "finished")[0]["id"]
    found = answer("show", run_id[:8], "--journal", path)
    assert (found["id"], found["seed"], found["summary"]["winner"]) == (run_id, 4, "p0")
    assert found["usage"] == {"calls": 3, "input_tokens": 15, "output_tokens": 10, "cost": 0.75}
    assert found["checks"] == [{"log_weights": ["-inf", 0.0]}]
    assert [(p["name"], p["parent"], p["forked_at"], p["status"]) for p in found["particles"]] == [
        ("p0", None, None, None),
        ("p1", "p0", 2, "failed"),
    ]
    assert [(e["key"], e["outcome"]) for e in found["effects"]] == [("mail-1", "unknown")]
    shown = amc("show", run_id, "--journal", path).stdout
    for text in ("p0@2", "ValueError: down", "mail-1", "unknown", "$0.7500", "0.250", run_id):
        assert text in shown


def test_prune(path: Path) -> None:
    assert answer("prune", "--older-than", "30d", "--journal", path) == {"deleted": 0}
    time.sleep(0.01)
    assert answer("prune", "--older-than", "0s", "--status", "finished", "--journal", path) == {"deleted": 1}
    assert "0 run(s) deleted" in amc("prune", "--older-than", "0s", "--journal", path).stdout
    assert answer("prune", "--older-than", "0s", "--status", "resumable", "--journal", path) == {"deleted": 1}
    assert answer("runs", "--journal", path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("runs",), "AMC_JOURNAL"),
        (("runs", "--journal", "nowhere.sqlite"), "there is no journal nowhere.sqlite"),
        (("runs", "--journal", "sqlite:///nowhere.sqlite"), "there is no journal nowhere.sqlite"),
        (("show", "zzz", "--journal", "PATH"), "no run begins with 'zzz'"),
        (("prune", "--older-than", "soon", "--journal", "PATH"), "like 30d"),
    ],
)
def test_mistakes_are_explained(path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = amc(*[str(path) if a == "PATH" else a for a in arguments])
    assert done.returncode == 2
    assert done.stderr.startswith("amc: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
