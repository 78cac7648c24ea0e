"""What humans have answered to questions that are asked inside a held effect.

LangGraph stores an answer when the question is reached. A held effect is not, so its run would end without a trace
of the answer, and what goes on from there would ask again. The question of the tool itself is of the task that
calls it, which keeps its answers in its own writes; one of a graph that the tool runs is known by its id only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from langgraph_amc.runtime.effects.identity import SCRATCHPAD

_MAP, _SEND, _RESUME = "__pregel_resume_map", "__pregel_send", "__resume__"


def keep_answers(config: RunnableConfig) -> Mapping[str, Any]:
    """Store what the task of a call was told before it is interrupted; returns all that was told, by id."""
    configurable = config.get("configurable") or {}
    scratchpad = configurable.get(SCRATCHPAD)
    if scratchpad is not None and scratchpad.resume:
        configurable[_SEND]([(_RESUME, scratchpad.resume)])
    return configurable.get(_MAP) or {}


@contextmanager
def answering(config: RunnableConfig, told: Mapping[str, Any]) -> Iterator[None]:
    """Graphs that run within know these answers."""
    if not told:
        yield
        return
    around: RunnableConfig = var_child_runnable_config.get() or {}
    configurable = config.setdefault("configurable", {})
    configurable[_MAP] = told
    token = var_child_runnable_config.set(
        {**around, "configurable": {**(around.get("configurable") or {}), _MAP: told}}
    )
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)
        configurable.pop(_MAP)
