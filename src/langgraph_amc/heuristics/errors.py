"""What can go wrong with a function that a model wrote, by name."""

from __future__ import annotations

from typing import Literal

from langgraph_amc.errors import AMCError, ConfigurationError

FailureKind = Literal["refused", "time", "memory", "forbidden", "output", "crash", "error", "invalid"]
"""``refused``: by the screening, before it ran. ``time``, ``memory``, ``output``: over a limit. ``forbidden``: a system
call that computing does not need (files, network, processes). ``crash``: the interpreter died of something else.
``error``: the function raised. ``invalid``: it returned something that the problem has no use for."""


class HeuristicFailure(AMCError):
    """A candidate function failed; ``kind`` says how. Nothing of it is running any more."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: FailureKind = kind
        self.detail = detail


class SandboxUnavailableError(ConfigurationError):
    """This machine cannot confine a process as the sandbox needs it."""
