"""A small app on disk for the commands: a walk that can slip, with a value function that sees slips."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

APP = """
import os
import random
import time
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
import langgraph_amc as amc


class Coin(BaseChatModel):
    @property
    def _llm_type(self):
        return "coin"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        rng = random.Random(f"{amc.current_particle.get().seed}{len(messages)}{messages[0].content}")
        time.sleep(float(os.environ.get("NAP", "0")))
        said = AIMessage("good" if rng.random() < 0.7 else "bad")
        said.usage_metadata = {"input_tokens": len(messages), "output_tokens": 1, "total_tokens": len(messages) + 1}
        return ChatResult(generations=[ChatGeneration(message=said)])


coin = Coin()
g = StateGraph(MessagesState)
g.add_node("think", lambda s: {"messages": [coin.invoke(s["messages"])]})
g.add_node("look", lambda s: {"messages": [HumanMessage("ok")]})
g.add_edge(START, "think")
g.add_edge("think", "look")
g.add_conditional_edges("look", lambda s: END if len(s["messages"]) > 8 else "think", ["think", END])
graph = g.compile(name="walker")


def fine(outputs):
    return all(m.content != "bad" for m in outputs["messages"])


def steady(transcripts):
    return [0.9 ** "".join(t).count("bad") for t in transcripts]
"""
WALK = ("agent.py:graph", "--value", "agent.py:steady", "-n", "6", "--resample", "every(2)")


def made(where: Path) -> Path:
    """The app and its tasks in a folder."""
    (where / "agent.py").write_text(APP)
    lines = [{"id": f"t{i}", "input": {"messages": [["user", f"walk {i}"]]}} for i in range(6)]
    (where / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return where


def amc(folder: Path, *words: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "langgraph_amc", *words],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done
