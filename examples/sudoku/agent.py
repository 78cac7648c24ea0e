"""A Sudoku agent: a plain LangGraph app, written without any thought of AMC or of evolution.

Each turn the model sees one message, made from the world alone, and fills one cell. The world's state lives in the
graph's state, as a snapshot, so LangGraph's checkpoints hold it and a particle can branch. The messages in the state
are the record of the episode: the first prompt, then a reply and the world's feedback for every turn. The model is
whatever LiteLLM reaches: set SUDOKU_MODEL (say ``openai/gpt-5.1``), or leave it out for the small policy beside
this file.

    amc compare examples/sudoku/agent.py:graph --tasks examples/sudoku/agent.py:tasks_15 \\
        --reward examples/sudoku/agent.py:solved --split test --value value/
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_litellm import ChatLiteLLM
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from sudoku.board import Puzzle
from sudoku.env import SudokuEnv
from sudoku.puzzles import LOOKAHEAD_MASK, MASKS, Kind, Split, make_puzzle

from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.tasks import FinishedRun, Task

POLICY = Path(__file__).resolve().parent / "policy"
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class State(TypedDict, total=False):
    puzzle: dict[str, Any]
    world: dict[str, Any]
    messages: Annotated[list[AnyMessage], add_messages]


def build(model_name: str | None = None, temperature: float = 1.0) -> Any:
    """The agent around a model of LiteLLM's."""
    load_litellm()  # registers amc-local/, the provider of local models
    model = ChatLiteLLM(model=model_name or f"amc-local/{POLICY}", temperature=temperature, max_tokens=32)

    def begin(state: State) -> State:
        env = SudokuEnv()
        prompt = env.reset(Puzzle.from_dict(state["puzzle"]))
        return {"world": env.snapshot(), "messages": [HumanMessage(prompt)]}

    async def think(state: State) -> State:
        return {"messages": [await model.ainvoke([HumanMessage(_world(state).prompt)])]}

    def act(state: State) -> State:
        env = _world(state)
        feedback, _, _, _ = env.step(str(state["messages"][-1].content))
        return {"world": env.snapshot(), "messages": [HumanMessage(feedback)]}

    graph = StateGraph(State)
    graph.add_node("begin", begin)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "begin")
    graph.add_edge("begin", "think")
    graph.add_edge("think", "act")
    graph.add_conditional_edges("act", lambda state: END if state["world"]["done"] else "think", ["think", END])
    return graph.compile()


def _world(state: State) -> SudokuEnv:
    env = SudokuEnv()
    env.reset(Puzzle.from_dict(state["puzzle"]))
    env.restore(state["world"])
    return env


def solved(run: FinishedRun) -> float:
    """1 for a full board that breaks no rule, else 0."""
    return float(_world(run.output).success)


def tasks(
    train: int = 400,
    validation: int = 100,
    test: int = 200,
    masks: Sequence[int] = MASKS,
    kind: Kind = "singles",
) -> Iterator[Task]:
    """Puzzles of splits that share no solution with each other, nor with what the policy was trained on.

    The mask counts take turns: with the default ones every third puzzle has 15 empty cells.
    """
    for split, n in zip(SPLITS, (train, validation, test), strict=True):
        for i in range(n):
            mask_count = masks[i % len(masks)]
            puzzle, solution = make_puzzle(split, i, mask_count, kind)
            about = {"mask_count": mask_count, "kind": kind}
            yield Task(puzzle.puzzle_id, {"puzzle": puzzle.to_dict()}, {"solution": solution}, about, split)


tasks_5, tasks_10, tasks_15 = (partial(tasks, masks=(mask,)) for mask in MASKS)
tasks_lookahead = partial(tasks, train=200, validation=50, test=100, masks=(LOOKAHEAD_MASK,), kind="lookahead")

graph = build(os.environ.get("SUDOKU_MODEL"))
