"""Where a journal may be, what is not one, and a disk that is full for a while."""

from __future__ import annotations

import hashlib
import math
import resource
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.journal import Journal, JournalError, RunInUseError, writer
from tests.journal.support import fresh, stand


@pytest.mark.parametrize("source", [5, True, None, [], {}, b"x", "", "  "])
def test_what_is_no_place_is_refused(source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"runs\.sqlite"):
        Journal(source)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lease", [0, -1, 0.01, math.nan, math.inf, True, "x", None])
def test_what_is_no_lease_is_refused(lease: Any, path: Path) -> None:
    with pytest.raises(ConfigurationError, match="lease"):
        Journal(path, lease=lease)
    assert not path.exists()


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_a_folder_is_not_made_up(form: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no folder"):
        Journal(form.format(tmp_path / "mistyped" / "runs.sqlite"))
    with pytest.raises(ConfigurationError, match="is a folder"):
        Journal(form.format(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_another_database_stays_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = hashlib.sha256(other.read_bytes()).hexdigest()
    with pytest.raises(JournalError, match="holds no journal"):
        Journal(other, create=False)
    assert hashlib.sha256(other.read_bytes()).hexdigest() == before
    assert [p.name for p in tmp_path.iterdir()] == ["other.sqlite"]
    with pytest.raises(JournalError, match="no journal"):
        Journal(tmp_path / "none.sqlite", create=False)
    (tmp_path / "text").write_text("no database at all" * 1000)
    with pytest.raises(JournalError, match="cannot be read"):
        Journal(tmp_path / "text", create=False)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_database_without_a_journal_gets_none(url: str) -> None:
    with pytest.raises(JournalError, match="holds no journal"):
        Journal(url, create=False)
    with Journal(url) as made, Journal(url, create=False) as found:
        fresh(made).release()
        assert len(found.runs()) == 1


@contextmanager
def full_disk(path: Path, room: int) -> Iterator[None]:
    """Files can grow to no more than ``room`` bytes over the log of a database."""
    log = Path(f"{path}-wal")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((log.stat().st_size if log.exists() else 0) + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def fill(journal: Journal, key: str = "k") -> None:
    """A run that needs more room than there is."""
    run = journal.open(key, seed=1, about={})
    if run.taken_over:
        run.restore()
    for n in range(20):
        run.particle(stand("p0", boundary=n, segments=("long " * 2000,) * (n + 1)), None)
        run.population({"n": n})
        run.flush()
    run.finish("finished")


def test_a_journal_is_of_use_again_when_the_disk_has_room_again(path: Path) -> None:
    with Journal(path) as journal:
        fresh(journal, "first").finish("finished")
        with full_disk(path, 40_000):
            for _ in range(3):
                with pytest.raises(JournalError, match=r"full|I/O"):
                    fill(journal)
        assert [run.status for run in journal.runs()] == ["resumable", "finished"], "one run, not one for each try"
        fill(journal)
        assert [run.status for run in journal.runs()] == ["finished", "finished"]


def test_a_new_journal_takes_over_what_a_failed_one_holds(path: Path) -> None:
    failed = Journal(path)
    with full_disk(path, 40_000), pytest.raises(JournalError):
        fill(failed)
    with Journal(path) as journal:
        run = journal.open("k", seed=1, about={})
        assert run.taken_over
        run.restore()
        with pytest.raises(RunInUseError):
            failed.open("k", seed=1, about={})
        with pytest.raises(RunInUseError):
            journal.open("k", seed=1, about={})
        run.finish("finished")
    failed.close()


def test_a_closed_journal_leaves_its_runs_to_others_after_a_failure(path: Path) -> None:
    failed = Journal(path)
    with full_disk(path, 40_000), pytest.raises(JournalError):
        fill(failed)
    with pytest.raises(JournalError, match=r"full|I/O"):
        failed.close()
    with Journal(path) as journal:
        assert [(run.status, run.owner) for run in journal.runs()] == [("resumable", None)]


def test_of_threads_that_make_the_same_call_one_runs_it(url: str) -> None:
    """Again and again: a run that is being released is not taken over twice."""
    with Journal(url) as journal:
        at_once = 0
        most = []
        lock = threading.Lock()

        def work() -> None:
            nonlocal at_once
            for _ in range(15):
                try:
                    run = journal.open("k", seed=1, about={})
                except RunInUseError:
                    continue
                with lock:
                    at_once += 1
                    most.append(at_once)
                if run.taken_over:
                    run.restore()
                run.population({})
                with lock:
                    at_once -= 1
                run.release()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(most) == {1}
        journal.open("k", seed=1, about={}).release()


def test_a_locked_database_is_waited_for_but_not_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path)
    monkeypatch.setattr(writer, "PATIENCE", 0.3)
    tried = []

    def locked(connection: sa.Connection) -> int:
        tried.append(time.monotonic())
        if len(tried) < 3 or journal_is_locked:
            raise sqlite3.OperationalError("database is locked")
        return 7

    journal_is_locked = False
    assert journal._database.write(locked) == 7
    journal_is_locked = True
    with pytest.raises(JournalError, match="locked"):
        journal._database.write(locked)
    assert 0.3 < tried[-1] - tried[3] < 2.0
    journal.close()
