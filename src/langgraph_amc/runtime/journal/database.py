"""The database of a journal: where it may be, opening it, and transactions that are tried again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.journal import schema
from langgraph_amc.runtime.journal.errors import JournalError
from langgraph_amc.runtime.journal.writer import retrying
from langgraph_amc.trajectories.schema import WRITES, open_engine, sqlite_file

T = TypeVar("T")


class Database:
    """A SQLite file or another SQL database that holds a journal.

    Parameters
    ----------
    source: a path or a SQLAlchemy URL.
    create: whether a database without a journal gets one; if not, it is an error and stays as it is.
    """

    def __init__(self, source: str | Path, *, create: bool) -> None:
        _check_place(source, create=create)
        self.source = str(source)
        engine = open_engine(source)
        schema.run_faster(engine)
        self._reading = engine
        self.engine = engine.execution_options(**{WRITES: True})
        self.sql = schema.statements(engine.dialect.name)
        try:
            if create:
                self.write(schema.create)
            else:
                self.read(schema.check)
        except BaseException:
            self.dispose()
            raise

    def __str__(self) -> str:
        return self.engine.url.render_as_string(hide_password=True)

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """The result of ``work`` in a transaction that may change something."""
        return self._transaction(self.engine, work)

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """The result of ``work`` in a transaction that only reads."""
        return self._transaction(self._reading, work)

    def dispose(self) -> None:
        """Close its connections."""
        self._reading.dispose()

    def _transaction(self, engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
        def once() -> T:
            with engine.begin() as connection:
                return work(connection)

        try:
            return retrying(once)
        except (sa.exc.DBAPIError, sqlite3.OperationalError) as error:
            cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
            raise JournalError(f"the journal at {self} failed: {cause}") from error


def _check_place(source: str | Path, *, create: bool) -> None:
    """Say what is wrong before a file or a folder is made, or somebody else's database is changed."""
    if not isinstance(source, str | Path) or not str(source).strip():
        raise ConfigurationError(
            f"a journal is a SQLite file or a database URL, like 'runs.sqlite' or 'postgresql://user@host/name', "
            f"got {source!r}"
        )
    file = sqlite_file(str(source))
    if file is None:
        return
    if not file.parent.is_dir():
        raise ConfigurationError(f"the journal {file} cannot be made: there is no folder {file.parent}; make it first")
    if file.is_dir():
        raise ConfigurationError(f"{file} is a folder: name a file in it, like {file / 'runs.sqlite'}")
    if create:
        return
    if not file.exists():
        raise JournalError(f"there is no journal {file}: wrap(…, journal={str(file)!r}) begins one")
    _check_file(file)


def _check_file(file: Path) -> None:
    """Raise `JournalError` unless a file is a journal, without changing a byte of it."""
    # opening it as our own would switch it to another journal mode
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    try:
        found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (schema.meta.name,)).fetchone()
    except sqlite3.DatabaseError as error:
        raise JournalError(f"{file} cannot be read as a journal: {error}") from error
    finally:
        connection.close()
    if found is None:
        raise JournalError(f"{file} {schema.NO_JOURNAL}")
