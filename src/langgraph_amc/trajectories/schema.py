"""Tables of the trajectory store and how a database is opened: SQLite files and any SQLAlchemy URL."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from langgraph_amc.errors import AMCError, MissingExtraError

SCHEMA_VERSION = 1
WRITES = "amc_writes"
"""Execution option of a connection that will write: SQLite takes its write lock at once."""
_BUSY_SECONDS = 30


class StoreError(AMCError):
    """The trajectory store cannot do what was asked."""


metadata = sa.MetaData()
_ID = sa.String(255)
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

meta = sa.Table(
    "amc_meta",
    metadata,
    sa.Column("key", _ID, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

tasks = sa.Table(
    "amc_tasks",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("input", sa.Text, nullable=False),
    sa.Column("reference", sa.Text, nullable=False),
    sa.Column("metadata", sa.Text, nullable=False),
    sa.Column("split", _ID, index=True),
)

runs = sa.Table(
    "amc_runs",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("metadata", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),  # seconds since the epoch
)

trajectories = sa.Table(
    "amc_trajectories",
    metadata,
    sa.Column("key", _KEY, primary_key=True, autoincrement=True),
    sa.Column("run_id", _ID, sa.ForeignKey(runs.c.id), nullable=False),
    sa.Column("particle", _ID, nullable=False),
    sa.Column("task_id", _ID, index=True),  # no foreign key: a task's id may be known, its content not
    sa.Column("status", _ID, nullable=False),
    sa.Column("outcome", sa.Double),
    sa.Column("log_weight", sa.Double),
    sa.Column("parent", _ID),
    sa.Column("forked_at", sa.Integer),
    sa.Column("shares_key", _KEY, sa.ForeignKey("amc_trajectories.key")),  # whose first steps it shares,
    sa.Column("shares", sa.Integer, nullable=False),  # and how many of them
    sa.Column("states", sa.Integer, nullable=False),
    sa.Column("has_values", sa.Boolean, nullable=False),
    sa.Column("calls", sa.BigInteger, nullable=False),
    sa.Column("input_tokens", sa.BigInteger, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("cost", sa.Double),
    sa.Column("fingerprint", _ID, nullable=False),
    sa.Column("error", sa.Text),
    sa.Column("metadata", sa.Text, nullable=False),
    sa.UniqueConstraint("run_id", "particle"),
)

steps = sa.Table(
    "amc_steps",
    metadata,
    sa.Column("trajectory", _KEY, sa.ForeignKey(trajectories.c.key), primary_key=True, autoincrement=False),
    sa.Column("t", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("segment", sa.Text, nullable=False),
    sa.Column("reward", sa.Double),  # arrived between state t - 1 and state t; none at t = 0
    sa.Column("value", sa.Double),  # V(s_t), where it was scored
)


def open_engine(url_or_path: str | Path) -> sa.Engine:
    """An engine for a path, ``sqlite:///path`` or another SQLAlchemy URL; creates a file's folder."""
    text = str(url_or_path)
    try:
        url = sa.make_url(text) if "://" in text else sa.URL.create("sqlite", database=text)
    except sa.exc.ArgumentError as exc:
        raise StoreError("not a database URL; give a path or e.g. postgresql://user@host/name") from exc
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url)
    try:
        return sa.create_engine(url, pool_pre_ping=True)
    except sa.exc.NoSuchModuleError as exc:
        raise StoreError(f"SQLAlchemy knows no database {url.drivername!r}: give a path or a URL of its own") from exc
    except ModuleNotFoundError as exc:
        if url.drivername == "postgresql+psycopg":
            raise MissingExtraError("A PostgreSQL store", "postgres") from exc
        raise StoreError(f"the driver of {url.drivername} is not installed: {exc}") from exc


def sqlite_file(source: str) -> Path | None:
    """The file of a SQLite database; ``None`` for another database."""
    if "://" not in source:
        return Path(source).expanduser()
    try:
        url = sa.make_url(source)
    except sa.exc.ArgumentError:  # opening it says so
        return None
    plain = url.get_backend_name() == "sqlite" and url.database and not url.database.startswith((":", "file:"))
    return Path(str(url.database)).expanduser() if plain else None


def _sqlite_engine(url: sa.URL) -> sa.Engine:
    if url.database in (None, "", ":memory:"):
        raise StoreError("an in-memory SQLite database is private to one connection: give a file path")
    if not str(url.database).startswith("file:"):
        Path(str(url.database)).expanduser().parent.mkdir(parents=True, exist_ok=True)
        url = url.set(database=str(Path(str(url.database)).expanduser()))
    # NullPool: no connection outlives its transaction, so threads and forked processes share none.
    engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args={"timeout": _BUSY_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, see below
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA foreign_keys=ON")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        # A transaction that reads first and writes later cannot wait for another writer: SQLite fails it
        # at once, whatever the busy timeout. So writers take the lock when they begin.
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def create(connection: sa.Connection) -> None:
    """Create the tables where they are missing, and check the schema version."""
    if connection.dialect.name == "postgresql":
        # CREATE TABLE IF NOT EXISTS is not atomic there: two processes may both find nothing.
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7021420)")
    if not sa.inspect(connection).has_table(meta.name):
        metadata.create_all(connection)
        connection.execute(meta.insert().values(key="schema_version", value=str(SCHEMA_VERSION)))
        return
    found = connection.execute(sa.select(meta.c.value).where(meta.c.key == "schema_version")).scalar_one()
    if int(found) > SCHEMA_VERSION:
        raise StoreError(
            f"the store has schema version {found}, this langgraph-amc knows {SCHEMA_VERSION}: "
            "upgrade langgraph-amc, or open another store"
        )


def is_transient(exc: sa.exc.DBAPIError) -> bool:
    """Whether the same transaction may succeed when it is tried again."""
    if isinstance(exc.orig, sqlite3.OperationalError):
        return "locked" in str(exc.orig) or "busy" in str(exc.orig)
    # PostgreSQL: serialization failure, deadlock.
    return getattr(exc.orig, "sqlstate", None) in ("40001", "40P01") or exc.connection_invalidated
