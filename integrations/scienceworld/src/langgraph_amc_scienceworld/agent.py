"""A ReAct agent for ScienceWorld, and what its runs are worth."""

from __future__ import annotations

import os
from typing import Any

from langchain_core.language_models import BaseChatModel

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import FinishedRun, WorldPool, world_agent
from langgraph_amc_scienceworld.world import ScienceWorld

WORLDS = 4
"""Java processes of `graph`, unless SCIENCEWORLD_WORLDS is another number."""

PROMPT = """\
You do a science task in a house with a garden, described in words. Reply to every observation with one thought and
one action, in this form:

Thought: what you know, and what comes next
Action: one command

Commands, with THING for anything you can see or carry:
look around; look at THING; look in THING; read THING; inventory; task (tells the task again)
open THING; close THING; go to PLACE (through an open door)
pick up THING; put down THING; move THING to THING; pour THING in THING; dunk THING in THING; mix THING
activate THING; deactivate THING; use THING on THING; connect THING to THING; disconnect THING; flush THING; eat THING
focus on THING; wait (ten moments); wait1 (one moment)

Focus only on what the task asks for: focusing on another thing fails it for good. If a request is ambiguous, reply
with the number of what you meant. No other commands are understood."""

# The world counts the actions, as the limit is the task's.
_NO_LIMIT = 1_000_000


def build(model: BaseChatModel, pool: WorldPool | None = None) -> Any:
    """The compiled agent; invoke it with ``{"task": {"name": "boil", "variation": 3}}``.

    Without a ``pool`` it makes one of `WORLDS` worlds when it starts the first task.
    """
    return world_agent(model, make_pool if pool is None else pool, prompt=PROMPT, limit=_NO_LIMIT)


def make_pool() -> WorldPool:
    """A pool of as many worlds as SCIENCEWORLD_WORLDS says."""
    text = os.environ.get("SCIENCEWORLD_WORLDS", str(WORLDS))
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"SCIENCEWORLD_WORLDS={text}: it is a number of Java processes, at least 1")
    return WorldPool(ScienceWorld, size=int(text))


def graph() -> Any:
    """The agent around the model that SCIENCEWORLD_MODEL names, any of LiteLLM's."""
    from langgraph_amc import chat_model

    name = os.environ.get("SCIENCEWORLD_MODEL")
    if not name:
        raise ConfigurationError("set SCIENCEWORLD_MODEL to a model of LiteLLM's, for example openai/gpt-5.1")
    return build(chat_model(name, temperature=1.0, max_tokens=512))


def score(run: FinishedRun) -> float:
    """ScienceWorld's score at the end, from 0 to 1; a failed task counts 0."""
    return max(0.0, signed_score(run))


def signed_score(run: FinishedRun) -> float:
    """The same, but -1 for a failed task: the reward in the AMC paper's code."""
    return float(run.output["info"]["score"]) / 100


def solved(run: FinishedRun) -> float:
    """1 if the whole task was done, else 0."""
    return float(run.output["info"]["solved"])
