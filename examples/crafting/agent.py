"""A ReAct agent for the crafting world: a plain LangGraph app, written without any thought of AMC.

The world's state lives in the graph's state, as a snapshot, so LangGraph's checkpoints hold it too. The model
is whatever LiteLLM reaches: set CRAFTING_MODEL (say ``openai/gpt-5.1``), or leave it out for the small model
that comes with the package.

    amc compare examples/crafting/agent.py:graph --tasks examples/crafting/agent.py:tasks \\
        --reward examples/crafting/agent.py:solved --split test --value value/
"""

import os
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_litellm import ChatLiteLLM
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from langgraph_amc.demo import CraftingEnv, CraftingTask, make_tasks, policy_model
from langgraph_amc.tasks import FinishedRun, Task


class State(TypedDict, total=False):
    task: dict[str, Any]
    world: dict[str, Any]
    messages: Annotated[list[AnyMessage], add_messages]


def build(model_name: str | None = None) -> Any:
    """The agent around a model of LiteLLM's."""
    model = ChatLiteLLM(model=model_name or policy_model(), temperature=1.0, max_tokens=40)

    def begin(state: State) -> State:
        env = CraftingEnv()
        prompt = env.reset(CraftingTask.from_dict(state["task"]))
        return {"world": env.snapshot(), "messages": [HumanMessage(prompt)]}

    async def think(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def act(state: State) -> State:
        env = _world(state)
        observation, _, _, _ = env.step(str(state["messages"][-1].content))
        return {"world": env.snapshot(), "messages": [HumanMessage(observation)]}

    graph = StateGraph(State)
    graph.add_node("begin", begin)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "think")
    graph.add_edge("think", "act")
    graph.add_conditional_edges("act", lambda state: END if state["world"]["done"] else "think", ["think", END])
    return graph.compile()


def _world(state: State) -> CraftingEnv:
    env = CraftingEnv()
    env.reset(CraftingTask.from_dict(state["task"]))
    env.restore(state["world"])
    return env


def solved(run: FinishedRun) -> float:
    """1 if the goal was made, else 0."""
    return float(_world(run.output).success)


def tasks(train: int = 400, tune: int = 100, test: int = 100, stock: str = "finite") -> Iterator[Task]:
    """Tasks of disjoint splits, none of which the model was trained on."""
    for split, n in (("train", train), ("tune", tune), ("test", test)):
        for task in make_tasks(split, n, stock=stock):
            yield Task(task.task_id, {"task": task.to_dict()}, split=split)


graph = build(os.environ.get("CRAFTING_MODEL"))
