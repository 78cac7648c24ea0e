"""One thread that writes what a process has to journal, in order, in as few transactions as possible."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from langgraph_amc.runtime.journal import schema
from langgraph_amc.runtime.journal.errors import JournalError
from langgraph_amc.trajectories.schema import is_transient

T = TypeVar("T")
Change = tuple[str, tuple[Any, ...]]
"""Name of a statement of `schema.STATEMENTS`, and its parameters."""

LINGER = 0.05
"""Seconds to wait for more where nobody waits for the disk."""
SHARE = 20
"""Where what waits should not be lost, the wait for more is only so many times as long as the last transaction took,
unless the process is busy."""
BUSY = 0.5
"""Share of a core from which a process counts as computing, not as waiting for models: commits would slow it down,
and what it has computed is soon computed again."""
PATIENCE = 60.0
"""Seconds after which a database that is locked is tried no more."""


class Writer:
    """Group commit; safe to use from several threads and event loops, not after a fork.

    After a write has failed for good nothing is written any more, and every call raises `JournalError`.

    Parameters
    ----------
    beat: called in a transaction of its own every ``every`` seconds while there is something to keep alive.
    """

    def __init__(self, engine: sa.Engine, beat: Callable[[sa.Connection], None], every: float) -> None:
        self._engine = engine
        self._beat, self._every = beat, every
        self._sql = schema.statements(engine.dialect.name)
        self._is_sqlite = engine.dialect.name == "sqlite"
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._landed = threading.Condition(lock)
        self._queue: list[Change] = []
        self._put = self._done = 0
        self._urgent = self._soon = self._idle = self._closing = False
        self._error: JournalError | None = None
        self._waiters: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._thread: threading.Thread | None = None
        self._connection: sa.Connection | None = None
        self._took = 0.0
        self._since = time.monotonic(), time.process_time()
        """When the last transaction ended, by the clock and in CPU time."""
        self.transactions = 0

    @property
    def failed(self) -> bool:
        """Whether a write has failed for good."""
        return self._error is not None

    def put(self, changes: Sequence[Change], *, soon: bool = False) -> int:
        """Enqueue changes, which one transaction will hold; returns what to wait for."""
        with self._work:
            self._check()
            self._queue.extend(changes)
            self._put += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="amc-journal", daemon=True)
                self._thread.start()
            elif self._idle:
                self._work.notify()
            self._soon |= soon
            return self._put

    def wait(self, ticket: int | None = None) -> None:
        """Block until everything up to ``ticket`` (``None``: all so far) is committed."""
        with self._work:
            ticket = self._put if ticket is None else ticket
            if self._done < ticket:
                self._hurry()
                self._landed.wait_for(lambda: self._done >= ticket or self._error is not None)
            self._check()

    async def await_(self, ticket: int | None = None) -> None:
        """`wait` on an event loop, without blocking it."""
        with self._work:
            self._check()
            ticket = self._put if ticket is None else ticket
            if self._done >= ticket:
                return
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._waiters.append((ticket, loop, future))
            self._hurry()
        await future

    def wake(self) -> None:
        """Start beating now: there is something to keep alive."""
        self.put(())

    def close(self) -> None:
        """Write what is left and end the thread."""
        with self._work:
            thread, self._closing = self._thread, True
            self._work.notify()
        if thread is not None:
            thread.join()
        with self._work:
            self._thread, self._closing = None, False
            self._check()

    # -- inside ----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._error is not None:
            raise JournalError(str(self._error)) from self._error

    def _hurry(self) -> None:
        self._urgent = True
        self._work.notify()

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while (batch := self._next_batch(due)) is not None:
                changes, ticket = batch
                if changes:
                    began = time.monotonic()
                    self._transaction(partial(self._write, changes))
                    self._took = time.monotonic() - began
                    self._since = time.monotonic(), time.process_time()
                if time.monotonic() >= due:
                    self._transaction(self._beat)
                    due = time.monotonic() + self._every
                self._land(ticket, None)
        except Exception as error:  # whatever it is, somebody waits to hear of it
            self._land(self._done, error)
        finally:
            self._disconnect()

    def _next_batch(self, due: float) -> tuple[list[Change], int] | None:
        with self._work:
            while self._put == self._done and not self._closing:
                self._idle = True
                if not self._work.wait(max(0.0, due - time.monotonic())) and time.monotonic() >= due:
                    break
            if not self._urgent and not self._closing and self._queue:
                self._work.wait(self._gathering() if self._soon else LINGER)
            self._idle = self._urgent = self._soon = False
            if self._closing and self._put == self._done:
                return None
            changes, self._queue = self._queue, []
            return changes, self._put

    def _gathering(self) -> float:
        """Seconds to wait for more where what waits should be safe soon."""
        wall, cpu = time.monotonic() - self._since[0], time.process_time() - self._since[1]
        return LINGER if cpu > BUSY * wall else min(LINGER, SHARE * self._took)

    def _land(self, ticket: int, error: Exception | None) -> None:
        with self._work:
            self._done = ticket
            if error is not None:
                where = self._engine.url.render_as_string(hide_password=True)
                cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
                self._error = JournalError(f"the journal at {where} could not be written: {cause}")
                self._error.__cause__ = error
            ready = [w for w in self._waiters if w[0] <= ticket or error is not None]
            self._waiters = [w for w in self._waiters if w[0] > ticket and error is None]
            self._landed.notify_all()
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for _, loop, future in ready:
            by_loop.setdefault(loop, []).append(future)
        for loop, futures in by_loop.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, futures, self._error)

    def _transaction(self, work: Callable[[sa.Connection], None]) -> None:
        retrying(partial(self._once, work))
        self.transactions += 1

    def _once(self, work: Callable[[sa.Connection], None]) -> None:
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            with self._connection.begin():
                work(self._connection)
        except (sa.exc.DBAPIError, sqlite3.OperationalError):
            self._disconnect()
            raise

    def _write(self, changes: Sequence[Change], connection: sa.Connection) -> None:
        inserts: dict[str, list[tuple[Any, ...]]] = {}
        for name, group in itertools.groupby(_without_answered(changes), lambda change: change[0]):
            rows = [row for _, row in group]
            if name in schema.INSERTS:
                inserts.setdefault(name, []).extend(rows)
            else:
                self._execute(connection, inserts)
                inserts.clear()
                self._execute(connection, {name: rows})
        self._execute(connection, inserts)

    def _execute(self, connection: sa.Connection, statements: Mapping[str, list[tuple[Any, ...]]]) -> None:
        for name, rows in statements.items():
            if self._is_sqlite:  # past SQLAlchemy, which takes longer than the statement
                cursor = connection.connection.cursor()
                cursor.executemany(self._sql[name], rows)
                cursor.close()
            else:
                connection.exec_driver_sql(self._sql[name], rows)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _without_answered(changes: Sequence[Change]) -> Sequence[Change]:
    """Without calls that were begun and have ended within the same transaction."""
    begun = {row[:2] for name, row in changes if name == "asked"}
    ended = {row for name, row in changes if name == "forget asked"} & begun
    if not ended:
        return changes
    return [(name, row) for name, row in changes if name not in ("asked", "forget asked") or row[:2] not in ended]


def retrying(once: Callable[[], T]) -> T:
    """The result of ``once``, which is called again for a minute where the database was only busy."""
    began = time.monotonic()
    for attempt in itertools.count():
        try:
            return once()
        except (sa.exc.DBAPIError, sqlite3.OperationalError) as error:
            if not is_busy(error) or time.monotonic() - began > PATIENCE:
                raise
        time.sleep(random.uniform(0.5, 1.0) * 0.02 * 2 ** min(attempt, 6))
    raise AssertionError("unreachable: it counts for ever")


def is_busy(error: Exception) -> bool:
    """Whether the same transaction may succeed when it is tried again."""
    if isinstance(error, sa.exc.DBAPIError):
        return is_transient(error)
    return "locked" in str(error) or "busy" in str(error)


def _resolve(futures: Sequence[asyncio.Future[None]], error: JournalError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(JournalError(str(error)))
