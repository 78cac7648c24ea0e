"""Tables of the journal, and the few statements that its writer uses."""

from __future__ import annotations

import sqlite3
from typing import Any

import sqlalchemy as sa

from langgraph_amc.runtime.journal.errors import JournalError

SCHEMA_VERSION = 3
OPEN = "open"
"""Status of a run that has not ended: it is running, or can be gone on with."""
NO_JOURNAL = "holds no journal: give the one that wrap(…, journal=…) was given"

metadata = sa.MetaData()
_NAME = sa.String(255)
_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _table(name: str, *columns: Any) -> sa.Table:
    return sa.Table(f"amc_journal_{name}", metadata, *columns)


def _part(column: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(column, kind, primary_key=True, autoincrement=False)


meta = _table("meta", sa.Column("key", _NAME, primary_key=True), sa.Column("value", sa.Text, nullable=False))

runs = _table(
    "runs",
    sa.Column("no", _KEY, primary_key=True, autoincrement=True),
    sa.Column("id", _NAME, nullable=False, unique=True),
    sa.Column("key", sa.Text, nullable=False, index=True),
    sa.Column("seed", sa.Text, nullable=False),  # an integer of any size
    sa.Column("status", _NAME, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("heartbeat", sa.Double, nullable=False),  # times are seconds since the epoch
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    sa.Column("about", sa.Text, nullable=False),
    sa.Column("input_type", _NAME),
    sa.Column("input", sa.LargeBinary),
    sa.Column("population", sa.Text),
    sa.Column("summary", sa.Text),
)

particles = _table(
    "particles",
    _part("run", _KEY),
    _part("name", _NAME),
    sa.Column("parent", _NAME),
    sa.Column("forked_at", sa.Integer),
    sa.Column("status", _NAME),
    sa.Column("boundary", sa.Integer, nullable=False),
    sa.Column("step", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("saver", sa.LargeBinary),  # its heads and pending writes; the nodes are shared
    sa.Column("output_type", _NAME),
    sa.Column("output", sa.LargeBinary),
)

nodes = _table(
    "nodes",
    _part("run", _KEY),
    _part("no", sa.Integer),
    sa.Column("type", _NAME, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("edge", sa.LargeBinary),  # the writes on its edge, where some came after the body was written
)

steps = _table(
    "steps",
    _part("run", _KEY),
    _part("particle", _NAME),
    _part("t", sa.Integer),
    sa.Column("segment", sa.LargeBinary, nullable=False),  # not every database's text holds every string
)

answers = _table(
    "answers",
    _part("run", _KEY),
    _part("particle", _NAME),
    _part("boundary", sa.Integer),
    _part("digest", sa.LargeBinary(16)),
    _part("nth", sa.Integer),
    sa.Column("type", _NAME, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

asked = _table(
    "asked",  # the calls on their way, with the most that each may take
    _part("run", _KEY),
    _part("call", sa.LargeBinary(16)),
    sa.Column("worst", sa.Text, nullable=False),
)

effects = _table(
    "effects",
    _part("run", _KEY),
    _part("key", _NAME),
    sa.Column("tool", sa.Text, nullable=False),
    sa.Column("arguments", sa.Text, nullable=False),
    sa.Column("outcome", _NAME, nullable=False),  # unknown until it is done or has failed
    sa.Column("type", _NAME),
    sa.Column("result", sa.LargeBinary),
    sa.Column("begun", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
)

OF_A_RUN = {
    "particles": particles,
    "nodes": nodes,
    "steps": steps,
    "answers": answers,
    "asked": asked,
    "effects": effects,
}
"""Tables whose rows belong to a run."""
STATE = ("nodes", "answers", "asked")
"""Those that only a run needs that can still be gone on with."""


def _upsert(table: sa.Table, keys: int) -> str:
    names = [c.name for c in table.columns]
    marks = ", ".join("?" * len(names))
    change = ", ".join(f"{n} = excluded.{n}" for n in names[keys:])
    # again and again is as good as once, so a transaction whose end was not heard of can be repeated
    return (
        f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks}) "  # noqa: S608 (our own names)
        f"ON CONFLICT ({', '.join(names[:keys])}) DO UPDATE SET {change}"
    )


def _delete(table: sa.Table, condition: str) -> str:
    return f"DELETE FROM {table.name} WHERE {condition}"  # noqa: S608 (our own names)


def _update(table: sa.Table, change: str, condition: str) -> str:
    return f"UPDATE {table.name} SET {change} WHERE {condition}"  # noqa: S608 (our own names)


INSERTS = {
    "particle": _upsert(particles, 2),
    "node": _upsert(nodes, 2),
    "step": _upsert(steps, 3),
    "answer": _upsert(answers, 5),
    "asked": _upsert(asked, 2),
    "effect": _upsert(effects, 2),
}
"""Statements whose order within a transaction does not matter: each row has a place of its own."""

CHANGES = {
    "population": _update(runs, "population = ?", "no = ?"),
    "owner": _update(runs, "owner = ?, heartbeat = ?", "no = ?"),
    "end": _update(runs, "status = ?, summary = ?, ended = ?, owner = NULL", "no = ?"),
    "forget input": _update(runs, "input_type = NULL, input = NULL", "no = ?"),
    "forget savers": _update(particles, "saver = NULL, output_type = NULL, output = NULL", "run = ?"),
    "effect ends": _update(effects, "outcome = ?, type = ?, result = ?, ended = ?", "run = ? AND key = ?"),
    "edge": _update(nodes, "edge = ?", "run = ? AND no = ?"),
    "forget node": _delete(nodes, "run = ? AND no = ?"),
    "forget steps": _delete(steps, "run = ? AND particle = ? AND t >= ?"),
    "forget answers": _delete(answers, "run = ? AND particle = ? AND boundary < ?"),
    "forget asked": _delete(asked, "run = ? AND call = ?"),
    "drop run": _delete(runs, "no = ?"),
    **{f"drop {name}": _delete(table, "run = ?") for name, table in OF_A_RUN.items()},
}

STATEMENTS = {**INSERTS, **CHANGES}


def statements(dialect: str) -> dict[str, str]:
    """The statements in the parameter style of a database."""
    return {k: v if dialect == "sqlite" else v.replace("?", "%s") for k, v in STATEMENTS.items()}


def create(connection: sa.Connection) -> None:
    """Create the tables where they are missing, and check the schema version."""
    lock(connection, "amc_journal")
    if not sa.inspect(connection).has_table(meta.name):
        metadata.create_all(connection)
        connection.execute(meta.insert().values(key="schema_version", value=str(SCHEMA_VERSION)))
        return
    check(connection)


def check(connection: sa.Connection) -> None:
    """Raise `JournalError` unless the database holds a journal that is not too new."""
    if not sa.inspect(connection).has_table(meta.name):
        raise JournalError(f"the database {NO_JOURNAL}")
    found = connection.execute(sa.select(meta.c.value).where(meta.c.key == "schema_version")).scalar_one()
    if int(found) < SCHEMA_VERSION:
        raise JournalError(
            f"the journal has schema version {found}, written by an older langgraph-amc; this one writes "
            f"{SCHEMA_VERSION}: open another journal, and end the runs of this one with the version that began them"
        )
    if int(found) > SCHEMA_VERSION:
        raise JournalError(
            f"the journal has schema version {found}, this langgraph-amc knows {SCHEMA_VERSION}: "
            "upgrade langgraph-amc, or open another journal"
        )


def lock(connection: sa.Connection, name: str) -> None:
    """Keep others out of what ``name`` stands for until the transaction ends; in SQLite it does so anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(7021421, hashtext(:name))"), {"name": name})


def run_faster(engine: sa.Engine) -> None:
    """SQLite: no fsync per transaction; with its write-ahead log that is safe against a killed process."""
    if engine.dialect.name != "sqlite":
        return

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _: Any) -> None:
        connection.execute("PRAGMA synchronous=NORMAL")
