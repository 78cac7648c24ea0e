"""A ReAct agent for MiniWoB++: a plain LangGraph app around any chat model, the history of its page in its state."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import FinishedRun, WorldPool, world_agent
from langgraph_amc_miniwob.world import MiniWoB

PROMPT = """\
You work on a web page to reach a goal. You are shown the page as its accessibility tree; what can be acted on has a
number in brackets. Reply to every observation with one thought and one action, in this form:

Thought: what the goal needs next
Action: one action

The actions are:
click('12')
fill('12', 'text') - replace what is in a text field
select_option('12', 'label') - of a list
press('12', 'Enter') - a key, or several as 'Control+a', with the element focused
scroll(0, 200)
hover('12'), focus('12'), clear('12'), dblclick('12'), drag_and_drop('12', '15')
noop() - one second passes

Numbers can change as the page does. The episode ends when the page has judged what you did; a wrong answer ends it
too. You have few actions, {limit} at most."""

LIMIT = 20
"""Actions at most; most tasks have a lower limit of their own."""


def build(model: BaseChatModel, pool: WorldPool | Callable[[], WorldPool] | None = None) -> Any:
    """The compiled agent; invoke it with ``{"task": {"page": "click-button", "seed": 0}}``.

    ``pool`` holds the browsers: 4 by default (MINIWOB_BROWSERS), each started when it is first needed.
    """
    return world_agent(model, pool or worlds, prompt=PROMPT, limit=LIMIT, read=read_action)


def worlds() -> WorldPool:
    """A pool of as many browsers as MINIWOB_BROWSERS says, 4 by default."""
    given = os.environ.get("MINIWOB_BROWSERS", "4")
    if not given.isdecimal():
        raise ConfigurationError(f"MINIWOB_BROWSERS={given!r}: a number of browsers, for example 4")
    return WorldPool(MiniWoB, size=int(given))


def graph() -> Any:
    """The agent around the model that MINIWOB_MODEL names, any of LiteLLM's."""
    from langgraph_amc import chat_model

    name = os.environ.get("MINIWOB_MODEL")
    if not name:
        raise ConfigurationError("set MINIWOB_MODEL to a model of LiteLLM's, for example openai/gpt-5.1")
    return build(chat_model(name, temperature=1.0, max_tokens=256))


def read_action(text: str) -> str:
    """The action in a reply: the line after its last ``Action:``, or its last line where it has none."""
    _, marked, after = text.rpartition("Action:")
    lines = [line.strip(" `") for line in (after if marked else text).strip().splitlines()]
    return lines[0 if marked else -1] if lines else ""


def solved(run: FinishedRun) -> float:
    """1 if the page's reward is positive, else 0: BrowserGym's reward."""
    return float(run.output["total"] > 0)


def score(run: FinishedRun) -> float:
    """The page's own reward, -1 to 1, without its discount by time; 0 for an episode that was not finished."""
    return float(run.output["total"])
