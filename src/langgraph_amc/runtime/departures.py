"""Tasks that leave their graph by a signal, such as a command for the graph around: no saver learns of their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.errors import GraphBubbleUp


class Departures(BaseCallbackHandler):
    """Calls ``note`` with the namespace of each task that ends so."""

    run_inline = True
    ignore_llm = True
    ignore_chat_model = True
    ignore_agent = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._tasks: dict[UUID, str] = {}

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, metadata: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if task := (metadata or {}).get("langgraph_checkpoint_ns"):
            self._tasks[run_id] = task

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._tasks.pop(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        task = self._tasks.pop(run_id, None)
        if task is not None and isinstance(error, GraphBubbleUp):
            self._note(task)
