"""``amc runs``, ``amc show`` and ``amc prune`` on real journals, in real processes."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from langgraph_amc.runtime.journal import Journal, ParticleRecord
from langgraph_amc.runtime.journal.reading import STATUSES
from langgraph_amc.trajectories.types import Usage

ERROR = "ValueError: " + " ".join(f"reason-{i}" for i in range(20))
ASKED = {"key": "mail-1", "tool": "mail", "arguments": {}, "particle": "p0", "policy": "commit", "state": "held"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with a run that has ended and one that can be gone on with."""
    where = tmp_path / "runs.sqlite"
    with Journal(where) as journal:
        run = journal.open("a", seed=4, about={"app": "agent", "thread_id": "t1"})
        usage = Usage(1, 5, 5, 0.25)
        run.particle(ParticleRecord("p1", "p0", 2, status="failed", error=ERROR, usage=usage), None)
        effects = {
            "records": [ASKED | {"state": "denied", "tool": "drop", "key": "drop-1", "policy": "deny"}],
            "pending": [{"key": "mail-2", "tool": "mail", "arguments": {}, "call": None, "place": "tools"}],
        }
        run.particle(ParticleRecord("p2", "p0", 2, status="interrupted", extra={"effects": effects}), None)
        run.particle(ParticleRecord("p3", "p0", 2), None)
        won = ParticleRecord("p0", None, None, "finished", 3, rewards=(0.5,), values=(0.25, None))
        run.particle(replace(won, usage=Usage(2, 10, 5, 0.5), extra={"effects": {"records": [ASKED]}}), None)
        check = {"boundary": 2, "particles": ["p0", "p1"], "log_weights": [float("-inf"), 0.0], "ess": 1.25}
        run.population({"checks": [check, check | {"boundary": 3, "ancestors": [0, 0]}]})
        run.outbox.begin("mail-1", "mail", {"to": "you"})
        run.finish("finished", {"winner": "p0", "warnings": ["the model looks deterministic"]})
        left = journal.open("b", seed=5, about={"app": "agent", "thread_id": "t2"})
        left.particle(ParticleRecord("p0"), None)
        left.particle(ParticleRecord("p1", status="interrupted", extra={"effects": effects}), None)
        left.release()
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
    assert [(c["boundary"], c["log_weights"]) for c in found["checks"]] == [(2, ["-inf", 0.0]), (3, ["-inf", 0.0])]
    assert (found["winner"], found["lineage"]) == ("p0", ["p0"])
    assert [(p["name"], p["parent"], p["forked_at"], p["status"], p["state"]) for p in found["particles"]] == [
        ("p0", None, None, "finished", "finished"),
        ("p1", "p0", 2, "failed", "failed"),
        ("p2", "p0", 2, "interrupted", "dropped"),
        ("p3", "p0", 2, None, "truncated"),
    ]
    assert [(e["key"], e["particle"], e["state"]) for e in found["effects"]] == [
        ("mail-1", "p0", "unknown"),
        ("drop-1", "p0", "denied"),
        ("mail-2", "p2", "dropped"),
    ]
    shown = amc("show", run_id, "--journal", path).stdout
    told = ("p0 *", "p0@2", "dropped", "denied", "mail-2", "unknown", "$0.7500", "0.250", run_id)
    for text in (*told, "warning: the model looks deterministic", "1.250", "1 of 2 go on", "reason-0", "reason-19"):
        assert text in shown


def test_show_of_a_run_that_was_left(path: Path) -> None:
    run_id = answer("runs", "--journal", path, "--status", "resumable")[0]["id"]
    found = answer("show", run_id, "--journal", path)
    assert found["winner"] is None
    assert [p["state"] for p in found["particles"]] == ["alive", "paused"]
    assert [(e["key"], e["state"]) for e in found["effects"]] == [("drop-1", "denied"), ("mail-2", "held")]
    assert "none yet" in amc("show", run_id, "--journal", path).stdout


def test_statuses_are_explained() -> None:
    for command, words in (("runs", STATUSES), ("show", ("alive", "pruned", "paused", "dropped", "truncated"))):
        shown = amc(command, "--help").stdout
        assert all(word in shown for word in words)


def test_prune(path: Path) -> None:
    assert answer("prune", "--older-than", "30d", "--journal", path) == {"deleted": 0}
    time.sleep(0.01)
    assert answer("prune", "--older-than", "0s", "--dry-run", "--journal", path) == {"would_delete": 1}
    assert "1 run(s) would be deleted" in amc("prune", "--older-than", "0s", "--dry-run", "--journal", path).stdout
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
        (("prune", "--older-than", "1d", "--status", "finishd", "--journal", "PATH"), "running, resumable, finished"),
        (("runs", "--status", "finishd", "--journal", "PATH"), "running, resumable, finished"),
        (("runs", "--journal", "OTHER"), "holds no journal"),
        (("show", "a", "--journal", "OTHER"), "holds no journal"),
        (("prune", "--older-than", "1d", "--journal", "OTHER"), "holds no journal"),
        (("settle", "a", "key", "--result", "sent", "--journal", "OTHER"), "holds no journal"),
        (("runs", "--journal", "mistyped/runs.sqlite"), "there is no folder mistyped"),
    ],
)
def test_mistakes_are_explained(path: Path, arguments: tuple[str, ...], message: str) -> None:
    other = path.with_name("other.sqlite")
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = other.read_bytes()
    done = amc(*[{"PATH": str(path), "OTHER": str(other)}.get(a, a) for a in arguments])
    assert other.read_bytes() == before
    assert done.returncode == 2
    assert done.stderr.startswith("amc: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
