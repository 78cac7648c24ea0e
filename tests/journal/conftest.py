"""Databases to journal into, and a journal in each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from langgraph_amc.runtime.journal import Journal
from tests.trajectories.conftest import postgres, postgres_database, url

__all__ = ["postgres", "postgres_database", "url"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    """A journal in a SQLite file."""
    with Journal(path) as opened:
        yield opened
