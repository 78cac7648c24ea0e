"""A ReAct agent for any world of text: a plain LangGraph app around a chat model; the world's history is in its state.

The loop of Yao et al. 2023 (ReAct) in text form: one thought and one action a turn, the observation as the answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from langgraph_amc.checks import check_whole
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks.pool import History, WorldPool


class WorldState(TypedDict, total=False):
    """``task`` is given; the rest is what became of it. ``total``: sum of the steps' rewards."""

    task: Any
    world: History
    messages: Annotated[list[AnyMessage], add_messages]
    total: float
    steps: int
    done: bool
    info: dict[str, Any]


def world_agent(
    model: BaseChatModel,
    pool: WorldPool | Callable[[], WorldPool],
    *,
    prompt: str,
    limit: int = 30,
    read: Callable[[str], Any] | None = None,
) -> Any:
    """The compiled agent; invoke it with ``{"task": …}``, which is given to the world's reset.

    It ends when the world is done, or after ``limit`` actions. Needs no checkpointer, and takes any.

    Parameters
    ----------
    pool: of the worlds, or a function that makes it when it is first needed.
    prompt: the system message; ``{limit}`` in it becomes the number.
    read: the action in a reply; `read_action` by default.
    """
    check_whole("limit", limit, 1)
    if not isinstance(pool, WorldPool) and not callable(pool):
        raise ConfigurationError(f"pool is a WorldPool, or a function that makes one, got {pool!r:.200}")
    read = read or read_action
    made: list[WorldPool] = [pool] if isinstance(pool, WorldPool) else []
    making = threading.Lock()

    def worlds() -> WorldPool:
        with making:  # particles start together
            if not made:
                made.append(pool())  # type: ignore[operator]
            return made[0]

    def begin(state: WorldState) -> WorldState:
        history, observation = worlds().reset(state["task"])
        messages: list[AnyMessage] = [
            SystemMessage(prompt.replace("{limit}", str(limit))),
            HumanMessage(as_text(observation)),
        ]
        return {"world": history, "messages": messages, "total": 0.0, "steps": 0, "done": False, "info": {}}

    def think(state: WorldState) -> WorldState:
        return {"messages": [model.invoke(state["messages"])]}

    async def athink(state: WorldState) -> WorldState:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def act(state: WorldState) -> WorldState:
        history, answer = worlds().step(state["world"], read(_encodable(state["messages"][-1].text)))
        observation, reward, done, info = answer
        return {
            "world": history,
            "messages": [HumanMessage(as_text(observation))],
            "total": state["total"] + float(reward),
            "steps": state["steps"] + 1,
            "done": bool(done),
            "info": info,
        }

    def after(state: WorldState) -> str:
        return END if state["done"] or state["steps"] >= limit else "think"

    builder = StateGraph(WorldState)
    builder.add_node("begin", begin)
    builder.add_node("think", RunnableLambda(think, athink))
    builder.add_node("act", act)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "think")
    builder.add_edge("think", "act")
    builder.add_conditional_edges("act", after, ["think", END])
    return builder.compile()


def read_action(text: str) -> str:
    """The command in a reply: the line after its last ``Action:``, or its last line where it has none."""
    _, marked, after = text.rpartition("Action:")
    lines = [line.strip(" `") for line in (after if marked else text).strip().splitlines()]
    return (lines[0 if marked else -1] if lines else "").removesuffix(".")


def _encodable(text: str) -> str:
    """With ``?`` for each lone half of a surrogate pair: JSON can bring one, and no process or server takes it."""
    return text.encode("utf-8", "replace").decode()


def as_text(observation: Any) -> str:
    """An observation as the agent reads it: itself if it is a text, else its JSON."""
    return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
