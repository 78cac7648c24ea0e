"""What a killed process had asked stays charged; what a resumed call had beside its input has to be given again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import MessagesState
from langgraph.runtime import Runtime

import langgraph_amc as amc
from langgraph_amc.policy.budget import Budget
from langgraph_amc.runtime.journal import Journal
from langgraph_amc.trajectories.types import Usage
from tests.runtime.support import ASK

ASKS = """
import os, sys, time
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
import langgraph_amc as amc
from tests.runtime.support import ASK, ReplyModel
from langgraph.checkpoint.sqlite import SqliteSaver
import sqlite3

folder = sys.argv[1]

@tool
def look(n: int) -> str:
    "Look."
    return "seen"

def reply(messages):
    with open(folder + "/asked", "a") as f:
        f.write("x")
    time.sleep(0.3)
    turn = len(messages)
    calls = [{"name": "look", "args": {"n": turn}, "id": str(turn)}] if turn < 8 else []
    usage = dict(input_tokens=1, output_tokens=1, total_tokens=2)
    return AIMessage(f"turn {turn}", tool_calls=calls, usage_metadata=usage)

saver = SqliteSaver(sqlite3.connect(folder + "/threads", check_same_thread=False))
app = create_agent(ReplyModel(reply=reply), [look], checkpointer=saver)
budget = amc.Budget(calls=9, output_tokens=9)
value = lambda texts: [0.5] * len(texts)
better = amc.wrap(app, particles=2, journal=folder + "/runs", budget=budget, value=value, effects="pure")
try:
    better.invoke(ASK, {"configurable": {"thread_id": "1"}})
except amc.BudgetExceededError as error:
    print(error)
"""


def test_a_process_that_is_killed_again_and_again_keeps_its_budget(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    asked.touch()

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-c", ASKS, str(tmp_path)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    for _ in range(3):
        before = asked.stat().st_size
        process = start()
        while asked.stat().st_size < before + 2 and process.poll() is None:
            pass
        if process.poll() is None:
            time.sleep(0.1)  # what was asked is written within milliseconds
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    last = start()
    said, _ = last.communicate(timeout=120)
    assert last.returncode == 0, said
    assert asked.stat().st_size <= 9, said


def test_calls_on_their_way_are_known_to_whoever_goes_on(tmp_path: Path) -> None:
    with Journal(tmp_path / "runs") as journal:
        run = journal.open("key", seed=0, about={})
        lost, done = uuid4(), uuid4()
        for call in (lost, done):
            run.asked(call, Usage(1, 10, 20, 0.5))
        run.flush()
        run.answered(done)
        run.release()
        again = journal.open("key", seed=0, about={})
        left = again.restore()
        assert left is not None
        assert dict(left.unanswered) == {lost: Usage(1, 10, 20, 0.5)}
        account = Budget(calls=3).open()
        account.lose(left.unanswered)
        assert account.spent == Usage(1, 10, 20, 0.5)
        again.release()


@dataclass
class Who:
    name: str


def test_a_context_has_to_be_given_again(tmp_path: Path) -> None:
    broken: list[int] = []

    def greet(state: MessagesState, runtime: Runtime[Who]) -> dict[str, Any]:
        return {"messages": [AIMessage(f"hello {runtime.context.name}")]}

    def failing(transcripts: Any) -> list[float]:
        if not broken:
            broken.append(1)
            raise RuntimeError("not now")
        return [0.5] * len(transcripts)

    graph = StateGraph(MessagesState, context_schema=Who)
    graph.add_node("greet", greet)
    graph.add_edge(START, "greet")
    better = amc.wrap(
        graph.compile(checkpointer=InMemorySaver()),
        particles=2,
        value=failing,
        journal=tmp_path / "runs",
        boundary="greet",
        resample=amc.every(1),
    )
    config = {"configurable": {"thread_id": "1", "tenant": "T"}}
    with pytest.raises(RuntimeError, match="not now"):
        better.invoke(ASK, config, context=Who("ann"))
    with Journal(tmp_path / "runs") as journal:
        [run] = journal.runs()
    with pytest.raises(amc.ConfigurationError, match=r"config=\{'configurable': \{'tenant': …\}\}, context=…"):
        amc.resume(better, run.id)
    result = amc.resume(better, run.id, config={"configurable": {"tenant": "T"}}, context=Who("ann"))
    assert result["messages"][-1].text == "hello ann"
