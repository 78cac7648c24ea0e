"""An agent that reasons and searches in turns, as Search-R1 does (Jin et al., 2025), over a BM25 index.

Each turn is a thought and a search, whose results come back as information, until the agent answers and cites. Nothing
in here knows of AMC. The model is whatever LiteLLM reaches: set AGENT_MODEL, or leave it out for a scripted stand-in.
"""

import re
from collections.abc import Sequence
from functools import cache

import bm25s
from fact_corpus import Document, country
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from search_stand_in import decide

from langgraph_amc.demo.stand_in import agent_model

MAX_SEARCHES = 5
SHOWN = 5
PROMPT = f"""Answer the question from documents that you search for, at most {MAX_SEARCHES} times. Each turn, write
<think>what the last documents tell, each statement with its document as in: Zubor Works was founded by Ina Tek. [d0001]
</think><search>words to search for</search>
or, when you know,
<think>as above</think><answer>the name that was asked for
every statement that leads to it, one a line, each with its document as above</answer>
Newer sources count more than older ones, and registers more than hearsay. Names that look alike are not the same."""


class Index:
    """Documents ranked by BM25."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents
        self._ranking = bm25s.BM25()
        self._ranking.index(bm25s.tokenize([d.text for d in documents], show_progress=False), show_progress=False)

    def search(self, query: str, k: int = SHOWN) -> list[Document]:
        """The k documents that match best; fewer where fewer match at all."""
        words = bm25s.tokenize([query], show_progress=False)
        numbers, scores = self._ranking.retrieve(words, k=k, show_progress=False)
        return [self.documents[n] for n, score in zip(numbers[0], scores[0], strict=True) if score > 0]


@cache
def index() -> Index:
    """The index, made at the first search."""
    return Index(country().documents)


def build(model: BaseChatModel) -> CompiledStateGraph:
    """The agent around a chat model."""

    async def reason(state: MessagesState) -> MessagesState:
        return {"messages": [await model.ainvoke([SystemMessage(PROMPT), *state["messages"]])]}

    def search(state: MessagesState) -> MessagesState:
        asked = re.search(r"<search>(.*?)</search>", state["messages"][-1].text, re.S)
        done = sum("<information>" in m.text for m in state["messages"])
        if asked is None:
            return {"messages": [HumanMessage("Write <search>…</search> or <answer>…</answer>.")]}
        if done >= MAX_SEARCHES:
            return {"messages": [HumanMessage("No searches are left: write <answer>…</answer>.")]}
        found = "\n".join(map(str, index().search(asked[1]))) or "nothing found"
        return {"messages": [HumanMessage(f"<information>\n{found}\n</information>")]}

    def after(state: MessagesState) -> str:
        said = state["messages"]
        answered = "<answer>" in said[-1].text
        return END if answered or sum(m.type == "ai" for m in said) > MAX_SEARCHES + 1 else "search"

    graph = StateGraph(MessagesState)
    graph.add_node("reason", reason)
    graph.add_node("search", search)
    graph.add_edge(START, "reason")
    graph.add_conditional_edges("reason", after, ["search", END])
    graph.add_edge("search", "reason")
    return graph.compile()


graph = build(agent_model(decide))
