"""An ordinary LangChain agent with two tools; nothing in here knows of AMC.

Set AGENT_MODEL to any LiteLLM model name, and the provider's key as LiteLLM expects it.
"""

import os

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_litellm import ChatLiteLLM


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


graph = create_agent(
    ChatLiteLLM(model=os.environ.get("AGENT_MODEL", "openai/gpt-5.1")),
    [add, multiply],
    system_prompt="Compute step by step with the tools, one call at a time. Answer with the number alone.",
)
