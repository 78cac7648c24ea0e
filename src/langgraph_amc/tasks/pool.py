"""Worlds that live outside the process, as many particles need them: the history is the state, live worlds are a cache.

A graph keeps a `History` in its state: the task, and each action with the digest of its answer. It is plain JSON, so
it is checkpointed, forked and resumed like any other state. To act, `WorldPool` takes a live world that stands exactly
there; else it replays the actions in another one and checks that each is answered as before.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypedDict, TypeVar

from langgraph_amc.checks import check_whole
from langgraph_amc.errors import AMCError
from langgraph_amc.tasks.environment import NotStartedError, ReplayDivergedError, Steppable, StepResult, WorldLostError
from langgraph_amc.trajectories._json import dumps

T = TypeVar("T")


class PoolClosedError(AMCError, RuntimeError):
    """A world was asked for after `WorldPool.close`."""


class PastStep(TypedDict):
    """An action and how it was answered."""

    action: Any
    observation: str
    reward: float
    done: bool


class History(TypedDict):
    """How a world came to be where it is; ``first`` and ``observation`` are digests."""

    task: Any
    first: str
    steps: list[PastStep]


def digest(observation: Any) -> str:
    """64 bits of SHA-256 over an observation's JSON."""
    return hashlib.sha256(dumps(observation, "an observation").encode()).hexdigest()[:16]


class WorldPool:
    """At most ``size`` live worlds, which any number of histories share; for any number of threads.

    Parameters
    ----------
    make: starts a world (a process, a browser, an environment on a server); called when one is first needed.
        Worlds are deterministic given their task and actions.
    size: live worlds at once. With as many as particles a clone is the only one that replays.
    digest: of an observation, by which a replay is checked; the default takes whatever is JSON.
    """

    def __init__(self, make: Callable[[], Steppable], *, size: int = 8, digest: Callable[[Any], str] = digest) -> None:
        check_whole("size", size, 1)
        self.size = size
        self._make, self._digest = make, digest
        self._idle: list[_Live] = []  # the least recently used first
        self._live = 0
        self._closed = False
        self._changed = threading.Condition()
        weakref.finalize(self, _close_all, self._idle)  # also when the interpreter ends

    def __len__(self) -> int:
        """Live worlds, in use or idle."""
        return self._live

    def __bool__(self) -> bool:
        """A pool without live worlds is one, too."""
        return True

    def reset(self, task: Any) -> tuple[History, Any]:
        """Start ``task`` (JSON-able) in a live world; its history and the first observation."""
        return self._in_one(None, lambda live: live.reset(task, self._digest))

    def step(self, history: History, action: Any) -> tuple[History, StepResult]:
        """Act at ``history``; the history after it, and (observation, reward, done, info).

        A world that fails is closed, and the step is tried once more in a new one, after a replay. What it raises as
        an `AMCError` was said on purpose and is not tried again, but for `WorldLostError`.

        Raises
        ------
        ReplayDivergedError: a replayed action was answered differently than the first time.
        NotStartedError: ``history`` is none.
        """
        if not isinstance(history, Mapping) or not history.keys() >= History.__annotations__.keys():
            raise NotStartedError(f"a world is acted on at a history, got {history!r:.200}: give what reset returned")
        return self._in_one(history, lambda live: live.step(action, self._digest))

    def close(self) -> None:
        """Close all worlds; one that is in use, as soon as its step is done."""
        with self._changed:
            self._closed = True
            self._live -= len(self._idle)
            idle = self._idle.copy()
            self._idle.clear()
            self._changed.notify_all()
        _close_all(idle)

    def __enter__(self) -> WorldPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _in_one(self, history: History | None, use: Callable[[_Live], T]) -> T:
        for last in (False, True):
            try:
                with self._taken(history, new=last) as live:
                    if history is not None:
                        live.replay(history, self._digest)
                    return use(live)
            except Exception as error:
                if last or _said(error):
                    raise
        raise AssertionError("unreachable")

    @contextmanager
    def _taken(self, history: History | None, new: bool) -> Iterator[_Live]:
        live = self._take(history, new)
        sound = False
        try:
            yield live
            sound = True
        except Exception as error:
            sound = _said(error)
            raise
        finally:
            self._give_back(live, sound)

    def _take(self, history: History | None, new: bool) -> _Live:
        replaced: _Live | None = None
        with self._changed:
            while True:
                if self._closed:
                    raise PoolClosedError("this pool of worlds is closed: make a new one")
                found = None if new else self._choose(history)
                if found is not None:
                    self._idle.remove(found)
                    return found
                if self._live < self.size:
                    self._live += 1
                    break
                if self._idle:  # a new one is wanted: whatever broke the last may have broken all
                    replaced = self._idle.pop(0)
                    break
                self._changed.wait()
        try:
            if replaced is not None:
                replaced.abandon()
            return _Live(self._make())
        except BaseException:
            with self._changed:
                self._live -= 1
                self._changed.notify()
            raise

    def _choose(self, history: History | None) -> _Live | None:
        """Which idle world to take: one that stands there; with no room for another, the one that misses the least."""
        if history is not None:
            exact = next((live for live in self._idle if live.history == history), None)
            if exact is not None:
                return exact
        unused = next((live for live in self._idle if live.history is None), None)
        if unused is not None or self._live < self.size:
            return unused
        if history is not None:
            before = [live for live in self._idle if live.stands_before(history)]
            if before:
                return max(before, key=_Live.length)
        over = next((live for live in self._idle if live.done), None)
        return over or next(iter(self._idle), None)

    def _give_back(self, live: _Live, sound: bool) -> None:
        with self._changed:
            keep = sound and not self._closed
            if keep:
                self._idle.append(live)
            else:
                self._live -= 1
            self._changed.notify()
        if sound and not keep:
            live.world.close()
        elif not sound:
            live.abandon()


class _Live:
    """A live world and where it stands; ``None``: not known."""

    def __init__(self, world: Steppable) -> None:
        self.world = world
        self.history: History | None = None

    @property
    def done(self) -> bool:
        return self.history is not None and bool(self.history["steps"]) and self.history["steps"][-1]["done"]

    def length(self) -> int:
        return 0 if self.history is None else len(self.history["steps"])

    def stands_before(self, history: History) -> bool:
        """Whether it stands on the way to ``history``."""
        if self.history is None or {**self.history, "steps": []} != {**history, "steps": []}:
            return False
        return history["steps"][: self.length()] == self.history["steps"]

    def reset(self, task: Any, digest: Callable[[Any], str]) -> tuple[History, Any]:
        self.history = None  # a reset or step that fails leaves no half-known state behind
        observation = self.world.reset(task)
        self.history = {"task": task, "first": digest(observation), "steps": []}
        return self.history, observation

    def step(self, action: Any, digest: Callable[[Any], str]) -> tuple[History, StepResult]:
        before, self.history = self.history, None
        assert before is not None
        observation, reward, done, info = self.world.step(action)
        reward, done = float(reward), bool(done)
        past: PastStep = {"action": action, "observation": digest(observation), "reward": reward, "done": done}
        self.history = {**before, "steps": [*before["steps"], past]}
        return self.history, (observation, reward, done, info)

    def abandon(self) -> None:
        """Close a world that is, or may be, broken: what broke it is told already."""
        with suppress(Exception):
            self.world.close()

    def replay(self, history: History, digest: Callable[[Any], str]) -> None:
        if not self.stands_before(history):
            found, _ = self.reset(history["task"], digest)
            if found["first"] != history["first"]:
                self.history = None
                raise ReplayDivergedError(0, "observation", history["first"], found["first"])
        for number, past in enumerate(history["steps"][self.length() :], start=self.length() + 1):
            now = self.step(past["action"], digest)[0]["steps"][-1]
            for part in ("observation", "reward", "done"):
                if now[part] != past[part]:
                    self.history = None
                    raise ReplayDivergedError(number, part, past[part], now[part])


def _said(error: Exception) -> bool:
    """Whether another world would say the same."""
    return isinstance(error, AMCError) and not isinstance(error, WorldLostError)


def _close_all(worlds: Sequence[_Live]) -> None:
    """Close every one of them, and only then raise what the first failure was."""
    failure: Exception | None = None
    for live in worlds:
        try:
            live.world.close()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
