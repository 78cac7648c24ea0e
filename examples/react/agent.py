"""A ReAct agent, twice: with native tool calls, and with thoughts and actions as text (Yao et al., 2023).

A mail-order desk: what does an order cost, delivered abroad, in the customer's currency? Four tools only read. Nothing
in here knows of AMC. The model is whatever LiteLLM reaches: set AGENT_MODEL, or leave it out for a scripted stand-in.
"""

import ast
import operator
import re

from desk import CURRENCIES, PRODUCTS, SHIPPING
from desk_stand_in import decide, decide_as_text
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from langgraph_amc.demo.stand_in import agent_model

MAX_TURNS = 16
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


@tool
def product(name: str) -> str:
    """Price and weight of one product."""
    if name not in PRODUCTS:
        return f"There is no {name}; there are: {', '.join(PRODUCTS)}"
    price, weight = PRODUCTS[name]
    return f"One {name} costs {price} EUR and weighs {weight} kg"


@tool
def shipping(country: str) -> str:
    """What delivery to a country costs."""
    if country not in SHIPPING:
        return f"We do not deliver to {country}, only to: {', '.join(SHIPPING)}"
    per_kg, parcel = SHIPPING[country]
    return f"Delivery to {country} costs {per_kg} EUR per kg and {parcel} EUR for the parcel"


@tool
def exchange(currency: str) -> str:
    """What one euro is in another currency."""
    rate = CURRENCIES.get(currency)
    return f"No rate for {currency}" if rate is None else f"1 EUR is {rate} {currency}"


@tool
def calculate(expression: str) -> str:
    """The value of an expression of whole numbers with +, - and *."""
    try:
        return str(_value(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        return f"Cannot calculate {expression}: {error}"


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        result: int = _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        return result
    raise ValueError("only whole numbers, +, - and *")


TOOLS = {t.name: t for t in (product, shipping, exchange, calculate)}

PROMPT = "You work at a mail-order desk. Look everything up and calculate with the tools, one call at a time. "
NATIVE_PROMPT = PROMPT + "Answer with the number alone."
TEXT_PROMPT = (
    PROMPT
    + (
        "Each turn is a thought and one action:\nThought: what to do next\nAction: tool[argument]\n"
        "or, at the end,\nThought: why\nAnswer: the number alone\nTools:\n"
    )
    + "\n".join(f"{t.name}[{next(iter(t.args))}]: {t.description}" for t in TOOLS.values())
)


def build(model: BaseChatModel) -> CompiledStateGraph:
    """The agent with native tool calls: LangChain's own."""
    return create_agent(model, list(TOOLS.values()), system_prompt=NATIVE_PROMPT)


def build_text(model: BaseChatModel) -> CompiledStateGraph:
    """The agent that writes its actions as text, for models without tool calls."""

    async def think(state: MessagesState) -> MessagesState:
        return {"messages": [await model.ainvoke([SystemMessage(TEXT_PROMPT), *state["messages"]])]}

    def act(state: MessagesState) -> MessagesState:
        action = re.search(r"Action: *(\w+)\[(.*?)\]", state["messages"][-1].text)
        if action is None or action[1] not in TOOLS:
            return {"messages": [HumanMessage(f"Observation: write Action: tool[argument], of {', '.join(TOOLS)}")]}
        used = TOOLS[action[1]]
        return {"messages": [HumanMessage(f"Observation: {used.invoke({next(iter(used.args)): action[2]})}")]}

    def after(state: MessagesState) -> str:
        answered = "Answer:" in state["messages"][-1].text
        return END if answered or len(state["messages"]) > 2 * MAX_TURNS else "act"

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", after, ["act", END])
    graph.add_edge("act", "think")
    return graph.compile()


graph = build(agent_model(decide))
text_graph = build_text(agent_model(decide_as_text, stop=["Observation:"]))
