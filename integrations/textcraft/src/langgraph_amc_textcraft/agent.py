"""A ReAct agent for TextCraft: a plain LangGraph app around any chat model, with the world in its state."""

from __future__ import annotations

import os
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import FinishedRun, read_action
from langgraph_amc_textcraft.world import TextCraft

PROMPT = """\
You craft items in a text world. You are given crafting commands and a goal. Reply to every observation with
one thought and one action, in this form:

Thought: what you need next, and why
Action: one command

The commands are:
get N item - fetch N of an item that no crafting command makes
craft N item using N item, N item - craft, with a crafting command's exact numbers
inventory - see what you carry

Items such as planks or wool in a command stand for any one kind, for example oak planks. Craft what is missing
first. You have {limit} actions in all, so fetch all that you need of an item at once."""


class State(TypedDict, total=False):
    task: dict[str, Any]
    world: dict[str, Any]
    messages: Annotated[list[AnyMessage], add_messages]


def build(model: BaseChatModel) -> Any:
    """The compiled agent; invoke it with ``{"task": {"goal": "oak_boat"}}``."""

    def begin(state: State) -> State:
        world = TextCraft()
        text = world.reset(state["task"])
        prompt = SystemMessage(PROMPT.format(limit=world.task.step_limit))
        return {"world": world.snapshot(), "messages": [prompt, HumanMessage(text)]}

    def think(state: State) -> State:
        return {"messages": [model.invoke(state["messages"])]}

    async def athink(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def act(state: State) -> State:
        world = _world(state)
        observation, _, _, _ = world.step(read_action(state["messages"][-1].text))
        return {"world": world.snapshot(), "messages": [HumanMessage(observation)]}

    builder = StateGraph(State)
    builder.add_node("begin", begin)
    builder.add_node("think", RunnableLambda(think, athink))
    builder.add_node("act", act)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "think")
    builder.add_edge("think", "act")
    builder.add_conditional_edges("act", lambda state: END if _world(state).done else "think", ["think", END])
    return builder.compile()


def graph() -> Any:
    """The agent around the model that TEXTCRAFT_MODEL names, any of LiteLLM's."""
    from langgraph_amc import chat_model

    name = os.environ.get("TEXTCRAFT_MODEL")
    if not name:
        raise ConfigurationError("set TEXTCRAFT_MODEL to a model of LiteLLM's, for example openai/gpt-5.1")
    return build(chat_model(name, temperature=1.0, max_tokens=256))


def solved(run: FinishedRun) -> float:
    """1 if the goal was crafted, else 0: the original's reward."""
    return float(_world(run.output).solved)


def _world(state: State) -> TextCraft:
    world = TextCraft()
    world.restore(state["world"])
    return world
