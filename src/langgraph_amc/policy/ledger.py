"""A thread-safe running total of usage, per particle and overall."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

from langgraph_amc.trajectories.types import Usage


class Ledger:
    """Books usage by owner: a particle's name, or ``None`` for calls outside any particle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = Usage()
        self._by_particle: dict[str | None, Usage] = {}

    def record(self, usage: Usage, particle: str | None = None) -> Usage:
        """Add one call's usage to its owner and return the new overall total."""
        with self._lock:
            self._by_particle[particle] = self._by_particle.get(particle, Usage()) + usage
            self._total = self._total + usage
            return self._total

    def recorder(self, particle: str | None = None) -> Callable[[Usage], Usage]:
        """`record` bound to one owner, as `UsageCallback` takes it."""
        return lambda usage: self.record(usage, particle)

    @property
    def total(self) -> Usage:
        """Usage of everybody; its cost is ``None`` as soon as one price was unknown."""
        with self._lock:
            return self._total

    @property
    def by_particle(self) -> Mapping[str | None, Usage]:
        """Usage of each owner so far, a copy."""
        with self._lock:
            return MappingProxyType(dict(self._by_particle))
