"""An assistant that pages its memory as MemGPT does (Packer et al., 2023), over LangGraph's Store.

The model sees a *main context* of limited size: a block of core memory and the newest messages. What is pushed out
goes to the *recall* store; what the model wants to keep it writes into the *archival* store, and finds again with
functions. A warning comes before the context is full. All memory is in the Store, under the user's name, so that it
outlasts a conversation. Nothing in here knows of AMC. Set AGENT_MODEL to a LiteLLM model with tool calls, or leave it
out for a scripted stand-in.
"""

import re
from itertools import takewhile
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from memory_stand_in import decide

from langgraph_amc.demo.stand_in import agent_model

CONTEXT = 160
"""Tokens of the main context, the system prompt not counted: small, so that a short episode pages."""
WARN = 0.7
"""Share of the context that is used when the warning comes."""
CORE_CHARACTERS = 300
PAGE = 3
PRESSURE = "[memory pressure]"
PROMPT = """You are an assistant with a memory. You see core memory and the newest messages only; older ones are in
recall memory, and what you wrote down is in archival memory. Speak to the user only through the function reply. Write
down what you may need later with archival_insert, what you always need with core_append or core_replace. Use
archival_search, then recall_search, for what you do not see. After a memory pressure warning, save what matters now.

Core memory:
"""

User = Annotated[str, InjectedState("user")]
Store = Annotated[BaseStore, InjectedStore()]


class State(TypedDict, total=False):
    """``incoming``: what the user says, oldest first, each with the number of its session."""

    user: str
    incoming: list[dict[str, Any]]
    session: int
    messages: Annotated[list[AnyMessage], add_messages]
    evicted: int
    """How many of the messages have left the main context."""
    warned: bool


@tool
async def core_append(text: str, user: User, store: Store) -> str:
    """Add a line to core memory, which you always see."""
    return await _write_core(user, store, f"{await read_core(user, store)}\n{text}".strip())


@tool
async def core_replace(old: str, new: str, user: User, store: Store) -> str:
    """Replace a piece of core memory."""
    held = await read_core(user, store)
    if not old or old not in held:
        return f"core memory has no {old!r}"
    return await _write_core(user, store, held.replace(old, new))


@tool
async def archival_insert(text: str, user: User, store: Store) -> str:
    """Write a line into archival memory."""
    return f"saved as line {await _append((user, 'archival'), text, store)}"


@tool
async def archival_search(query: str, user: User, store: Store, page: int = 0) -> str:
    """Lines of archival memory that have words of the query, best and newest first."""
    return await _search((user, "archival"), query, page, store)


@tool
async def recall_search(query: str, user: User, store: Store, page: int = 0) -> str:
    """Messages that are out of sight and have words of the query, best and newest first."""
    return await _search((user, "recall"), query, page, store)


@tool
def reply(text: str) -> str:
    """Say something to the user; ends your turn."""
    return "sent"


TOOLS = [core_append, core_replace, archival_insert, archival_search, recall_search, reply]


def build(model: BaseChatModel, store: BaseStore) -> CompiledStateGraph:
    """The assistant around a chat model that calls tools."""
    bound = model.bind_tools(TOOLS)

    async def listen(state: State, *, store: BaseStore) -> State:
        """Take the next message; a new session begins with an empty queue."""
        first, *rest = state["incoming"]
        heard: State = {"incoming": rest, "session": first["session"], "messages": [HumanMessage(first["text"])]}
        if first["session"] != state.get("session", first["session"]):
            heard |= {"evicted": await _evict(state, len(state["messages"]), store), "warned": False}
        return heard

    async def page(state: State, *, store: BaseStore) -> State:
        """Warn before the context is full, and push the older half out when it is."""
        queue = state["messages"][state.get("evicted", 0) :]
        used = count_tokens_approximately(queue) / CONTEXT
        if used > 1 and (cut := _cut(state)) is not None:
            return {"evicted": await _evict(state, cut, store), "warned": False}
        if used > WARN and not state.get("warned"):
            told = f"{PRESSURE} {used:.0%} of your context is used; the oldest messages leave it when it is full"
            return {"messages": [HumanMessage(told)], "warned": True}
        return {}

    async def think(state: State, *, store: BaseStore) -> State:
        core = SystemMessage(PROMPT + (await read_core(state["user"], store) or "(empty)"))
        return {"messages": [await bound.ainvoke([core, *state["messages"][state.get("evicted", 0) :]])]}

    def after_think(state: State) -> str:
        return "act" if state["messages"][-1].tool_calls else after_act(state)

    def after_act(state: State) -> str:
        results = list(takewhile(lambda m: m.type == "tool", reversed(state["messages"])))
        if results and not any(m.name == "reply" for m in results):
            return "page"
        return "listen" if state["incoming"] else END

    graph = StateGraph(State)
    graph.add_node("listen", listen)
    graph.add_node("page", page)
    graph.add_node("think", think)
    graph.add_node("act", ToolNode(TOOLS))
    graph.add_edge(START, "listen")
    graph.add_edge("listen", "page")
    graph.add_edge("page", "think")
    graph.add_conditional_edges("think", after_think, ["act", "listen", END])
    graph.add_conditional_edges("act", after_act, ["page", "listen", END])
    return graph.compile(store=store)


async def read_core(user: str, store: BaseStore) -> str:
    """A user's core memory."""
    item = await store.aget((user, "core"), "text")
    return "" if item is None else str(item.value["text"])


async def _write_core(user: str, store: BaseStore, text: str) -> str:
    if len(text) > CORE_CHARACTERS:
        return f"core memory holds {CORE_CHARACTERS} characters: replace something"
    await store.aput((user, "core"), "text", {"text": text})
    return "core memory changed"


async def _append(where: tuple[str, str], text: str, store: BaseStore) -> int:
    line = len(await store.asearch(where, limit=100_000))
    await store.aput(where, f"{line:06}", {"text": text})
    return line


async def _search(where: tuple[str, str], query: str, page: int, store: BaseStore) -> str:
    wanted = set(re.findall(r"\w+", query.lower()))
    items = sorted(await store.asearch(where, limit=100_000), key=lambda item: item.key, reverse=True)
    scored = [(len(wanted & set(re.findall(r"\w+", item.value["text"].lower()))), item) for item in items]
    found = [item for score, item in sorted(scored, key=lambda pair: -pair[0]) if score]
    shown = found[page * PAGE : (page + 1) * PAGE]
    lines = "\n".join(f"{int(item.key)}: {item.value['text']}" for item in shown)
    return f"{lines or 'nothing'}\n(page {page}, {len(found)} lines in all)"


async def _evict(state: State, until: int, store: BaseStore) -> int:
    """Move what the user and the assistant have said before ``until`` to recall memory."""
    for message in state["messages"][state.get("evicted", 0) : until]:
        if line := _said(message):
            await _append((state["user"], "recall"), line, store)
    return until


def _said(message: BaseMessage) -> str | None:
    if message.type == "human":
        return None if message.text.startswith(PRESSURE) else f"user: {message.text}"
    said = [call["args"].get("text") for call in getattr(message, "tool_calls", ()) if call["name"] == "reply"]
    return f"you: {said[0]}" if said else None


def _cut(state: State) -> int | None:
    """Where the newer half of the queue begins: at a user's message, so that calls and results stay together."""
    begin, end = state.get("evicted", 0), len(state["messages"])
    turns = [i for i in range(begin + 1, end) if state["messages"][i].type == "human" and _said(state["messages"][i])]
    return next((i for i in turns if i >= (begin + end) // 2), turns[-1] if turns else None)


graph = build(agent_model(decide), InMemoryStore())
