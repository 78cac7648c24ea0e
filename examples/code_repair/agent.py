"""An agent that repairs code: it gets a repository and an issue, reads, edits, runs the tests, and submits.

The checkout is a world outside the graph's state, so it is kept in an `amc.Session`: in a plain run that is one object,
under AMC each particle has its own, branched by hard links. Set AGENT_MODEL to a LiteLLM model with tool calls, or
leave it out for a scripted stand-in.
"""

from typing import Annotated, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from repair_stand_in import decide
from worktrees import Worktree
from worktrees import run_tests as run_in_sandbox

import langgraph_amc as amc
from langgraph_amc.demo.stand_in import agent_model
from langgraph_amc.trajectories.transcript import printable

MAX_TURNS = 18
PROMPT = """Repair the repository. Read what the issue is about, edit, and run the tests; they show what is still wrong.
An edit that does not help should be undone. Submit when all tests pass. One call at a time."""

worktree = amc.Session(Worktree)


class State(TypedDict, total=False):
    """``files``: the repository as it is checked out; ``patch``: the files that were changed, at the end."""

    files: dict[str, str]
    patch: dict[str, str]
    messages: Annotated[list[AnyMessage], add_messages]


@tool
@amc.effect("stateful")
def read(path: str) -> str:
    """The text of a file."""
    files = worktree.get().files()
    return files[path] if path in files else f"there is no {path}; there are: {', '.join(files)}"


@tool
@amc.effect("stateful")
def edit(path: str, old: str, new: str) -> str:
    """Replace a piece of a file, which must be in it exactly once, by another."""
    text = worktree.get().files().get(path)  # by the one path each file has: another way to a test is no way round
    if text is None or path.startswith("tests/"):
        return f"not edited: {path} is no source of the repository"
    if not old or text.count(old) != 1:
        return f"not edited: the piece is {text.count(old) if old else 0} times in {path}"
    if printable(new) != new:
        return "not edited: there are characters in it that no file can hold"
    worktree.get().write(path, text.replace(old, new))
    return f"edited {path}"


@tool
@amc.effect("stateful")
def run_tests() -> str:
    """Run all tests."""
    outcomes = run_in_sandbox(worktree.get().files())
    failed = [f"{name}: {wrong}" for name, wrong in outcomes.items() if wrong]
    return "\n".join([f"{len(outcomes) - len(failed)} of {len(outcomes)} tests pass", *failed])


@tool
def submit() -> str:
    """Hand the repository in as it is."""
    return "submitted"


TOOLS = [read, edit, run_tests, submit]


def build(model: BaseChatModel) -> CompiledStateGraph:
    """The agent around a chat model that calls tools."""
    bound = model.bind_tools(TOOLS)

    def checkout(state: State) -> State:
        worktree.get().checkout(state["files"])
        return {}

    async def think(state: State) -> State:
        return {"messages": [await bound.ainvoke([SystemMessage(PROMPT), *state["messages"]])]}

    def hand_in(state: State) -> State:
        files = worktree.get().files()
        return {"patch": {path: text for path, text in files.items() if state["files"].get(path) != text}}

    def after_think(state: State) -> str:
        return "act" if state["messages"][-1].tool_calls else "hand_in"

    def after_act(state: State) -> str:
        turns = sum(m.type == "ai" for m in state["messages"])
        return "hand_in" if state["messages"][-1].name == "submit" or turns >= MAX_TURNS else "think"

    graph = StateGraph(State)
    graph.add_node("checkout", checkout)
    graph.add_node("think", think)
    graph.add_node("act", ToolNode(TOOLS))
    graph.add_node("hand_in", hand_in)
    graph.add_edge(START, "checkout")
    graph.add_edge("checkout", "think")
    graph.add_conditional_edges("think", after_think, ["act", "hand_in"])
    graph.add_conditional_edges("act", after_act, ["think", "hand_in"])
    graph.add_edge("hand_in", END)
    return graph.compile()


graph = build(agent_model(decide))
