"""Effects of a process that is killed, in a real journal on disk: none twice, none lost, the unknown one told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = '''
import asyncio, os, signal, sys
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
import langgraph_amc.runtime.effects as fx
from langgraph_amc.runtime.journal import Journal
from tests.effects.support import ASK, drive, scope, thread, tool_texts
from tests.effects.test_commit import agent

folder, moment, sync = sys.argv[1], sys.argv[2], sys.argv[3] == "sync"

@tool
def send(to: str) -> str:
    """Send a mail."""
    if moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    with open(folder + "/sent", "a") as file:
        file.write(f"{to} {fx.current_effect.get()}\\n")
    if moment == "inside" and to == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    if moment == "error":
        raise TimeoutError("no answer")
    return "sent to " + to

@tool
def look(what: str) -> str:
    """Look, and die."""
    if moment == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return "saw"

turns = [[("send", {"to": "a"})], [("send", {"to": "b"})], [("look", {"what": "x"})]]
with Journal(folder + "/journal.db") as journal:
    run = journal.open("key", seed=0, about={})
    own = scope({"send": "commit"}, outbox=run.outbox, run=run.id)
    own.release_all()
    try:
        result = asyncio.run(drive(agent("create_agent", [send, look], turns), ASK, thread(), own, sync=sync))
        print("ended", tool_texts(result), [r.state for r in own.records])
    except fx.EffectUnknownError as error:
        print("unknown", error.tool, error.arguments, error.key)
        if moment == "settle":
            fx.settle_effect(run.outbox, error.key, "sent to b, they say")
    except TimeoutError as error:
        print("failed", error)
    run.release()
'''


def run(folder: Path, moment: str, way: str) -> str:
    command = [sys.executable, "-c", SCRIPT, str(folder), moment, way]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -9), done.stderr
    return done.stdout.strip() if done.returncode == 0 else "killed"


def sent(folder: Path) -> list[str]:
    file = folder / "sent"
    return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("way", ["sync", "async"])
def test_killed_after_the_effects(tmp_path: Path, way: str) -> None:
    assert run(tmp_path, "after", way) == "killed"
    assert sent(tmp_path) == ["a", "b"]
    assert run(tmp_path, "never", way) == "ended ['sent to a', 'sent to b', 'saw'] ['committed', 'committed']"
    assert sent(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_killed_inside_an_effect(tmp_path: Path, way: str) -> None:
    assert run(tmp_path, "inside", way) == "killed"
    assert run(tmp_path, "never", way).startswith("unknown send {'to': 'b'} amc-")
    assert run(tmp_path, "settle", way).startswith("unknown send {'to': 'b'} amc-")
    expected = "ended ['sent to a', 'sent to b, they say', 'saw'] ['committed', 'committed']"
    assert run(tmp_path, "never", way) == expected
    assert sent(tmp_path) == ["a", "b"]


def test_killed_before_it_did_anything_is_unknown_too(tmp_path: Path) -> None:
    assert run(tmp_path, "before", "sync") == "killed"
    assert run(tmp_path, "never", "sync").startswith("unknown send {'to': 'a'} amc-")
    assert sent(tmp_path) == []


def test_a_failed_effect_stays_failed(tmp_path: Path) -> None:
    assert run(tmp_path, "error", "sync") == "failed no answer"
    assert run(tmp_path, "never", "sync") == "failed no answer"
    assert sent(tmp_path) == ["a"]
