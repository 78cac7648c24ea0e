"""The trajectory store: tasks, runs, particles with their lineage, and steps, in a SQL database.

A clone's steps start where it left its parent: what they share is stored once and put together on reading.
Writers may be threads and processes; each `add` is one transaction.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import sqlalchemy as sa

from langgraph_amc.trajectories import schema
from langgraph_amc.trajectories._insert import Inserter, Record, TaskLike, parents_first
from langgraph_amc.trajectories._rows import check_number, load
from langgraph_amc.trajectories.schema import StoreError
from langgraph_amc.trajectories.types import Status, Trajectory

__all__ = ["Record", "Run", "StoreCounts", "StoreError", "TrajectoryStore"]

T = TypeVar("T")
_CHUNK = 256
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One stored run: its id, its metadata, and when it was first stored (seconds since the epoch)."""

    id: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """How much a store holds. ``steps`` counts stored rows: what clones share counts once."""

    tasks: int
    runs: int
    trajectories: int
    steps: int
    with_outcome: int
    by_status: Mapping[str, int]


class TrajectoryStore:
    """Trajectories in a database; safe to use from several threads and processes at once.

    Parameters
    ----------
    url_or_path: a SQLite file, created if missing, or any SQLAlchemy URL (tested: SQLite, PostgreSQL).

    Raises `StoreError` where the database cannot be opened or was written by a newer schema.
    """

    def __init__(self, url_or_path: str | Path) -> None:
        self._source = str(url_or_path)
        self._engine = schema.open_engine(url_or_path)
        self._writer = self._engine.execution_options(**{schema.WRITES: True})
        try:
            self._write(schema.create)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"TrajectoryStore({self._engine.url.render_as_string(hide_password=True)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return TrajectoryStore, (self._source,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back pooled connections; a closed store opens new ones when it is used again."""
        self._engine.dispose()

    def add(
        self,
        trajectories: Iterable[Trajectory],
        task: TaskLike | Mapping[str, Any] | None = None,
        run_metadata: Mapping[str, Any] | None = None,
        *,
        on_conflict: Literal["error", "skip"] = "error",
    ) -> int:
        """Store trajectories, all or none, and return how many were new.

        ``task`` is what they ran on; its id becomes theirs where they have none. ``run_metadata`` belongs to
        their run(s). A (run, particle) that is already stored raises `StoreError` or is skipped. NaN, and
        any infinity but a log-weight of −inf, raise `StoreError`.
        """
        records = [Record(t, task, run_metadata) for t in parents_first(list(trajectories))]
        return self.add_records(lambda: records, on_conflict=on_conflict)

    def add_records(
        self, read: Callable[[], Iterable[Record]], *, on_conflict: Literal["error", "skip"] = "error"
    ) -> int:
        """`add` for trajectories of several tasks and runs, in one transaction.

        ``read`` is called anew when the database asks to try again. Parents come before their clones, or
        the clones store their steps in full.
        """

        def insert(connection: sa.Connection) -> int:
            inserter = Inserter(connection, skip_stored=on_conflict == "skip")
            return sum(inserter.insert(record) for record in read())

        return self._write(insert)

    def set_outcome(self, run_id: str, particle: str, outcome: float | None) -> None:
        """Set or clear (``None``: missing) the outcome of one stored trajectory; NaN raises `StoreError`."""
        table = schema.trajectories
        where = (table.c.run_id == run_id) & (table.c.particle == particle)
        change = table.update().where(where).values(outcome=check_number(outcome, "the outcome"))
        if self._write(lambda connection: connection.execute(change).rowcount) == 0:
            raise StoreError(f"no trajectory of particle {particle!r} in run {run_id!r}: add it first")

    def trajectories(
        self,
        task_ids: Iterable[str] | None = None,
        status: Status | Iterable[Status] | None = None,
        run_ids: Iterable[str] | None = None,
        split: str | None = None,
    ) -> Iterator[Trajectory]:
        """Stored trajectories in the order they were added, parents first; filters combine with *and*.

        What is stored when iteration begins is read, in chunks: no transaction stays open in between.
        """
        keys = self._keys(task_ids, status, run_ids, split)
        for start in range(0, len(keys), _CHUNK):
            chunk = keys[start : start + _CHUNK]
            yield from self._read(partial(load, keys=chunk))

    def tasks(self, split: str | None = None) -> Iterator[dict[str, Any]]:
        """Stored tasks by id, as the mappings that `langgraph_amc.tasks.Task` takes as keywords."""
        query = sa.select(schema.tasks).order_by(schema.tasks.c.id)
        if split is not None:
            query = query.where(schema.tasks.c.split == split)
        for row in self._read(lambda connection: connection.execute(query).all()):
            yield {
                "id": row.id,
                "input": json.loads(row.input),
                "reference": json.loads(row.reference),
                "metadata": json.loads(row.metadata),
                "split": row.split,
            }

    def runs(self) -> Iterator[Run]:
        """Stored runs, oldest first."""
        query = sa.select(schema.runs).order_by(schema.runs.c.created_at, schema.runs.c.id)
        for row in self._read(lambda connection: connection.execute(query).all()):
            yield Run(row.id, json.loads(row.metadata), row.created_at)

    def counts(self) -> StoreCounts:
        """How much is stored."""

        def count(connection: sa.Connection) -> StoreCounts:
            def number(table: sa.Table) -> int:
                return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()

            table = schema.trajectories
            by_status = sa.select(table.c.status, sa.func.count()).group_by(table.c.status)
            statuses = {row[0]: row[1] for row in connection.execute(by_status)}
            return StoreCounts(
                tasks=number(schema.tasks),
                runs=number(schema.runs),
                trajectories=sum(statuses.values()),
                steps=number(schema.steps),
                with_outcome=connection.execute(sa.select(sa.func.count(table.c.outcome))).scalar_one(),
                by_status=statuses,
            )

        return self._read(count)

    def _keys(
        self,
        task_ids: Iterable[str] | None,
        status: Status | Iterable[Status] | None,
        run_ids: Iterable[str] | None,
        split: str | None,
    ) -> list[int]:
        table = schema.trajectories
        query = sa.select(table.c.key)
        if status is not None:
            query = query.where(table.c.status.in_([status] if isinstance(status, str) else list(status)))
        if split is not None:
            query = query.join(schema.tasks, schema.tasks.c.id == table.c.task_id)
            query = query.where(schema.tasks.c.split == split)
        queries = [
            query.where(*by_task, *by_run)
            for by_task in _in_batches(table.c.task_id, task_ids)
            for by_run in _in_batches(table.c.run_id, run_ids)
        ]
        return self._read(lambda connection: sorted(k for q in queries for k in connection.scalars(q)))

    def _write(self, work: Callable[[sa.Connection], T]) -> T:
        return _retrying(self._writer, work)

    def _read(self, work: Callable[[sa.Connection], T]) -> T:
        return _retrying(self._engine, work)


def _retrying(engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
    """Run ``work`` in one transaction, again where the database was only busy."""
    for attempt in range(_ATTEMPTS):
        try:
            with engine.begin() as connection:
                return work(connection)
        except sa.exc.DBAPIError as exc:
            if attempt + 1 == _ATTEMPTS or not schema.is_transient(exc):
                where = engine.url.render_as_string(hide_password=True)
                raise StoreError(f"the store at {where} failed: {exc.orig}") from exc
        time.sleep(random.uniform(0.5, 1.0) * 0.02 * 2**attempt)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _in_batches(column: sa.Column[Any], wanted: Iterable[str] | None) -> list[list[sa.ColumnElement[bool]]]:
    """Conditions that together select ``wanted``, each within the databases' limits on parameters."""
    if wanted is None:
        return [[]]
    if isinstance(wanted, str):
        raise StoreError(f"{column.name}s is a list of ids, not the one string {wanted!r}")
    ids = iter(dict.fromkeys(wanted))
    return [[column.in_(batch)] for batch in iter(lambda: list(islice(ids, 1000)), [])]
