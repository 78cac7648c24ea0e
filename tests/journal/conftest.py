"""Databases to journal into, and a journal in each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_amc.runtime.journal import Journal
from tests.trajectories.conftest import postgres, postgres_database

__all__ = ["postgres", "postgres_database"]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    found: str = request.getfixturevalue("postgres_database")
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    """A journal in a SQLite file."""
    with Journal(path) as opened:
        yield opened
