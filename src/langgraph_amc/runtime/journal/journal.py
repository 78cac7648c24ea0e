"""The journal: durable runs in a SQLite file or any SQL database, who owns them, and what is kept of them."""

from __future__ import annotations

import functools
import json
import random
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.journal import schema
from langgraph_amc.runtime.journal.coding import dump, to_json
from langgraph_amc.runtime.journal.errors import JournalError, RunInUseError
from langgraph_amc.runtime.journal.owner import is_alive, this_process
from langgraph_amc.runtime.journal.reading import RESUMABLE, RUNNING, RunInfo, RunRows, RunSummary, info, summary_of
from langgraph_amc.runtime.journal.run import Keep, Opened, RunJournal, drop
from langgraph_amc.runtime.journal.writer import Writer, is_busy
from langgraph_amc.trajectories.schema import WRITES, open_engine

T = TypeVar("T")

LEASE = 30.0
"""Seconds after which a run belongs to nobody, if its owner on another host was not heard of."""
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Left:
    """The call that began a run."""

    key: str
    about: Mapping[str, Any]
    input: Any


class Journal:
    """Durable runs in a database; threads, event loops and processes may share it, forked children may not.

    Parameters
    ----------
    url_or_path: a SQLite file, created if missing, or any SQLAlchemy URL (tested: SQLite, PostgreSQL).
    keep: what stays of a run that has ended: its ``"record"`` (particles without their state, the effects),
        ``"everything"`` or ``"nothing"``.
    lease: seconds without a sign of life after which a run on another host counts as abandoned.

    Raises `JournalError` where the database cannot be opened or was written by a newer schema.
    """

    def __init__(self, url_or_path: str | Path, *, keep: Keep = "record", lease: float = LEASE) -> None:
        if keep not in ("record", "everything", "nothing"):
            raise ConfigurationError(f"keep is 'record', 'everything' or 'nothing', got {keep!r}")
        self._source, self._keep, self._lease = str(url_or_path), keep, lease
        self._engine = open_engine(url_or_path)
        schema.run_faster(self._engine)
        self._committing = self._engine.execution_options(**{WRITES: True})
        self._writer = Writer(self._committing, self._beat, lease / 3)
        self._lock = threading.Lock()
        self._open: dict[int, RunJournal] = {}
        try:
            self._write(schema.create)
        except BaseException:
            self._engine.dispose()
            raise

    def __repr__(self) -> str:
        return f"Journal({self._engine.url.render_as_string(hide_password=True)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Journal, keep=self._keep, lease=self._lease), (self._source,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left and release the runs that are still open."""
        with self._lock:
            left = list(self._open.values())
        try:
            for run in left:
                run.release()
        finally:
            try:
                self._writer.close()
            finally:
                self._engine.dispose()

    def open(
        self,
        key: str,
        *,
        seed: int,
        about: Mapping[str, Any],
        input: Any = None,
        serde: SerializerProtocol | None = None,
    ) -> RunJournal:
        """A new run, or the one under ``key`` that did not end and that nobody runs any more.

        Parameters
        ----------
        key: what makes a later call the same one.
        seed, about, input: of a new run; one that is taken over keeps its own.
        serde: stores the input, outputs, answers and results of effects.

        Raises `RunInUseError` if its owner is alive.
        """
        serde = serde or JsonPlusSerializer()
        stored = dump(serde, input, "the input of the run")
        row = {
            "id": uuid.uuid4().hex,
            "key": key,
            "seed": str(int(seed)),
            "status": schema.OPEN,
            "owner": this_process(),
            "about": to_json(about, "what is said about the run"),
            "input_type": stored[0],
            "input": stored[1],
        }
        found, taken_over = self._write(lambda connection: self._claim(connection, row))
        opened = Opened(
            found.no,
            found.id,
            found.key,
            int(found.seed),
            json.loads(found.about),
            serde.loads_typed((found.input_type, bytes(found.input))),
            taken_over,
        )
        rows = RunRows(found.no, self._read)
        run = RunJournal(opened, rows, self._writer, serde, self._keep, self._forget)
        with self._lock:
            self._open[run.no] = run
        self._writer.wake()
        return run

    def runs(self, status: str | None = None, limit: int | None = None) -> list[RunSummary]:
        """Runs, newest first; ``status`` is one of `RunSummary.status`."""
        table = schema.runs
        columns = [c for c in table.c if c.name not in ("input", "input_type", "population")]
        rows = self._read(lambda c: c.execute(sa.select(*columns).order_by(table.c.no.desc())).all())
        now = time.time()
        found = [summary_of(row, self._lease, now) for row in rows]
        return [run for run in found if status is None or run.status == status][:limit]

    def show(self, run_id: str) -> RunInfo:
        """The account of the run whose id begins with ``run_id``; `JournalError` unless there is exactly one."""
        table = schema.runs
        beginning = sa.select(table).where(table.c.id.startswith(run_id, autoescape=True)).limit(2)
        rows = self._read(lambda connection: connection.execute(beginning).all())
        if len(rows) != 1:
            many = "more than one run begins" if rows else "no run begins"
            raise JournalError(f"{many} with {run_id!r}: `amc runs` lists them")
        return info(rows[0], RunRows(rows[0].no, self._read), self._lease, time.time())

    def left(self, run_id: str, serde: SerializerProtocol | None = None) -> Left:
        """The call that began a run which did not end; `JournalError` if there is no such run."""
        found = self.show(run_id).run
        if found.status not in (RUNNING, RESUMABLE):
            raise JournalError(f"run {found.id} has ended ({found.status}): there is nothing to go on with")
        columns = sa.select(schema.runs.c.input_type, schema.runs.c.input).where(schema.runs.c.id == found.id)
        kind, data = self._read(lambda connection: connection.execute(columns).one())
        return Left(found.key, found.about, (serde or JsonPlusSerializer()).loads_typed((kind, bytes(data))))

    def prune(self, older_than_seconds: float, status: str | None = None) -> int:
        """Delete runs of a status (``None``: all that have ended) that were last heard of so long ago; their number.

        A run that somebody runs is never deleted.
        """
        if not older_than_seconds >= 0:
            raise ConfigurationError(f"older_than_seconds is a number of seconds, got {older_than_seconds!r}")
        sql = schema.statements(self._engine.dialect.name)

        def delete(connection: sa.Connection) -> int:
            now = time.time()
            gone = [
                row.no
                for row in connection.execute(sa.select(schema.runs).with_for_update()).all()
                if now - max(row.ended or 0.0, row.heartbeat, row.created) >= older_than_seconds
                and self._is_prunable(row, status, now)
            ]
            for no in gone:
                for name, parameters in drop(no):
                    connection.exec_driver_sql(sql[name], parameters)
            return len(gone)

        return self._write(delete)

    def flush(self) -> None:
        """Block until everything noted so far is committed."""
        self._writer.wait()

    async def aflush(self) -> None:
        """`flush` on an event loop."""
        await self._writer.await_()

    # -- inside ----------------------------------------------------------------------------------

    def _claim(self, connection: sa.Connection, row: Mapping[str, Any]) -> tuple[Any, bool]:
        """The row of the run under a key, and whether it is an earlier process's."""
        table, now = schema.runs, time.time()
        schema.lock(connection, row["key"])
        unfinished = (
            sa.select(table)
            .where((table.c.key == row["key"]) & (table.c.status == schema.OPEN))
            .order_by(table.c.no.desc())
            .limit(1)
            .with_for_update()
        )
        found = connection.execute(unfinished).one_or_none()
        if found is None:
            connection.execute(table.insert().values(**row, heartbeat=now, created=now))
            return connection.execute(unfinished).one(), False
        if found.owner is not None and is_alive(found.owner, now - found.heartbeat, self._lease):
            raise RunInUseError(found.id, found.owner, now - found.heartbeat)
        connection.execute(table.update().where(table.c.no == found.no).values(owner=row["owner"], heartbeat=now))
        return found, True

    def _is_prunable(self, row: Any, status: str | None, now: float) -> bool:
        found = summary_of(row, self._lease, now).status
        return found != RUNNING and (found == status if status is not None else found != RESUMABLE)

    def _beat(self, connection: sa.Connection) -> None:
        table, owner = schema.runs, this_process()
        with self._lock:
            mine = list(self._open.values())
        for run in mine:
            change = table.update().where((table.c.no == run.no) & (table.c.owner == owner))
            if connection.execute(change.values(heartbeat=time.time())).rowcount == 0:
                run.lost = True

    def _forget(self, run: RunJournal) -> None:
        with self._lock:
            self._open.pop(run.no, None)

    def _write(self, work: Callable[[sa.Connection], T]) -> T:
        return self._retrying(self._committing, work)

    def _read(self, work: Callable[[sa.Connection], T]) -> T:
        return self._retrying(self._engine, work)

    def _retrying(self, engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
        """Run ``work`` in one transaction, again where the database was only busy."""
        for attempt in range(_ATTEMPTS):
            try:
                with engine.begin() as connection:
                    return work(connection)
            except (sa.exc.DBAPIError, sqlite3.OperationalError) as error:
                if attempt + 1 == _ATTEMPTS or not is_busy(error):
                    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
                    raise JournalError(f"{self!r} failed: {cause}") from error
            time.sleep(random.uniform(0.5, 1.0) * 0.02 * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")
