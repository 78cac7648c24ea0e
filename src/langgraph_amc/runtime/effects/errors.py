"""Errors of the effects part.

Those that mean "stop the run here" are also a `GraphBubbleUp`: LangGraph's tool node, its retry policies and
LangChain's middleware turn other exceptions into messages for the model, which would let the run go on.
"""

from __future__ import annotations

from typing import Any

from langgraph.errors import GraphBubbleUp

from langgraph_amc.errors import AMCError, RunStoppedError


class StopRunError(AMCError, GraphBubbleUp):
    """An error no tool node, retry policy or middleware may swallow: it ends the particle's run."""


class EffectUnknownError(StopRunError, RunStoppedError):
    """An effect was begun, and whether it took place (or what it answered) is not known; it is never repeated.

    Attributes
    ----------
    tool, arguments: what was to be done.
    key: its idempotency key, under which the outbox keeps it.
    """

    def __init__(self, tool: str, arguments: Any, key: str, what: str) -> None:
        self.tool, self.arguments, self.key = tool, arguments, key
        super().__init__(
            f"{tool}({arguments}) {what}. It is not repeated. Look in the outside system under idempotency key "
            f"{key!r}, say so with `amc settle RUN {key}` or amc.settle(journal, run, key, …), and call again"
        )


class EffectChangedError(StopRunError, RunStoppedError):
    """A released effect did not come again: its node asks for another one each time it runs."""


class EffectDeniedError(AMCError, RuntimeError):
    """A decorated function whose policy is deny was called in a particle."""


class EffectFailedError(AMCError, RuntimeError):
    """An effect failed before the process was restarted, with an exception that cannot be made again.

    Attributes
    ----------
    kind, text: the exception's type name and its message.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind, self.text = kind, text
        super().__init__(f"failed with {kind}: {text}. It is not repeated; start a new run to try again")


class DivergenceError(StopRunError):
    """A replayed stateful call was answered differently than the first time.

    Attributes
    ----------
    step: super-step of the graph in which the call was made.
    tool: its name.
    expected, found: what it answered then and now.
    """

    def __init__(self, step: int, tool: str, expected: Any, found: Any) -> None:
        self.step, self.tool, self.expected, self.found = step, tool, expected, found
        super().__init__(
            f"the session could not be copied by replay: {tool!r} of step {step} answered {_short(expected)} the "
            f"first time and {_short(found)} now. Make it deterministic, or give Session(snapshot=…, restore=…)"
        )


class SessionError(StopRunError):
    """A session's object cannot be copied for another particle."""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"
