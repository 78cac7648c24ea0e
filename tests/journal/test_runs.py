"""Runs and their owners: taking over, refusing, several processes, and what is kept in the end."""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.journal import Journal, JournalError, RunInUseError
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.trajectories.types import Usage
from tests.journal.support import ROOT, THREAD, child, contents, fresh, kill, put, reopened, savers, stand

OWN = """
import sys, time
from langgraph_amc.runtime.journal import Journal
from tests.journal.support import put, stand
from langgraph_amc.runtime.saver import ParticleSaver

run = Journal(sys.argv[1]).open("k", seed=7, about={"app": "x"}, input={"messages": ["go"]})
saver = ParticleSaver()
for step in range(3):
    put(saver, step + 1, n=step)
    run.particle(stand("p0", boundary=step, segments=("s",) * (step + 1)), saver)
run.population({"boundary": 2})
run.flush()
print("ready", flush=True)
time.sleep(60)
"""


def test_a_killed_run_is_taken_over_by_the_same_call(url: str) -> None:
    process = child(OWN, url)
    with Journal(url) as journal:
        kill(process)
        [left] = journal.runs()
        assert left.status == "resumable"
        run = journal.open("k", seed=99, about={"app": "another"})
        assert (run.taken_over, run.id, run.seed, run.about) == (True, left.id, 7, {"app": "x"})
        assert run.input == {"messages": ["go"]}
        restored = run.restore()
        assert restored is not None
        assert restored.population == {"boundary": 2}
        record, saver = restored.particles["p0"]
        assert (record.boundary, record.segments) == (2, ("s", "s", "s"))
        assert saver is not None
        assert [t.checkpoint["channel_values"]["n"] for t in saver.list(THREAD)] == [2, 1, 0]
        assert journal.runs(status="running")[0].id == left.id
        run.finish("finished")
        assert not journal.open("k", seed=1, about={}).taken_over, "a run that has ended is not gone on with"


def test_a_live_owner_is_refused_by_name(path: Path) -> None:
    process = child(OWN, str(path))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        with Journal(path) as journal:
            with pytest.raises(RunInUseError, match=f":{process.pid}:") as refused:
                journal.open("k", seed=1, about={})
            assert refused.value.run_id == journal.runs()[0].id
            assert fresh(journal, "other")
            assert journal.prune(0.0, status="running") == 0
    finally:
        process.kill()
        process.communicate(timeout=20)


def test_one_process_does_not_run_a_run_twice(journal: Journal) -> None:
    run = fresh(journal)
    with pytest.raises(RunInUseError):
        journal.open("k", seed=1, about={})
    run.release()
    assert journal.open("k", seed=1, about={}).id == run.id


@pytest.mark.parametrize(("silent", "taken"), [(10.0, False), (31.0, True)])
def test_a_lease_of_another_host_runs_out(path: Path, silent: float, taken: bool) -> None:
    with Journal(path) as journal:
        run = fresh(journal)
        run.release()
        with sqlite3.connect(path) as db:
            db.execute(
                "UPDATE amc_journal_runs SET owner = 'elsewhere/1:4711:99', heartbeat = ?", (time.time() - silent,)
            )
        db.close()
        if not taken:
            with pytest.raises(RunInUseError, match="elsewhere"):
                journal.open("k", seed=1, about={})
        else:
            assert journal.open("k", seed=1, about={}).taken_over


def test_the_pid_of_a_process_that_died_may_be_in_use_again(journal: Journal, path: Path) -> None:
    run = fresh(journal)
    owner = journal.runs()[0].owner
    assert owner is not None
    with sqlite3.connect(path) as db:
        db.execute("UPDATE amc_journal_runs SET owner = ?", (owner.rpartition(":")[0] + ":1",))
    db.close()
    again = journal.open("k", seed=1, about={})
    assert (again.id, again.taken_over) == (run.id, True)


def test_an_owner_is_heard_of_and_notices_that_it_was_replaced(path: Path) -> None:
    with Journal(path, lease=0.3) as journal:
        run = fresh(journal)
        first = journal.runs()[0].heard_of
        assert until(lambda: journal.runs()[0].heard_of > first)
        with sqlite3.connect(path) as db:
            db.execute("UPDATE amc_journal_runs SET owner = 'elsewhere/1:4711:99'")
        db.close()
        assert until(lambda: run.lost)
        with pytest.raises(JournalError, match="taken over"):
            run.particle(stand("p0"), None)
        run.release()
        assert journal.runs()[0].owner == "elsewhere/1:4711:99"


def test_restoring_comes_first_and_once(journal: Journal) -> None:
    run = fresh(journal)
    assert run.restore() is None
    run.particle(stand("p0"), None)
    run.release()
    with pytest.raises(JournalError, match="closed"):
        run.particle(stand("p0"), None)
    again = journal.open("k", seed=1, about={})
    with pytest.raises(JournalError, match=r"restore\(\) first"):
        again.particle(stand("p0"), None)
    again.restore()
    with pytest.raises(JournalError, match="restored already"):
        again.restore()


def test_a_particle_that_is_gone_on_with_from_earlier_loses_what_came_later(journal: Journal) -> None:
    run = fresh(journal)
    run.particle(stand("p0", boundary=2, segments=("a", "b", "c")), None)
    run.particle(stand("p0", boundary=1, segments=("a", "B")), None)
    _, restored = reopened(journal, run)
    assert restored.particles["p0"][0].segments == ("a", "B")


# -- many at once -------------------------------------------------------------------------------

MANY = """
import sys, threading
from langgraph_amc.runtime.journal import Journal
from langgraph_amc.runtime.saver import ParticleSaver
from tests.journal.support import put, stand

def one(journal, key):
    run = journal.open(key, seed=1, about={})
    savers = [ParticleSaver() for _ in range(4)]
    for step in range(12):
        for i, saver in enumerate(savers):
            put(saver, step + 1, n=step)
            run.particle(stand(f"p{i}", boundary=step, segments=("s",) * (step + 1)), saver)
        run.population({"boundary": step})
        run.outbox.begin(f"{key}-{step}", "mail", {})
    run.flush()
    if key.endswith("0"):
        run.finish("finished", {"key": key})
    else:
        run.release()

with Journal(sys.argv[1], keep="everything") as journal:
    threads = [threading.Thread(target=one, args=(journal, f"{sys.argv[2]}/{i}")) for i in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
"""


def test_four_processes_with_several_runs_each_share_one_database(url: str) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", MANY, url, str(i)], stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for i in range(4)
    ]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert errors == [""] * 4
    with Journal(url) as journal:
        runs = journal.runs()
        assert sorted(run.status for run in runs) == ["finished"] * 4 + ["resumable"] * 8
        for summary in runs:
            info = journal.show(summary.id)
            assert info.population == {"boundary": 11}
            assert len(info.effects) == 12
            assert [p.boundary for p in info.particles] == [11] * 4
        left = next(run for run in runs if run.status == "resumable")
        restored = journal.open(left.key, seed=1, about={}).restore()
        assert restored is not None
        for record, saver in restored.particles.values():
            assert saver is not None
            assert len(contents(saver)) == len(record.segments) == 12


async def test_many_writers_of_one_process_wait_without_blocking(journal: Journal) -> None:
    run = fresh(journal)

    async def effect(i: int) -> None:
        assert await run.outbox.abegin(str(i), "mail", {}) is None
        await run.outbox.adone(str(i), i)

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(tick())
    await asyncio.gather(*(effect(i) for i in range(200)))
    ticker.cancel()
    assert ticks > 2
    assert journal._writer.transactions < 100, "what is due together is committed together"
    assert {e.outcome for e in journal.show(run.id).effects} == {"done"}
    await run.afinish("finished")


def test_threads_may_share_a_run(journal: Journal) -> None:
    run = fresh(journal)

    def work(name: str) -> None:
        saver = ParticleSaver()
        for step in range(20):
            put(saver, step + 1, n=step)
            run.particle(stand(name, boundary=step), saver)

    threads = [threading.Thread(target=work, args=(f"p{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _, restored = reopened(journal, run)
    assert [len(contents(s)) for s in savers(restored).values()] == [20] * 8


# -- when it fails ------------------------------------------------------------------------------


def test_a_failed_write_is_heard_of_at_the_next_call(path: Path) -> None:
    journal = Journal(path)
    run = fresh(journal)
    run.flush()
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE amc_journal_particles")
    db.close()
    run.particle(stand("p0"), None)
    with pytest.raises(JournalError, match="no such table"):
        run.flush()
    with pytest.raises(JournalError, match="no such table"):
        run.particle(stand("p1"), None)
    with pytest.raises(JournalError, match="no such table"):
        journal.close()


async def test_a_failed_write_reaches_those_who_wait_on_a_loop(path: Path) -> None:
    journal = Journal(path)
    run = fresh(journal)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE amc_journal_effects")
    db.close()
    waiting = [asyncio.create_task(run.outbox.abegin(str(i), "mail", {})) for i in range(3)]
    assert all(isinstance(e, JournalError) for e in await asyncio.gather(*waiting, return_exceptions=True))


def test_a_database_that_cannot_be_opened_or_is_newer(tmp_path: Path) -> None:
    text = tmp_path / "note.txt"
    text.write_text("this is not a database, however long it may be " * 50)
    with pytest.raises(JournalError, match="not a database"):
        Journal(text)
    newer = tmp_path / "newer.sqlite"
    Journal(newer).close()
    with sqlite3.connect(newer) as db:
        db.execute("UPDATE amc_journal_meta SET value = '99'")
    db.close()
    with pytest.raises(JournalError, match="upgrade"):
        Journal(newer)
    with pytest.raises(ConfigurationError, match="keep"):
        Journal(newer, keep="all")  # type: ignore[arg-type]


def test_a_busy_database_is_waited_for(journal: Journal, path: Path) -> None:
    run = fresh(journal)
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("BEGIN IMMEDIATE")
    threading.Timer(0.5, lambda: db.execute("COMMIT")).start()
    run.particle(stand("p0"), None)
    run.flush()
    assert journal.show(run.id).particles[0].name == "p0"
    db.close()


def test_a_journal_is_pickled_as_where_it_is(path: Path) -> None:
    with Journal(path, keep="nothing") as journal:
        run = fresh(journal)
        with pickle.loads(pickle.dumps(journal)) as copy:
            assert [r.id for r in copy.runs()] == [run.id]
            assert copy._keep == "nothing"


# -- what is kept -------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["record", "everything", "nothing"])
def test_retention(url: str, keep: str) -> None:
    with Journal(url, keep=keep) as journal:  # type: ignore[arg-type]
        run = journal.open("k", seed=3, about={"app": "x"}, input={"secret": "prompt"})
        saver = ParticleSaver()
        put(saver, 1, n=1)
        used = Usage(2, 10, 5, 0.25)
        run.particle(stand("p0", segments=("the prompt",), usage=used, status="finished", output={"n": 1}), saver)
        run.population({"boundary": 1, "checks": [1, 2]})
        run.outbox.begin("e1", "mail", {"to": "you"})
        run.outbox.done("e1", "sent")
        run.finish("finished", {"winner": "p0"})
        sizes = rows(journal)
        if keep == "nothing":
            assert sizes == dict.fromkeys(sizes, 0)
            return
        kept = 1 if keep == "everything" else 0
        assert sizes == {"runs": 1, "particles": 1, "nodes": kept, "steps": 1, "answers": 0, "effects": 1}
        info = journal.show(run.id[:6])
        assert (info.run.status, info.run.summary) == ("finished", {"winner": "p0"})
        assert (info.usage, info.checks) == (used, (1, 2))
        assert [(e.tool, e.arguments, e.outcome) for e in info.effects] == [("mail", {"to": "you"}, "done")]
        assert info.run.ended is not None


def rows(journal: Journal) -> dict[str, int]:
    tables = ("runs", "particles", "nodes", "steps", "answers", "effects")
    with journal._database.engine.connect() as connection:
        return {t: connection.execute(sa.text(f"SELECT count(*) FROM amc_journal_{t}")).scalar_one() for t in tables}


def test_prune_and_list(url: str) -> None:
    with Journal(url, keep="everything") as journal:
        old, new, left, busy = (fresh(journal, key) for key in ("old", "new", "left", "busy"))
        old.particle(stand("p0"), None)
        old.finish("finished")
        new.finish("failed")
        left.release()
        assert [r.id for r in journal.runs()] == [busy.id, left.id, new.id, old.id]
        assert [r.id for r in journal.runs(status="failed")] == [new.id]
        assert [r.id for r in journal.runs(limit=2)] == [busy.id, left.id]
        assert journal.prune(3600.0) == 0
        assert journal.prune(0.0, status="finished") == 1
        assert rows(journal)["particles"] == 0
        assert journal.prune(0.0) == 1
        assert {r.id for r in journal.runs()} == {left.id, busy.id}
        assert journal.prune(0.0, status="resumable") == 1
        assert journal.prune(0.0, status="running") == 0
        assert [r.id for r in journal.runs()] == [busy.id]
        with pytest.raises(JournalError, match="no run begins"):
            journal.show("zzz")
        fresh(journal, "another")
        with pytest.raises(JournalError, match="more than one"):
            journal.show("")
        with pytest.raises(ConfigurationError, match="seconds"):
            journal.prune(float("nan"))


def until(reached: object, seconds: float = 10.0) -> bool:
    """Wait until ``reached()`` is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if reached():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False
