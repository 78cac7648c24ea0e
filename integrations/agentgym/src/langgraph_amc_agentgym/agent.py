"""A ReAct agent for AgentGym's environments: `world_agent` with the dialect's prompt, in "Thought: … Action: …"."""

from __future__ import annotations

import os
import re
from typing import Any

from langchain_core.language_models import BaseChatModel

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.tasks import FinishedRun, WorldPool, read_action, world_agent
from langgraph_amc.tasks.pool import digest
from langgraph_amc_agentgym.dialects import Dialect, dialect_of
from langgraph_amc_agentgym.server import Server
from langgraph_amc_agentgym.world import AgentGymWorld


def open_worlds(url: str, server: str | Dialect = "textcraft", *, size: int = 8, timeout: float = 60.0) -> WorldPool:
    """A pool of at most ``size`` environments on the server at ``url``; nothing is sent before one is needed.

    Close it when all is done (``with open_worlds(…) as worlds:``): it then closes them on the server, at the
    latest when the interpreter exits.
    """
    there = Server(url, server, timeout=timeout)
    varies = re.compile(there.dialect.varies)
    return WorldPool(lambda: AgentGymWorld(there), size=size, digest=lambda text: digest(varies.sub("", text)))


def build(
    model: BaseChatModel, worlds: WorldPool, server: str | Dialect = "textcraft", *, limit: int | None = None
) -> Any:
    """The compiled agent; invoke it with a task's input, ``{"task": {"server": "textcraft", "index": 3}}``.

    Parameters
    ----------
    limit: actions in an episode; the dialect's own by default.
    """
    dialect = dialect_of(server)
    return world_agent(
        model,
        worlds,
        prompt=dialect.prompt,
        limit=dialect.limit if limit is None else limit,
        read=str.strip if dialect.whole_reply else read_action,
    )


def graph() -> Any:
    """The agent around the model AGENTGYM_MODEL, on the server AGENTGYM_URL of the kind AGENTGYM_SERVER.

    AGENTGYM_SIZE is how many environments it may have at once, 8 if not set.
    """
    from langgraph_amc import chat_model

    name, url = os.environ.get("AGENTGYM_MODEL"), os.environ.get("AGENTGYM_URL")
    if not name:
        raise ConfigurationError("set AGENTGYM_MODEL to a model of LiteLLM's, for example openai/gpt-5.1")
    if not url:
        raise ConfigurationError("set AGENTGYM_URL to the environment server's address, e.g. http://127.0.0.1:36001")
    server = os.environ.get("AGENTGYM_SERVER", "textcraft")
    size = os.environ.get("AGENTGYM_SIZE", "8")
    if not size.isdecimal():
        raise ConfigurationError(f"AGENTGYM_SIZE={size}: a number of environments is needed")
    worlds = open_worlds(url, server, size=int(size))
    return build(chat_model(name, temperature=1.0, max_tokens=512), worlds, server)


def score(run: FinishedRun) -> float:
    """The episode's total reward; 1 is the best where AgentGym's is."""
    return float(run.output["total"])


def solved(run: FinishedRun) -> float:
    """1 if the episode was finished with full success, else 0."""
    return float(run.output["info"].get("solved", False))
