"""A supervisor with two workers, each a subgraph: a researcher who looks figures up, an analyst who calculates.

All see one conversation. The supervisor hands out briefs until it can answer. Nothing in here knows of AMC. Set
AGENT_MODEL to a LiteLLM model with tool calls, or leave it out for a scripted stand-in.
"""

import re
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import SystemMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from office_stand_in import decide
from sales import sold

from langgraph_amc.demo.stand_in import agent_model

MAX_BRIEFS = 6
SUPERVISOR = """You are the supervisor. You have a researcher, who looks up what a region sold in a year, and an
analyst, who calculates. Write one line: NEXT researcher: a brief, or NEXT analyst: a brief, or, when the reports
suffice, ANSWER: the region and the number."""
RESEARCHER = """You are the researcher. Look up what the last brief asks for, one call at a time, then report every
figure in one line each, as: North 2021: 412"""
ANALYST = """You are the analyst. Calculate what the last brief asks for from the reported figures, one call at a time,
then report every result in one line each, as: North: 57"""


@tool
def figure(region: str, year: int) -> str:
    """How many units a region sold in a year."""
    return f"{region} sold {sold(region, year)} units in {year}"


@tool
def subtract(minuend: int, subtrahend: int) -> str:
    """minuend − subtrahend."""
    return f"{minuend} - {subtrahend} = {minuend - subtrahend}"


def worker(model: BaseChatModel, prompt: str, tools: Sequence[BaseTool]) -> CompiledStateGraph:
    """A worker: it uses its tools until it reports."""
    bound = model.bind_tools(tools)

    async def work(state: MessagesState) -> MessagesState:
        return {"messages": [await bound.ainvoke([SystemMessage(prompt), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("work", work)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda s: "tools" if s["messages"][-1].tool_calls else END, ["tools", END])
    graph.add_edge("tools", "work")
    return graph.compile()


def build(model: BaseChatModel) -> CompiledStateGraph:
    """The office around one chat model."""

    async def supervise(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([SystemMessage(SUPERVISOR), *state["messages"]])]}

    def after(state: MessagesState) -> str:
        briefs = sum(m.type == "ai" and m.text.startswith("NEXT") for m in state["messages"])
        named = re.match(r"NEXT (researcher|analyst):", state["messages"][-1].text)
        return named[1] if named and briefs <= MAX_BRIEFS else END

    graph = StateGraph(MessagesState)
    graph.add_node("supervisor", supervise)
    graph.add_node("researcher", worker(model, RESEARCHER, [figure]))
    graph.add_node("analyst", worker(model, ANALYST, [subtract]))
    graph.add_edge(START, "supervisor")
    graph.add_conditional_edges("supervisor", after, ["researcher", "analyst", END])
    graph.add_edge("researcher", "supervisor")
    graph.add_edge("analyst", "supervisor")
    return graph.compile()


graph = build(agent_model(decide))
