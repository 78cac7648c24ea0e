"""A trace that can only cost itself: a span processor or sampler that raises is warned of once, and the run goes on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from langgraph_amc.runtime.watching import Spans
from langgraph_amc.telemetry.spans import RunSpans


def tracing_broke(error: Exception) -> None:
    """Say that a run has no trace, or no more of it."""
    warnings.warn(
        f"tracing raised {type(error).__name__}: {error}; the run goes on without it", RuntimeWarning, stacklevel=3
    )


class Guard:
    """Leaves a trace out from the first error on that is its own; errors of what it is around go through."""

    def __init__(self) -> None:
        self._broken = False

    @contextmanager
    def around(self, block: Callable[..., AbstractContextManager[None]], *about: Any) -> Iterator[None]:
        """Inside ``block(*about)``, or without it where tracing is broken."""
        opened: AbstractContextManager[None] = nullcontext()
        if not self._broken:
            with self.caught():
                entering = block(*about)
                entering.__enter__()
                opened = entering
        try:
            yield
        except BaseException as error:
            with self.caught(unless=error):
                opened.__exit__(type(error), error, error.__traceback__)
            raise
        with self.caught():
            opened.__exit__(None, None, None)

    @contextmanager
    def caught(self, unless: BaseException | None = None) -> Iterator[None]:
        """Warn once of an error, and go on behind the block."""
        try:
            yield
        except Exception as error:
            if error is not unless and not self._broken:
                self._broken = True
                tracing_broke(error)


class Guarded:
    """`Spans` behind a `Guard`."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._guard = Guard()

    def stepping(self, particle: str) -> AbstractContextManager[None]:
        """See `Spans`."""
        return self._guard.around(self._spans.stepping, particle)

    def closing(self, particle: str) -> AbstractContextManager[None]:
        """See `Spans`."""
        return self._guard.around(self._spans.closing, particle)

    def judging(self, particles: Sequence[str]) -> AbstractContextManager[None]:
        """See `Spans`."""
        return self._guard.around(self._spans.judging, particles)

    def rewarding(self, particle: str) -> AbstractContextManager[None]:
        """See `Spans`."""
        return self._guard.around(self._spans.rewarding, particle)

    def effect(self, particle: str, tool: str, key: str) -> AbstractContextManager[None]:
        """See `Spans`."""
        return self._guard.around(self._spans.effect, particle, tool, key)

    def where(self) -> RunSpans | None:
        """See `Spans`."""
        return self._spans.where()
