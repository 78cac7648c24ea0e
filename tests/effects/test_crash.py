"""Effects of a process that is killed, in a real journal on disk: none twice, none lost, the unknown one told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    with open(folder + "/sent", "a") as file:
        file.write(f"{to} {fx.current_effect.get()}\\n")
    if moment == "inside" and to == "b":
        os.kill(os.getpid(), signal.SIGKILL)
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


def test_killed_after_the_effects(tmp_path: Path) -> None:
    assert run(tmp_path, "after", "sync") == "killed"
    assert sent(tmp_path) == ["a", "b"]
    assert run(tmp_path, "never", "sync") == "ended ['sent to a', 'sent to b', 'saw'] ['committed', 'committed']"
    assert sent(tmp_path) == ["a", "b"]


def test_killed_inside_an_effect(tmp_path: Path) -> None:
    assert run(tmp_path, "inside", "async") == "killed"
    assert run(tmp_path, "settle", "async").startswith("unknown send {'to': 'b'} amc-")
    expected = "ended ['sent to a', 'sent to b, they say', 'saw'] ['committed', 'committed']"
    assert run(tmp_path, "never", "async") == expected
    assert sent(tmp_path) == ["a", "b"]


SESSION = '''
import os, signal, sys
from langchain.agents import create_agent
from langchain_core.tools import tool
import langgraph_amc as amc
from tests.effects.support import ASK, CallingModel

folder, die = sys.argv[1], sys.argv[2] == "die"
notes = amc.Session(list)

@tool
@amc.effect("stateful")
def write(line: str) -> str:
    """Write a line."""
    notes.get().append(line)
    return f"{len(notes.get())} lines"

def judge(transcript: str) -> float:
    if die and "done" in transcript:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.5

app = create_agent(CallingModel(turns=[[("write", {"line": "a"})], [("write", {"line": "b"})]]), [write])
better = amc.wrap(app, particles=3, value=judge, seed=1, journal=folder + "/runs.sqlite", resample=amc.every(1))
result = better.invoke(ASK)
print(notes.get(), [m.content for m in result["messages"] if m.type == "tool"])
print([w for w in result.amc.warnings if "journal" in w])
'''


def test_killed_after_particles_had_ended_the_winners_world_comes_back(tmp_path: Path) -> None:
    def process(moment: str) -> tuple[int, str]:
        command = [sys.executable, "-c", SESSION, str(tmp_path), moment]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout or done.stderr

    assert process("die")[0] == -9
    assert process("live") == (0, "['a', 'b'] ['1 lines', '2 lines']\n[]\n")


SETTLING = '''
import asyncio, os, signal, sys
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
import langgraph_amc as amc
from tests.effects.support import ASK, CallingModel, thread, tool_texts

folder, die = sys.argv[1], sys.argv[2] == "die"
notes = amc.Session(list)

@tool
@amc.effect("stateful")
async def write(line: str) -> str:
    """Write a line."""
    notes.get().append(line)
    return f"{len(notes.get())} lines"

@tool
@amc.effect("commit")
async def buy(what: str) -> str:
    """Buy."""
    with open(folder + "/bought", "a") as file:
        file.write(what)
    if die:
        os.kill(os.getpid(), signal.SIGKILL)
    return "bought"

async def main() -> None:
    turns = [[("write", {"line": "a"})], [("buy", {"what": "x"})], [("write", {"line": "b"})]]
    async with AsyncSqliteSaver.from_conn_string(folder + "/saver.sqlite") as saver:
        app = create_agent(CallingModel(turns=turns), [write, buy], checkpointer=saver)
        with amc.Journal(folder + "/runs.sqlite") as journal:
            better = amc.wrap(app, particles=3, value=lambda t: [0.5] * len(t), seed=1, journal=journal)
            try:
                await better.ainvoke(ASK, thread())
            except amc.EffectUnknownError as unknown:
                for run in journal.runs():
                    if any(effect.key == unknown.key for effect in journal.show(run.id).effects):
                        amc.settle(journal, run.id, unknown.key, "they say it is bought")
                        result = await better.ainvoke(ASK, thread())
                        assert result.amc.run_id == run.id
                        print(tool_texts(result), notes.get())

asyncio.run(main())
'''


def test_an_unknown_effect_is_settled_in_code_and_the_run_goes_on(tmp_path: Path) -> None:
    def process(moment: str) -> tuple[int, str]:
        command = [sys.executable, "-c", SETTLING, str(tmp_path), moment]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout or done.stderr

    assert process("die")[0] == -9
    assert process("live") == (0, "['1 lines', 'they say it is bought', '2 lines'] ['a', 'b']\n")
    assert (tmp_path / "bought").read_text() == "x"
