"""Objects that stateful tools act on, one per particle: `Session`, and a particle's own `World` of it."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.effects.current import current_effects
from langgraph_amc.runtime.effects.errors import SessionError
from langgraph_amc.runtime.effects.policy import note_use
from langgraph_amc.runtime.effects.records import Chain, StatefulCall

T = TypeVar("T")

MISSING: Any = object()

Logs = tuple[Chain[StatefulCall], ...]
"""Calls that lead from a fresh object to the present one, oldest log first."""


class Session(Generic[T]):
    """An object that tools change: one for the process in plain runs, one per particle in an AMC run.

    Parameters
    ----------
    factory: makes a fresh one.
    snapshot, restore: ``snapshot(object) -> token`` of the present state, which later changes do not touch, and
        ``restore(token) -> object``; several objects may be made from one token. By default the object's own
        ``snapshot()`` and ``restore(token)``, as in `tasks.Environment`. Where there is neither, a particle's
        copy is made by repeating the calls of stateful tools, and answers that differ are a `DivergenceError`.
    close: ``close(object)``; by default the object's own ``close()`` where it has one.
    """

    def __init__(
        self,
        factory: Callable[[], T],
        *,
        snapshot: Callable[[T], Any] | None = None,
        restore: Callable[[Any], T] | None = None,
        close: Callable[[T], Any] | None = None,
    ) -> None:
        if (snapshot is None) != (restore is None):
            raise ConfigurationError("Session: snapshot and restore are given together, or neither")
        if not callable(factory):
            raise ConfigurationError(f"Session: factory is a function that makes the object, got {factory!r}")
        if not _takes(factory, 0):
            raise ConfigurationError(f"Session: factory is called without arguments, and {factory!r} needs some")
        for name, function in (("snapshot", snapshot), ("restore", restore), ("close", close)):
            if function is not None and not (callable(function) and _takes(function, 1)):
                raise ConfigurationError(f"Session: {name} is a function of one argument, got {function!r}")
        self.factory = factory
        self._snapshot, self._restore, self._close = snapshot, restore, close
        self._lock = threading.RLock()
        self._shared: Any = MISSING
        self._history: Logs | None = ()
        """How the process-wide object came to its state; ``None`` once it was handed out in a plain run."""
        note_use("session")

    def get(self) -> T:
        """The object of the particle that runs, or the process-wide one."""
        scope = current_effects.get()
        if scope is not None:
            return cast(T, scope.session(self))
        with self._lock:
            value = self.shared()
            self._history = None
            return value

    # -- used by scopes --------------------------------------------------------------------------

    def shared(self) -> T:
        """The process-wide object, made on first use."""
        with self._lock:
            if self._shared is MISSING:
                self._shared = self.factory()
            return cast(T, self._shared)

    def copies(self, value: Any) -> bool:
        """Whether a snapshot of this object can be taken."""
        return self._snapshot is not None or (
            callable(getattr(value, "snapshot", None)) and callable(getattr(value, "restore", None))
        )

    def snapshot(self, value: Any) -> Any:
        return self._snapshot(value) if self._snapshot is not None else value.snapshot()

    def restore(self, token: Any) -> T:
        if self._restore is not None:
            return self._restore(token)
        fresh: Any = self.factory()
        fresh.restore(token)
        return cast(T, fresh)

    def close(self, value: Any) -> None:
        if self._close is not None:
            self._close(value)
        elif callable(getattr(value, "close", None)):
            value.close()

    def first_world(self, *, direct: bool) -> World:
        """The world a run begins with: the state the process-wide object is in."""
        with self._lock:
            if direct:
                return World(self, value=self.shared(), logs=self._history, owned=False)
            if self._shared is MISSING:
                return World(self)
            if self.copies(self._shared):
                token = self.snapshot(self._shared)
                return World(self, token=token, origin=token, logs=self._history)
            return World(self, behind=True, logs=self.known_history())

    def known_history(self) -> Logs:
        """The calls that lead from a fresh object to the process-wide one; raises SessionError if unknown."""
        if self._history is None:
            raise SessionError(
                "a session's process-wide object was used outside AMC runs and cannot be copied for a particle by "
                "repeating calls: give Session(snapshot=…, restore=…), or use it in AMC runs only"
            )
        return self._history

    def adopt(self, value: Any, logs: Logs | None) -> None:
        """Make ``value`` the process-wide object; ``logs`` lead to its state, ``None`` if that is not known."""
        with self._lock:
            old, self._shared, self._history = self._shared, value, logs
        if old is not MISSING and old is not value:
            self.close(old)


def _takes(function: Callable[..., Any], n: int) -> bool:
    """Whether it can be called with ``n`` arguments, as far as it can be told: not of all that is written in C."""
    try:
        inspect.signature(function).bind(*[None] * n)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


@dataclass(slots=True, eq=False)
class World:
    """One particle's object of one session.

    Attributes
    ----------
    value: the object once it exists.
    token: what it is restored from, else it is made fresh.
    origin: the token of the state in which the run began, from which calls are repeated.
    behind: whether the logged calls have to be repeated on it first.
    logs: calls of earlier runs that come before the particle's own; ``None`` if they are not known.
    owned: ``False`` for the process-wide object itself.
    unlogged: changed, maybe, by code that is in no log.
    """

    session: Session[Any]
    value: Any = MISSING
    token: Any = MISSING
    origin: Any = MISSING
    behind: bool = False
    logs: Logs | None = ()
    owned: bool = True
    unlogged: bool = False

    def open(self) -> Any:
        """The object, made or restored on first use."""
        if self.value is MISSING:
            self.value = self.session.factory() if self.token is MISSING else self.session.restore(self.token)
        return self.value

    def copies(self) -> bool:
        """Whether a fork can be given a snapshot."""
        return not self.behind and (self.value is MISSING or self.session.copies(self.value))

    def snapshot(self) -> World:
        """A world that begins in the present state."""
        token = self.token if self.value is MISSING else self.session.snapshot(self.value)
        return World(self.session, token=token, origin=self.origin, logs=self.logs)

    def replayed(self) -> World:
        """A world that comes to the present state by repeating the calls of this run."""
        self._check_log()
        return World(self.session, token=self.origin, origin=self.origin, behind=True, logs=self.logs)

    def restart(self) -> None:
        """Begin anew, before the calls of earlier runs."""
        if self.owned:
            self._check_log()
            self.close()
            self.token = self.origin = MISSING
            self.logs = self.session.known_history() if self.logs is None else self.logs
        self.behind = True

    def _check_log(self) -> None:
        if self.unlogged:
            raise SessionError(
                "a session was used by a node or tool that is not 'stateful', so its state cannot be copied by "
                "repeating calls: mark every tool that uses it 'stateful', or give Session(snapshot=…, restore=…)"
            )

    def close(self) -> None:
        value, self.value = self.value, MISSING
        if self.owned and value is not MISSING:
            self.session.close(value)
