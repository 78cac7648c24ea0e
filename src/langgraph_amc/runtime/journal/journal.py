"""The journal: durable runs in a SQLite file or any SQL database, who owns them, and what is kept of them."""

from __future__ import annotations

import functools
import json
import math
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.journal import owner, schema
from langgraph_amc.runtime.journal.coding import Typed, dump, to_json
from langgraph_amc.runtime.journal.database import Database
from langgraph_amc.runtime.journal.errors import JournalError, RunInUseError
from langgraph_amc.runtime.journal.reading import (
    RESUMABLE,
    RUNNING,
    STATUSES,
    RunInfo,
    RunRows,
    RunSummary,
    info,
    summary_of,
)
from langgraph_amc.runtime.journal.run import Keep, Opened, RunJournal, drop
from langgraph_amc.runtime.journal.writer import Writer

LEASE = 30.0
"""Seconds after which a run belongs to nobody, if its owner on another host was not heard of."""
SHORTEST = 0.1
"""A lease is renewed three times in its length, each time with a transaction."""


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
    keep: what stays of a run that has ended: its ``"record"`` (particles with their transcripts but without their
        state, the effects), ``"everything"`` or ``"nothing"``.
    lease: seconds without a sign of life after which a run on another host counts as abandoned.
    create: whether a database without a journal gets one; if not, it is an error and stays as it is.

    Raises
    ------
    ConfigurationError: an argument is not what it should be, or the file's folder does not exist.
    JournalError: the database cannot be opened, holds no journal, or was written by a newer schema.
    """

    def __init__(
        self, url_or_path: str | Path, *, keep: Keep = "record", lease: float = LEASE, create: bool = True
    ) -> None:
        if keep not in ("record", "everything", "nothing"):
            raise ConfigurationError(f"keep is 'record', 'everything' or 'nothing', got {keep!r}")
        if isinstance(lease, bool) or not isinstance(lease, int | float) or not SHORTEST <= lease < math.inf:
            raise ConfigurationError(f"lease is a number of seconds of at least {SHORTEST}, got {lease!r}")
        self._keep, self._lease = keep, float(lease)
        self._database = Database(url_or_path, create=create)
        self._writer = self._new_writer()
        self._lock = threading.Lock()
        self._open: dict[int, RunJournal] = {}

    def __repr__(self) -> str:
        return f"Journal({str(self._database)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(Journal, keep=self._keep, lease=self._lease), (self._database.source,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is left and release the runs that are still open."""
        with self._lock:
            left = list(self._open.values())
        try:
            if self._writer.failed:
                with suppress(JournalError):  # why it failed is said below
                    self._release_lost(self._writer)
            else:
                for run in left:
                    run.release()
        finally:
            try:
                self._writer.close()
            finally:
                self._database.dispose()

    def open(
        self,
        key: str,
        *,
        seed: int,
        about: Mapping[str, Any],
        input: Any = None,
        stored: Typed | None = None,
        serde: SerializerProtocol | None = None,
    ) -> RunJournal:
        """A new run, or the one under ``key`` that did not end and that nobody runs any more.

        Parameters
        ----------
        key: what makes a later call the same one.
        seed, about, input: of a new run; one that is taken over keeps its own.
        stored: the input as it is stored, where that is known.
        serde: stores the input, outputs, answers and results of effects.

        Raises `RunInUseError` if its owner is alive.
        """
        serde = serde or JsonPlusSerializer()
        stored = stored or dump(serde, input, "the input of the run")
        row = {
            "id": uuid.uuid4().hex,
            "key": key,
            "seed": str(int(seed)),
            "status": schema.OPEN,
            "owner": owner.this_process(),
            "about": to_json(about, "what is said about the run"),
            "input_type": stored[0],
            "input": stored[1],
        }
        hold = owner.Hold(self._working_writer())
        found, taken_over = self._claimed(row, hold)
        try:
            opened = Opened(
                found.no,
                found.id,
                found.key,
                int(found.seed),
                json.loads(found.about),
                serde.loads_typed((found.input_type, bytes(found.input))) if taken_over else input,
                taken_over,
                hold,
            )
            run = RunJournal(opened, RunRows(found.no, self._database.read), serde, self._keep, self._forget)
            with self._lock:
                self._open[run.no] = run
            hold.writer.wake()
        except BaseException:
            owner.let_go(found.id, hold)
            raise
        return run

    def runs(self, status: str | None = None, limit: int | None = None) -> list[RunSummary]:
        """Runs, newest first; ``status`` is one of `RunSummary.status`."""
        _check_status(status)
        table = schema.runs
        columns = [c for c in table.c if c.name not in ("input", "input_type", "population")]
        rows = self._database.read(lambda c: c.execute(sa.select(*columns).order_by(table.c.no.desc())).all())
        now = time.time()
        found = [summary_of(row, self._lease, now) for row in rows]
        return [run for run in found if status is None or run.status == status][:limit]

    def show(self, run_id: str, *, transcripts: bool = False) -> RunInfo:
        """The account of the run whose id begins with ``run_id``; `JournalError` unless there is exactly one.

        ``transcripts``: what each particle saw and did too, where the journal keeps it.
        """
        table = schema.runs
        beginning = sa.select(table).where(table.c.id.startswith(run_id, autoescape=True)).limit(2)
        rows = self._database.read(lambda connection: connection.execute(beginning).all())
        if len(rows) != 1:
            many = "more than one run begins" if rows else "no run begins"
            raise JournalError(f"{many} with {run_id!r}: `amc runs` lists them")
        found = RunRows(rows[0].no, self._database.read)
        return info(rows[0], found, self._lease, time.time(), transcripts=transcripts)

    def left_behind(self, key: str) -> list[str]:
        """Keys of runs that did not end and that nobody runs: ``key`` itself or ``key#1``, ``key#2``, …"""
        table = schema.runs
        like = (table.c.key == key) | table.c.key.startswith(f"{key}#", autoescape=True)
        unfinished = sa.select(table).where(like & (table.c.status == schema.OPEN)).order_by(table.c.no)
        rows, now = self._database.read(lambda connection: connection.execute(unfinished).all()), time.time()
        return [row.key for row in rows if summary_of(row, self._lease, now).status == RESUMABLE]

    def left(self, run_id: str, serde: SerializerProtocol | None = None) -> Left:
        """The call that began a run which did not end; `JournalError` if there is no such run."""
        found = self.show(run_id).run
        if found.status not in (RUNNING, RESUMABLE):
            raise JournalError(f"run {found.id} has ended ({found.status}): there is nothing to go on with")
        columns = sa.select(schema.runs.c.input_type, schema.runs.c.input).where(schema.runs.c.id == found.id)
        kind, data = self._database.read(lambda connection: connection.execute(columns).one())
        return Left(found.key, found.about, (serde or JsonPlusSerializer()).loads_typed((kind, bytes(data))))

    def prune(self, older_than_seconds: float, status: str | None = None, *, dry_run: bool = False) -> int:
        """Delete runs of a status (``None``: all that have ended) that were last heard of so long ago; their number.

        A run that somebody runs is never deleted; with ``dry_run`` none is.
        """
        _check_status(status)
        if not older_than_seconds >= 0:
            raise ConfigurationError(f"older_than_seconds is a number of seconds, got {older_than_seconds!r}")

        def old(connection: sa.Connection, rows: sa.Select[Any]) -> list[int]:
            now = time.time()
            return [
                row.no
                for row in connection.execute(rows).all()
                if now - max(row.ended or 0.0, row.heartbeat, row.created) >= older_than_seconds
                and self._is_prunable(row, status, now)
            ]

        def delete(connection: sa.Connection) -> int:
            gone = old(connection, sa.select(schema.runs).with_for_update())
            for no in gone:
                for name, parameters in drop(no):
                    connection.exec_driver_sql(self._database.sql[name], parameters)
            return len(gone)

        if dry_run:
            return self._database.read(lambda connection: len(old(connection, sa.select(schema.runs))))
        return self._database.write(delete)

    def flush(self) -> None:
        """Block until everything noted so far is committed."""
        self._writer.wait()

    async def aflush(self) -> None:
        """`flush` on an event loop."""
        await self._writer.await_()

    # -- inside ----------------------------------------------------------------------------------

    def _new_writer(self) -> Writer:
        return Writer(self._database.engine, self._beat, self._lease / 3)

    def _working_writer(self) -> Writer:
        """The writer, or a new one where the last has failed: what failed may be over, a full disk for one."""
        with self._lock:
            last = self._writer
        if not last.failed:
            return last
        self._release_lost(last)
        with self._lock:
            if self._writer is last:
                self._writer = self._new_writer()
            return self._writer

    def _release_lost(self, failed: Writer) -> None:
        """Release the runs that ended with their writer, but those that somebody goes on with already."""
        with self._lock:
            left = [run for run in self._open.values() if run.hold.writer is failed]

        def release(connection: sa.Connection) -> None:
            for run in left:
                schema.lock(connection, run.key)
                if owner.is_held(run.id, run.hold):
                    own = (schema.runs.c.no == run.no) & (schema.runs.c.owner == owner.this_process())
                    connection.execute(schema.runs.update().where(own).values(owner=None))

        self._database.write(release)
        for run in left:
            self._forget(run)

    def _claimed(self, row: Mapping[str, Any], hold: owner.Hold) -> tuple[Any, bool]:
        """`_claim` in a transaction; before it ends, this process is known to run the run."""
        claimed: list[str] = []

        def claim(connection: sa.Connection) -> tuple[Any, bool]:
            found, taken_over = self._claim(connection, row)
            claimed.append(found.id)
            owner.hold(found.id, hold)
            return found, taken_over

        try:
            return self._database.write(claim)
        except BaseException:
            for run_id in claimed:
                owner.let_go(run_id, hold)
            raise

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
        if owner.is_run(found, self._lease, now):
            raise RunInUseError(found.id, found.owner, now - found.heartbeat)
        connection.execute(table.update().where(table.c.no == found.no).values(owner=row["owner"], heartbeat=now))
        return found, True

    def _is_prunable(self, row: Any, status: str | None, now: float) -> bool:
        found = summary_of(row, self._lease, now).status
        return found != RUNNING and (found == status if status is not None else found != RESUMABLE)

    def _beat(self, connection: sa.Connection) -> None:
        table, me = schema.runs, owner.this_process()
        with self._lock:
            mine = list(self._open.values())
        for run in mine:
            change = table.update().where((table.c.no == run.no) & (table.c.owner == me))
            if connection.execute(change.values(heartbeat=time.time())).rowcount == 0:
                run.lost = not run.ended

    def _forget(self, run: RunJournal) -> None:
        with self._lock:
            if self._open.get(run.no) is run:
                del self._open[run.no]
        owner.let_go(run.id, run.hold)


def _check_status(status: str | None) -> None:
    if status is not None and status not in STATUSES:
        raise ConfigurationError(f"a run's status is one of {', '.join(STATUSES)}, got {status!r}")
