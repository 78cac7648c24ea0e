"""Agentic Monte Carlo as a node of a larger graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config
from langgraph.errors import ParentCommand
from langgraph.types import Command

from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.runtime.signature import showing
from langgraph_amc.runtime.wrap import wrap


class AMCNode(Runnable[Any, Any]):
    """Run a compiled graph as N particles inside one node; the winner's output is the node's update.

    Parameters
    ----------
    subgraph: any compiled graph.
    to_inner: parent state → the subgraph's input (default: the state itself, as for a subgraph node).
    to_outer: the winner's output → the node's update (default: the output; keys the parent does not know
        are dropped, as for a subgraph node).
    settings: as for `wrap`.

    With a checkpointer in the graph around, the winner's interrupts go outward and ``Command(resume=…)`` there
    continues it, as for a subgraph; without one they raise NestedInterruptError. ``last_run(node)`` is the record
    of its newest run.
    """

    @showing(read_settings)
    def __init__(
        self,
        subgraph: Any,
        *,
        to_inner: Callable[[Any], Any] | None = None,
        to_outer: Callable[[Any], Any] | None = None,
        **settings: Any,
    ) -> None:
        self.app = wrap(subgraph, **settings)
        self.app._amc_whole = True
        self.name = subgraph.get_name()
        self._to_inner = to_inner
        self._to_outer = to_outer

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        try:
            return self._outer(self.app.invoke(self._inner(input), ensure_config(config)))
        except ParentCommand as bubble:
            return _here(bubble.args[0])

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        try:
            return self._outer(await self.app.ainvoke(self._inner(input), ensure_config(config)))
        except ParentCommand as bubble:
            return _here(bubble.args[0])

    def _inner(self, state: Any) -> Any:
        return state if self._to_inner is None else self._to_inner(state)

    def _outer(self, output: Any) -> Any:
        return output if self._to_outer is None else self._to_outer(output)


def _here(command: Command) -> Command:
    """A command the winner addressed to its parent graph, as this node's own."""
    return Command(update=command.update, goto=command.goto)
