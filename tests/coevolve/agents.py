"""An agent behind an HTTP API whose success depends on the rules in its prompt, and a server that answers so."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from langgraph.graph import END, START, MessagesState, StateGraph

from langgraph_amc.policy.chat import chat_model
from langgraph_amc.tasks import TaskSet
from tests.coevolve.worlds import EFFECT
from tests.support.openai_server import OpenAIServer


def replying(seed: int = 0) -> Any:
    """A reply hook: right with a chance that the rules in the prompt raise and lower.

    What the n-th to ask something is told depends on what is asked, not on who else asks in between.
    """
    asked: Counter[str] = Counter()

    def reply(body: dict[str, Any], number: int) -> str:
        said = "\n".join(str(m["content"]) for m in body["messages"])
        asked[said] += 1
        rng = random.Random(f"{seed}:{asked[said]}:{said}")
        chance = 0.4 + sum(effect for rule, effect in EFFECT.items() if f"## {rule}\n" in said)
        return "right" if rng.random() < chance else "wrong"

    return reply


def agent(server: OpenAIServer) -> Any:
    """One call, one answer."""
    model = chat_model("openai/test-model", api_base=server.base_url, api_key="test")

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile()


def right(run: Any) -> float:
    """1 for the right answer."""
    return float(run.messages[-1].content == "right")


def tasks(train: int = 12, held_out: int = 8) -> TaskSet:
    """Questions of two splits."""
    parts = {"train": train, "held-out": held_out}
    return TaskSet.from_iterable(
        {"id": f"{split}-{i}", "input": f"question {split} {i}", "split": split}
        for split, n in parts.items()
        for i in range(n)
    )


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(p.name for p in folder.iterdir())


def answers(server: OpenAIServer) -> int:
    """How many a server has given: equal questions asked at once are one request with several."""
    return server.billed[1] // server.completion_tokens
