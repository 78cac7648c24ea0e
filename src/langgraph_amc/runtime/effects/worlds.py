"""The sessions of one particle: its objects, the log of the calls that changed them, and copies for clones.

A clone's object is restored from a snapshot taken at the fork. Where one session cannot give a snapshot, a
clone's objects are all made anew and the logged calls repeated: a call may touch several sessions. An answer
that differs from the logged one is a `DivergenceError`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from langgraph_amc.runtime.effects.current import body, inside
from langgraph_amc.runtime.effects.errors import DivergenceError, EffectFailedError, SessionError
from langgraph_amc.runtime.effects.outcome import encode
from langgraph_amc.runtime.effects.records import Answer, Chain, StatefulCall
from langgraph_amc.runtime.effects.session import Session, World

Enter = Callable[[], AbstractContextManager[Any]]


class Worlds:
    """Objects by session, and the lineage's log.

    Attributes
    ----------
    calls: stateful calls of this run, oldest first; shared with clones.
    lost: whether the log was read from a journal and not repeated yet, so that no object has its state.
    """

    def __init__(self, enter: Enter) -> None:
        self.calls: Chain[StatefulCall] = Chain()
        self.lost = False
        self._enter = enter
        self._by_session: dict[Session[Any], World] = {}
        self._lock = threading.RLock()
        self._repeating = False
        self._turn: asyncio.Lock | None = None
        self._catching: tuple[int, threading.Event] | None = None
        """Thread of the event loop that repeats calls just now, and what tells other threads that it has."""

    def session(self, session: Session[Any], *, direct: bool) -> Any:
        """The particle's object; ``direct``: the process-wide one itself, where none was copied yet."""
        with self._lock:
            world = self._by_session.get(session)
            if world is None:
                world = self._by_session[session] = self._first(session, direct=direct)
        self._wait_for_loop()
        if world.behind:
            self.catch_up()
        with self._lock:
            if inside.get() != "stateful":
                world.unlogged = True
            return world.open()

    def log(self, call: StatefulCall) -> None:
        with self._lock:
            self.calls = self.calls.add(call)

    def fork(self, enter: Enter) -> Worlds:
        """The worlds of a clone that stands where this particle stands."""
        clone = Worlds(enter)
        with self._lock:
            if any(not w.owned for w in self._by_session.values()):
                # it used the process-wide objects themselves; now it has a rival
                self._by_session = self._copies()
            clone.calls, clone.lost = self.calls, self.lost
            clone._by_session = self._copies()
        return clone

    def hand_over(self) -> None:
        """Make the objects the process-wide ones."""
        with self._lock:
            for session, world in self._by_session.items():
                known = None if world.unlogged or world.logs is None else (*world.logs, self.calls)
                session.adopt(world.open(), known)
                world.owned = False

    def close(self) -> None:
        """Close the particle's own objects; raises the first error after all were closed."""
        with self._lock:
            worlds, self._by_session = self._by_session, {}
        errors: list[Exception] = []
        for world in worlds.values():
            try:
                world.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def catch_up(self) -> None:
        """Repeat what copies made by replay have missed."""
        self._wait_for_loop()
        with self._lock:
            behind = self._begin()
            try:
                for call in self._missed(behind):
                    _compare(call, self._repeat_here(call))
                self.lost = self.lost and not behind
            except BaseException:
                _set_back(behind)
                raise
            finally:
                self._repeating = False

    async def acatch_up(self) -> None:
        """Repeat what copies made by replay have missed; other calls of the particle wait."""
        if not self._behind() and self._catching is None:
            return
        self._turn = self._turn or asyncio.Lock()
        async with self._turn:
            behind = self._begin()
            with self._others_wait():
                try:
                    for call in self._missed(behind):
                        _compare(call, await self._arepeat_here(call))
                    self.lost = self.lost and not behind
                except BaseException:
                    _set_back(behind)
                    raise

    def recover(self) -> None:
        """`catch_up`, also with objects of sessions that nobody has asked for since a journal brought the log back."""
        self._wait_for_loop()
        with self._lock:
            if self.lost and not self._behind():
                self._repeating = True
                try:
                    self._found([(call, self._repeat_here(call)) for call in self.calls])
                finally:
                    self._repeating = False
        self.catch_up()

    async def arecover(self) -> None:
        """`recover` on an event loop."""
        if self.lost:
            self._turn = self._turn or asyncio.Lock()
            async with self._turn:
                if self.lost and not self._behind():
                    self._repeating = True
                    with self._others_wait():
                        self._found([(call, await self._arepeat_here(call)) for call in self.calls])
        await self.acatch_up()

    # -- inside ----------------------------------------------------------------------------------

    def _found(self, answers: Sequence[tuple[StatefulCall, Answer]]) -> None:
        """All calls of a lost log were repeated, on fresh objects, so that all its sessions are known."""
        worlds = list(self._by_session.values())
        if any(w.logs for w in worlds):  # earlier runs come first: all begin anew
            _set_back(worlds)
            return
        try:
            for call, found in answers:
                _compare(call, found)
        except DivergenceError:
            _set_back(worlds)
            raise
        self.lost = False

    @contextmanager
    def _others_wait(self) -> Iterator[None]:
        """While the event loop repeats calls, threads that ask for an object wait."""
        done = threading.Event()
        self._catching = threading.get_ident(), done
        try:
            yield
        finally:
            self._repeating = False
            self._catching = None
            done.set()

    def _first(self, session: Session[Any], *, direct: bool) -> World:
        if self._repeating:
            # it comes up in the calls that are being repeated: all that concern it are still to come
            return World(session, logs=session.known_history())
        world = session.first_world(direct=direct)
        world.behind = world.behind or self.lost
        return world

    def _behind(self) -> list[World]:
        return [w for w in self._by_session.values() if w.behind]

    def _begin(self) -> list[World]:
        """The worlds that are behind, which count as up to date while their calls are repeated."""
        behind = self._behind()
        if behind and (self.lost or any(w.logs for w in behind)):
            # calls of earlier runs, or of an earlier process, may concern any session
            behind = list(self._by_session.values())
            for world in behind:
                world.restart()
        for world in behind:
            world.behind = False
        self._repeating = bool(behind)
        return behind

    def _missed(self, behind: list[World]) -> list[StatefulCall]:
        if not behind:
            return []
        logs: list[Chain[StatefulCall]] = []
        for world in behind:
            logs.extend(log for log in world.logs or () if not any(log is known for known in logs))
        return [call for log in (*logs, self.calls) for call in log]

    def _repeat_here(self, call: StatefulCall) -> Answer:
        if call.is_async:
            raise SessionError(
                f"a synchronous call needs a session whose state came about by the asynchronous tool {call.tool!r}: "
                "make both asynchronous, or give Session(snapshot=…, restore=…)"
            )
        return self._repeat(call)

    async def _arepeat_here(self, call: StatefulCall) -> Answer:
        return await self._arepeat(call) if call.is_async else await asyncio.to_thread(self._repeat, call)

    def _repeat(self, call: StatefulCall) -> Answer:
        with self._enter(), body(call.key, "stateful"):
            try:
                return Answer(call.again())
            except Exception as error:
                return Answer(error=error)

    async def _arepeat(self, call: StatefulCall) -> Answer:
        with self._enter(), body(call.key, "stateful"):
            try:
                answer: Awaitable[Any] = call.again()
                return Answer(await answer)
            except Exception as error:
                return Answer(error=error)

    def _wait_for_loop(self) -> None:
        catching = self._catching
        if catching is None or inside.get() == "stateful":  # the repeated call itself, or one that waited before
            return
        thread, done = catching
        if thread == threading.get_ident():
            raise SessionError("a synchronous tool was called on the event loop while its session was being copied")
        done.wait()

    def _copies(self) -> dict[Session[Any], World]:
        worlds = self._by_session
        if all(w.copies() for w in worlds.values()):
            return {s: w.snapshot() for s, w in worlds.items()}
        return {s: w.replayed() for s, w in worlds.items()}


def _compare(call: StatefulCall, found: Answer) -> None:
    """Raises DivergenceError unless the call was answered as before."""
    expected = call.answer
    if expected.error is not None or found.error is not None:
        same = _name(expected.error) == _name(found.error)
    else:
        same = _equal(expected.value, found.value)
    if not same:
        raise DivergenceError(call.step, call.tool, expected.error or expected.value, found.error or found.value)


def _name(error: Exception | None) -> tuple[str, str] | None:
    if isinstance(error, EffectFailedError):
        return error.kind, error.text
    return None if error is None else (type(error).__qualname__, str(error))


def _equal(expected: Any, found: Any) -> bool:
    stored = encode(expected)
    if "lost" not in stored:
        return stored == encode(found)
    return type(expected) is type(found) and bool(expected == found)


def _set_back(behind: list[World]) -> None:
    for world in behind:
        world.close()
        world.behind = True
