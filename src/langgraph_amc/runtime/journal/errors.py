"""What can go wrong with a journal, each with what to do about it.

They stop the whole run, which can be gone on with: LangGraph's retry policies and LangChain's middleware let a
`GraphBubbleUp` pass, where they would answer another exception by asking the model once more.
"""

from __future__ import annotations

from typing import Any

from langgraph.errors import GraphBubbleUp

from langgraph_amc.errors import RunStoppedError


class JournalError(RunStoppedError, GraphBubbleUp):
    """The journal cannot be read or written."""


class RunInUseError(JournalError):
    """A run that was to be gone on with belongs to a process that is alive."""

    def __init__(self, run_id: str, owner: str, seconds: float) -> None:
        self.run_id, self.owner = run_id, owner
        super().__init__(
            f"run {run_id} is being run by {owner}, which was heard of {seconds:.0f} s ago: wait for it to end, or "
            "stop it and call again"
        )


class UnserialisableStateError(RunStoppedError, GraphBubbleUp):
    """A value that has to be kept and the app's serialiser cannot take."""

    def __init__(self, where: str, path: str, value: Any, reason: str) -> None:
        self.where, self.path, self.type = where, path, type(value)
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        super().__init__(
            f"{where} cannot be serialised: {f'its part {path}' if path else 'it'} is a {kind} ({reason}). "
            "Keep such objects out of the state (an UntrackedValue channel, a closure, the runtime context), or give "
            "the app a checkpointer whose serde takes them"
        )
