"""What the benchmarks have in common: an app in which only the runtime costs anything, and how it is timed."""

from __future__ import annotations

import gc
import statistics
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

ROUNDS = 8
STEPS = 2 * ROUNDS + 1


class Instant(BaseChatModel):
    """Calls the tool for ROUNDS turns, then answers."""

    @property
    def _llm_type(self) -> str:
        return "instant"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        turn = sum(m.type == "ai" for m in messages)
        calls = [{"name": "add", "args": {"a": turn, "b": 1}, "id": uuid.uuid4().hex}] if turn < ROUNDS else []
        usage = {"input_tokens": 50 * len(messages), "output_tokens": 50, "total_tokens": 50 * len(messages) + 50}
        message = AIMessage("x" * 200, tool_calls=calls, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return self._generate(messages)


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def history(messages: int) -> dict[str, Any]:
    return {"messages": [HumanMessage("y" * 200, id=f"h{i}") for i in range(messages)]}


def thread() -> dict[str, Any]:
    return {"configurable": {"thread_id": uuid.uuid4().hex}}


async def interleaved(repeats: int, arms: dict[str, Callable[[], Awaitable[None]]]) -> dict[str, list[float]]:
    """CPU seconds of each arm, turn by turn; who comes first alternates."""
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(repeats):
        for name, run in list(arms.items())[:: 1 if turn % 2 else -1]:
            gc.collect()
            gc.disable()  # as timeit does: when a collection falls due is a matter of luck
            began = time.process_time()
            await run()
            taken[name].append(time.process_time() - began)
            gc.enable()
    return taken


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over the turns: what slows a shared machine for a while slows both arms of a turn."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
