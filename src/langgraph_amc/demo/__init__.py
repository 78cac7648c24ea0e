"""The embedded demo: a crafting world, tasks made from seeds, and a small policy model that comes along."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from langgraph_amc.demo.crafting import CraftingEnv, CraftingTask
from langgraph_amc.demo.taskgen import make_tasks

__all__ = ["CraftingEnv", "CraftingTask", "agent_file", "make_tasks", "policy_folder", "policy_model"]


def policy_folder() -> Path:
    """The Hugging Face folder of the shipped policy."""
    return Path(str(files("langgraph_amc.demo") / "policy"))


def policy_model() -> str:
    """The shipped policy's name for LiteLLM, whose local provider is registered on the way."""
    from langgraph_amc.policy.litellm_setup import load_litellm

    load_litellm()
    return f"amc-local/{policy_folder()}"


def agent_file() -> Path:
    """``examples/crafting/agent.py``: beside this file in an installed package, else in the repository."""
    installed = Path(__file__).with_name("agent.py")
    return installed if installed.exists() else Path(__file__).parents[3] / "examples" / "crafting" / "agent.py"
