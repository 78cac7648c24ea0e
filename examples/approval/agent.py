"""A purchasing agent that asks a person before it spends money: a human in the loop.

It compares offers, checks suppliers, and proposes an order. The run then pauses with `interrupt`; the answer, given by
`Command(resume={"approved": True})` or `{"approved": False, "reason": "…"}`, lets it order or look further. Nothing in
here knows of AMC. Set AGENT_MODEL to a LiteLLM model with tool calls, or leave it out for a scripted stand-in.
"""

from typing import Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from market import certified, offers_for
from purchasing_stand_in import decide

from langgraph_amc.demo.stand_in import agent_model

PROMPT = """You buy for a company. Find the cheapest order that meets every requirement: compare the totals of the
offers, delivery fee included, and check suppliers before you choose one. Then call place_order once; a person will
approve or refuse it. After a refusal, propose the next best. One call at a time."""

orders: list[str] = []
"""What has been ordered: it stands for the outside world, where nothing can be taken back."""


@tool
def offers(article: str) -> str:
    """All offers of an article: supplier, price per piece, delivery fee, days until delivery."""
    return "\n".join(map(str, offers_for(article))) or f"nobody offers {article}"


@tool
def supplier(name: str) -> str:
    """What is known of a supplier."""
    return f"{name} is {'certified' if certified(name) else 'not certified'}"


@tool
def place_order(supplier: str, article: str, quantity: int, total: int) -> str:
    """Order at a supplier, for this total in euros."""
    orders.append(f"{quantity} x {article} from {supplier} for {total} EUR")
    return f"ordered: {orders[-1]}"


def build(model: BaseChatModel, checkpointer: BaseCheckpointSaver | None = None) -> CompiledStateGraph:
    """The agent around a chat model that calls tools; without a checkpointer nobody can be asked."""
    bound = model.bind_tools([offers, supplier, place_order])

    async def think(state: MessagesState) -> MessagesState:
        return {"messages": [await bound.ainvoke([SystemMessage(PROMPT), *state["messages"]])]}

    def after_think(state: MessagesState) -> str:
        called = [call["name"] for call in state["messages"][-1].tool_calls]
        return "approve" if "place_order" in called else "look" if called else END

    def approve(state: MessagesState) -> Command[Literal["order", "think"]]:
        """Nothing is bought before this question is answered."""
        wanted, *others = state["messages"][-1].tool_calls
        answer = interrupt({"order": wanted["args"]}) if not others else {"reason": "one call at a time"}
        said = answer if isinstance(answer, dict) else {"approved": answer}
        if said.get("approved") is True:  # nothing else is read as a yes
            return Command(goto="order")
        refused = f"refused: {said.get('reason', 'no reason given')}"
        calls = state["messages"][-1].tool_calls
        return Command(goto="think", update={"messages": [ToolMessage(refused, tool_call_id=c["id"]) for c in calls]})

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("look", ToolNode([offers, supplier]))
    graph.add_node("approve", approve)
    graph.add_node("order", ToolNode([place_order]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", after_think, ["look", "approve", END])
    graph.add_edge("look", "think")
    graph.add_edge("order", END)
    return graph.compile(checkpointer=checkpointer)


graph = build(agent_model(decide), InMemorySaver())
