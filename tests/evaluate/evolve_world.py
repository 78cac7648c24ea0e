"""A folder with a tiny random model and an agent of two turns around it, for tests of evolution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import langgraph_amc as amc
from langgraph_amc.evaluate.evolving.run import Evolution, evolve
from langgraph_amc.tasks import TaskSet
from tests.support.tiny_models import save_tiny

AGENT = '''
"""Says something, hears an answer, says something more. The reward is the share of even characters."""
import asyncio
import os
from pathlib import Path

from langchain_core.messages import HumanMessage
from langchain_litellm import ChatLiteLLM
from langgraph.graph import END, START, MessagesState, StateGraph

from langgraph_amc.context import current_member

HERE = Path(__file__).parent
model = ChatLiteLLM(model=f"amc-local/{HERE / 'model'}", temperature=1.0, max_tokens=6)


async def speak(state):
    return {"messages": [await model.ainvoke(state["messages"])]}


async def hear(state):
    if "slow" in state["messages"][0].content:
        await asyncio.sleep(2.5)
    if "broken" in state["messages"][0].content:
        raise ValueError("the tool broke")
    await asyncio.sleep(float(os.environ.get("NAP", "0")))
    return {"messages": [HumanMessage("go on")]}


async def leave(state):
    if os.environ.get("ENDS"):
        with Path(os.environ["ENDS"]).open("a") as file:
            file.write(state["messages"][0].content + "\\n")
    return {} if current_member.get() is None else {"messages": [HumanMessage("said by a member")]}


def build(speak=speak):
    g = StateGraph(MessagesState)
    for node in (speak, hear, leave):
        g.add_node(node.__name__, node)
    g.add_node("again", speak)
    g.add_edge(START, speak.__name__)
    g.add_edge(speak.__name__, "hear")
    g.add_edge("hear", "again")
    g.add_edge("again", "leave")
    g.add_edge("leave", END)
    return g.compile()


async def elsewhere(state):
    return {"messages": [HumanMessage("I ask nobody")]}


graph = build()
deaf = build(elsewhere)


def even(run):
    if "unjudged" in run.task.id:
        return None
    text = "".join(m.content for m in run.messages if m.type == "ai")
    return sum(ord(c) % 2 == 0 for c in text) / max(1, len(text))


def odd(run):
    return 1 - even(run)


def level(run):
    return 0.5


def huge(run):
    return 1e308


def lost(run):
    """As where every member has lost what the base can do."""
    return float(run.messages[-1].content != "said by a member")
'''


def made(folder: Path) -> Path:
    """Write the model, the agent and the tasks."""
    save_tiny(folder / "model", num_hidden_layers=2)
    (folder / "agent.py").write_text(AGENT)
    tasks().to_jsonl(folder / "tasks.jsonl")
    return folder


def tasks(train: int = 6, validation: int = 3, held_out: int = 4) -> TaskSet:
    """Tasks of three splits."""
    parts = {"train": train, "validation": validation, "held-out": held_out}
    return TaskSet.from_iterable(
        {"id": f"{split}-{i}", "input": f"{split} {i}", "split": split} for split, n in parts.items() for i in range(n)
    )


STRATEGY = amc.Strategy(population=4, sigma=0.02, seed=5)


def run(world: Path, out: Path, **changes: Any) -> Evolution:
    """Evolve in that folder, by a course that takes a second or two."""
    given = {
        "app": f"{world}/agent.py:graph",
        "tasks": tasks().split("train"),
        "reward": f"{world}/agent.py:even",
        "model": world / "model",
        "strategy": STRATEGY,
        "generations": 2,
        "batch": 3,
        "measured": 2,
    }
    return evolve(out=out, **{**given, **changes})
