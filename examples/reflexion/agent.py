"""Reflexion (Shinn et al., 2023): after a failed trial the agent writes down in words what to do otherwise.

A trial is one program, which an evaluator tries on examples. What the agent has written after earlier trials is all
that it sees of them. Nothing in here knows of AMC. The model is whatever LiteLLM reaches: set AGENT_MODEL, or leave
it out for a scripted stand-in.
"""

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from pipelines import OPERATIONS, failures, find_program
from reflexion_stand_in import decide

from langgraph_amc.demo.stand_in import agent_model

MAX_TRIALS = 4
OPERATION_LIST = "\n".join(f"{name}: {does}" for name, (does, _) in OPERATIONS.items())
ACTOR = f"""Find a program that turns each input into its output. A program is up to three operations, applied from left
to right. Answer with one line, like PROGRAM: reverse | upper. Operations:
{OPERATION_LIST}"""
REFLECTOR = """Your program failed. In one or two sentences, write down for your next trial what it must get right. You
will see nothing of this trial but what you write. Begin with REFLECTION:"""


class State(TypedDict, total=False):
    """``checks``: the evaluator's examples, inputs with outputs, of which the task's message shows some."""

    checks: list[list[str]]
    messages: Annotated[list[AnyMessage], add_messages]
    reflections: Annotated[list[str], operator.add]


def build(model: BaseChatModel) -> CompiledStateGraph:
    """The agent around a chat model."""

    async def act(state: State) -> dict[str, Any]:
        memory = "\n".join(["What you learned in earlier trials:", *state.get("reflections", [])])
        task = [SystemMessage(ACTOR), state["messages"][0]]
        return {"messages": [await model.ainvoke([*task, HumanMessage(memory)] if state.get("reflections") else task)]}

    def evaluate(state: State) -> dict[str, Any]:
        program, checks = find_program(state["messages"][-1].text), state["checks"]
        if program is None:
            return {"messages": [HumanMessage(f"passed 0 of {len(checks)}; this is no program")]}
        wrong = failures(program, checks)
        told = f"passed {len(checks) - len(wrong)} of {len(checks)}"
        if wrong:
            given, expected, got = wrong[0]
            told += f"; {given!r} must become {expected!r}, and became {got!r}"
        return {"messages": [HumanMessage(told)]}

    async def reflect(state: State) -> dict[str, Any]:
        said = [SystemMessage(REFLECTOR), state["messages"][0], *state["messages"][-2:]]
        reflection = await model.ainvoke(said)
        return {"messages": [reflection], "reflections": [reflection.text]}

    def after(state: State) -> str:
        passed = state["messages"][-1].text == f"passed {len(state['checks'])} of {len(state['checks'])}"
        return END if passed or len(state.get("reflections", [])) >= MAX_TRIALS - 1 else "reflect"

    graph = StateGraph(State)
    graph.add_node("act", act)
    graph.add_node("evaluate", evaluate)
    graph.add_node("reflect", reflect)
    graph.add_edge(START, "act")
    graph.add_edge("act", "evaluate")
    graph.add_conditional_edges("evaluate", after, ["reflect", END])
    graph.add_edge("reflect", "act")
    return graph.compile()


graph = build(agent_model(decide))
