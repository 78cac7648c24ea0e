"""A ReAct agent for TextWorld: a plain LangGraph app around any chat model; the game's history is in its state."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from langchain_core.language_models import BaseChatModel

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import FinishedRun, Steppable, WorldPool, world_agent
from langgraph_amc_textworld.world import MOST_STEPS, TextWorld

MODEL = "TEXTWORLD_MODEL"
POOL = 32
"""Live games at once; each is an interpreter of about a megabyte in this process."""

PROMPT = """\
You play a text adventure. You are told what it is about and where you are. Reply to every observation with one
thought and one command, in this form:

Thought: what you need next, and why
Action: one command

Useful commands:
look, inventory, goal
go north, go south, go east, go west
examine X, open X, close X, unlock X with Y
take X, take X from Y, drop X, put X on Y, insert X into Y
eat X, cook X with Y, slice X with Y, chop X with Y, dice X with Y, prepare meal

Name things as the game names them. What was cooked or cut stays so, and a wrong step can lose the game. A command
that the game does not understand counts as one as well."""


def build(model: BaseChatModel, *, world: Callable[[], Steppable] = TextWorld, worlds: int = POOL) -> Any:
    """The compiled agent; invoke it with a task's input, ``{"task": {"game": …, "step_limit": …}}``."""
    # The task's own limit ends the game.
    return world_agent(model, lambda: WorldPool(world, size=worlds), prompt=PROMPT, limit=MOST_STEPS)


def graph() -> Any:
    """The agent around the model that TEXTWORLD_MODEL names, any of LiteLLM's."""
    from langgraph_amc import chat_model

    name = os.environ.get(MODEL)
    if not name:
        raise ConfigurationError(f"set {MODEL} to a model of LiteLLM's, for example openai/gpt-5.1")
    return build(chat_model(name, temperature=1.0, max_tokens=256))


def solved(run: FinishedRun) -> float:
    """1 if the game was won, else 0."""
    return float(run.output["info"].get("won", False))


def score(run: FinishedRun) -> float:
    """Points, as a share of the most that the game has."""
    info = run.output["info"]
    return info["score"] / info["max_score"] if info else 0.0


def progress(transcript: str) -> float:
    """A plain value function: the share of the points that the transcript shows; 0 when the game is lost."""
    most = re.search(r"The most points are (\d+)", transcript)
    if most is None or "*** You lost! ***" in transcript:
        return 0.0
    return min(1.0, transcript.count("Your score has just gone up by") / int(most[1]))
