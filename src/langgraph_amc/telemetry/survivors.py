"""Exporting survivors only: a span processor before another that holds a run back until it is known who survived.

    provider.add_span_processor(SurvivorsOnly(BatchSpanProcessor(exporter)))

Particles that were pruned and have no surviving descendant are left out, with all that others traced inside them. What
a run holds in memory meanwhile is its spans. It has the methods of the SDK's ``SpanProcessor``, which it does not need.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from langgraph_amc.telemetry import names


class Processor(Protocol):
    """The SDK's ``SpanProcessor``."""

    def on_start(self, span: Any, parent_context: Any = None) -> None: ...

    def on_end(self, span: Any) -> None: ...

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 30_000) -> bool: ...


@dataclass(slots=True)
class _Run:
    """Spans of a run that have ended, each with the particle it belongs to, and all its spans by their ids."""

    root: int
    ended: list[tuple[Any, str | None]] = field(default_factory=list)
    owners: dict[int, str | None] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)
    pruned: dict[str, bool] = field(default_factory=dict)

    def dead(self) -> set[str]:
        """Particles that were pruned and that nobody who was not descends from."""
        alive = set[str]()
        for particle, pruned in self.pruned.items():
            line: str | None = None if pruned else particle
            while line is not None and line not in alive:
                alive.add(line)
                line = self.parents.get(line)
        return set(self.pruned) - alive


class SurvivorsOnly:
    """Passes on what it is given, but of a run's particles only those that survive and their ancestors.

    Parameters
    ----------
    inner: the processor that exports.
    """

    def __init__(self, inner: Processor) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._runs: dict[int, _Run] = {}
        """By the ids of all their spans."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Note whose it is."""
        own, parent = span.context.span_id, None if span.parent is None else span.parent.span_id
        with self._lock:
            run = None if parent is None else self._runs.get(parent)
            about = span.attributes or {}
            if run is None and names.RUN_ID in about:
                run = _Run(own)
            if run is not None:
                particle = about.get(names.PARTICLE_ID) or (None if parent is None else run.owners.get(parent))
                run.owners[own] = particle
                self._runs[own] = run
                if _is_life(span) and particle is not None:
                    run.parents[particle] = about.get(names.PARENT_ID)
        self._inner.on_start(span, parent_context)

    def _on_ending(self, span: Any) -> None:
        """Asked for by the SDK; nothing is changed at the end of a span."""

    def on_end(self, span: Any) -> None:
        """Hold it back until its run is over, then pass on what is left."""
        for left in self._released(span):
            self._inner.on_end(left)

    def shutdown(self) -> None:
        """Pass on what has ended of runs that have not, and shut down."""
        with self._lock:
            waiting = {id(run): run for run in self._runs.values()}
            self._runs.clear()
        for run in waiting.values():
            for span, _ in run.ended:
                self._inner.on_end(span)
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush what was passed on."""
        return self._inner.force_flush(timeout_millis)

    def _released(self, span: Any) -> Iterator[Any]:
        with self._lock:
            run = self._runs.get(span.context.span_id)
            if run is None:
                left = [span]
            else:
                particle = run.owners[span.context.span_id]
                run.ended.append((span, particle))
                if _is_life(span) and particle is not None:
                    run.pruned[particle] = span.attributes.get(names.OUTCOME) == "pruned"
                left = self._over(run) if span.context.span_id == run.root else []
        yield from left

    def _over(self, run: _Run) -> list[Any]:
        for own in run.owners:
            del self._runs[own]
        dead = run.dead()
        return [span for span, particle in run.ended if particle not in dead]


def _is_life(span: Any) -> bool:
    return bool(span.name.startswith(names.PARTICLE))
