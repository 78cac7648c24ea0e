"""The store: nothing lost, nothing silently changed, clones stored once; SQLite and a real PostgreSQL."""

from __future__ import annotations

import math
import multiprocessing
import pickle
import sqlite3
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from langchain_core.messages import HumanMessage
from langgraph.graph.message import add_messages

from langgraph_amc.trajectories import Record, StoreError, Trajectory, TrajectoryStore
from langgraph_amc.trajectories._json import NotJSONError
from tests.trajectories.support import clans, collections, run, write_many

SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def store(url):
    with TrajectoryStore(url) as store:
        yield store


def by_name(trajectories):
    return {(t.run_id, t.particle): t for t in trajectories}


@SLOW
@given(particles=clans())
def test_runs_of_clones_come_back_exactly(store, particles):
    run_id = uuid.uuid4().hex
    particles = [replace(p, run_id=run_id) for p in particles]
    assert store.add(particles) == len(particles)
    read = list(store.trajectories(run_ids=[run_id]))
    assert by_name(read) == by_name(particles)
    seen = set()
    for trajectory in read:
        assert trajectory.parent is None or trajectory.parent in seen
        seen.add(trajectory.particle)


def test_what_clones_share_is_stored_once(store):
    parent = Trajectory("r", "p0", ("a", "b", "c", "d"), rewards=(1, 2, 3), values=(0.1, 0.2, None, 0.4))
    clone = replace(parent, particle="p1", segments=("a", "b", "c", "x"), rewards=(1, 2, 9), parent="p0", forked_at=2)
    grandchild = replace(clone, particle="p2", segments=("a", "b", "y"), rewards=(1, 5), parent="p1")
    grandchild = replace(grandchild, values=(0.1, 0.2, 0.9), status="failed", error="boom")
    store.add([grandchild, clone, parent])
    assert store.counts().steps == 4 + 1 + 1
    assert list(store.trajectories()) == [parent, clone, grandchild]
    # A clone may arrive later than its parent, too.
    late = replace(grandchild, particle="p3", segments=("a", "b", "y", "z"), rewards=(1, 5, 0), parent="p2")
    late = replace(late, values=(0.1, 0.2, 0.9, None))
    store.add([late])
    assert store.counts().steps == 4 + 1 + 1 + 1
    assert list(store.trajectories())[-1] == late


def test_a_parent_that_is_unknown_or_differs_from_the_start_costs_space_only(store):
    orphan = Trajectory("r", "p1", ("a", "b"), parent="gone")
    other = Trajectory("r", "p2", ("x", "b"), parent="p1")
    selfish = Trajectory("r", "p3", ("x",), parent="p3")
    store.add([orphan, other, selfish])
    assert list(store.trajectories()) == [orphan, other, selfish]


def test_filters_counts_tasks_and_runs(store):
    train = {"id": "t1", "input": {"q": 1}, "reference": "one", "metadata": {"level": 2}, "split": "train"}
    test = {"id": "t2", "input": {"q": 2}, "split": "test"}
    store.add(run("r1", status="failed", error="ValueError: no"), train, {"seed": 1})
    store.add(run("r2", particles=1, outcome=0.5), test)
    store.add(run("r3", particles=1), None, {"seed": 3})

    def found(**filters):
        return [(t.run_id, t.particle) for t in store.trajectories(**filters)]

    assert found(task_ids=["t1"]) == found(split="train") == found(status="failed") == found(run_ids={"r1"})
    assert found(run_ids=["r1"]) == [("r1", "p0"), ("r1", "p1")]
    assert found(status=["finished", "pruned"]) == [("r2", "p0"), ("r3", "p0")]
    assert found(task_ids=["t1", "t2"], status="finished") == [("r2", "p0")]
    assert found(task_ids=[]) == found(split="nope") == found(task_ids=["t1"], run_ids=["r2"]) == []
    assert len(found(run_ids=[f"r{i}" for i in range(5000)])) == 4
    assert [t.task_id for t in store.trajectories()] == ["t1", "t1", "t2", None]
    assert list(store.tasks()) == [train, {**test, "reference": None, "metadata": {}}]
    assert [t["id"] for t in store.tasks(split="test")] == ["t2"]
    assert [(r.id, r.metadata) for r in store.runs()] == [
        ("r1", {"seed": 1}),
        ("r2", {}),
        ("r3", {"seed": 3}),
    ]
    counts = store.counts()
    assert (counts.tasks, counts.runs, counts.trajectories, counts.steps) == (2, 3, 4, 12)
    assert (counts.with_outcome, counts.by_status) == (1, {"failed": 2, "finished": 2})
    with pytest.raises(StoreError, match="one string"):
        list(store.trajectories(task_ids="t1"))


def test_reading_in_chunks_sees_what_was_there_at_the_start_and_blocks_no_writer(store):
    store.add_records(lambda: (Record(t) for i in range(300) for t in run(f"r{i}", particles=2, states=1)))
    reading = store.trajectories()
    next(reading)
    store.add(run("late"))
    assert sum(1 for _ in reading) == 599


def test_outcomes_can_be_set_later_and_missing_is_not_zero(store):
    store.add(run())
    store.set_outcome("run", "p0", True)
    assert [t.outcome for t in store.trajectories()] == [1.0, None]
    store.set_outcome("run", "p0", None)
    assert [t.outcome for t in store.trajectories()] == [None, None]
    with pytest.raises(StoreError, match="add it first"):
        store.set_outcome("run", "p9", 1.0)
    with pytest.raises(StoreError, match="nan"):
        store.set_outcome("run", "p0", math.nan)


BAD = {
    "reward": {"rewards": (math.nan, 0.0)},
    "infinite reward": {"rewards": (math.inf, 0.0)},
    "value": {"values": (0.0, math.nan, None)},
    "number of values": {"values": (0.0,)},
    "outcome": {"outcome": math.nan},
    "log-weight": {"log_weight": math.nan},
    "infinite log-weight": {"log_weight": math.inf},
    "NUL": {"segments": ("a", "b\x00", "c")},
    "surrogate": {"segments": ("a", "b\ud800", "c")},
    "status": {"status": "great"},
    "id": {"particle": "p" * 256},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD.keys())
def test_what_is_refused_leaves_nothing_behind(store, change):
    good, bad = run()
    with pytest.raises(StoreError, match="cannot be stored"):
        store.add([good, replace(bad, **change)], {"id": "t", "input": 1})
    counts = store.counts()
    assert (counts.tasks, counts.runs, counts.trajectories, counts.steps) == (0, 0, 0, 0)


def test_minus_infinity_is_a_log_weight_and_any_error_text_is_kept(store):
    dead = Trajectory("r", "p0", ("a",), log_weight=-math.inf, status="failed", error="bad \x00 \ud800 byte")
    store.add([dead])
    assert list(store.trajectories()) == [replace(dead, error="bad \ufffd \ufffd\ufffd\ufffd byte")]


def test_a_particle_is_stored_once(store):
    store.add(run())
    with pytest.raises(StoreError, match="already stored"):
        store.add(run(particles=3))
    assert store.counts().trajectories == 2
    assert store.add(run(particles=3), on_conflict="skip") == 1
    assert store.counts().trajectories == 3


def test_a_task_id_stands_for_one_input_and_its_split_may_change(store):
    store.add(run("r1"), {"id": "t", "input": "a"})
    with pytest.raises(StoreError, match="another input"):
        store.add(run("r2"), {"id": "t", "input": "b"})
    with pytest.raises(StoreError, match="was given task"):
        store.add(run("r3", task_id="u"), {"id": "t", "input": "a"})
    store.add(run("r4"), {"id": "t", "input": "a", "split": "test"})
    assert [t["split"] for t in store.tasks()] == ["test"]
    assert store.counts().trajectories == 4


def test_messages_in_a_task_come_back_as_what_langgraph_reads(store):
    store.add(run(), {"id": "t", "input": {"messages": [HumanMessage("hi", id="m1"), ("user", "there")]}})
    messages = next(store.tasks())["input"]["messages"]
    read = add_messages([], messages)
    assert [(m.type, m.content) for m in read] == [("human", "hi"), ("human", "there")]
    with pytest.raises(NotJSONError, match=r"input of task 'u'.*object is not a JSON value"):
        store.add(run("r2"), {"id": "u", "input": object()})
    with pytest.raises(NotJSONError, match="metadata of run 'r2'"):
        store.add(run("r2"), None, {"score": math.nan})


def test_a_newer_schema_is_refused(url):
    with TrajectoryStore(url) as store:
        store.add(run())
    with TrajectoryStore(url) as again:
        assert again.counts().trajectories == 2
        with again._writer.begin() as connection:
            connection.execute(sa.text("UPDATE amc_meta SET value = '99'"))
    with pytest.raises(StoreError, match=r"schema version 99.*upgrade"):
        TrajectoryStore(url)


def test_lost_steps_are_noticed(store):
    store.add(run())
    with store._writer.begin() as connection:
        connection.execute(sa.text("DELETE FROM amc_steps WHERE t = 1"))
    with pytest.raises(StoreError, match="lost steps"):
        list(store.trajectories())


def test_threads_lose_nothing(store):
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda i: store.add(run(f"r{i}"), {"id": f"t{i % 5}", "input": i % 5}), range(40)))
    assert sum(done) == store.counts().trajectories == 80
    assert store.counts().tasks == 5
    assert by_name(store.trajectories()) == {
        key: t for i in range(40) for key, t in by_name(run(f"r{i}", task_id=f"t{i % 5}")).items()
    }


def test_processes_lose_nothing(url):
    workers, adds = 4, 30
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["langgraph_amc.trajectories.store", "tests.trajectories.support"])
    failures = context.Queue()
    processes = [context.Process(target=write_many, args=(url, w, adds, failures)) for w in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [p.exitcode for p in processes] == [0] * workers, failures.get(timeout=1)
    with TrajectoryStore(url) as store:
        assert by_name(store.trajectories()) == {
            key: replace(t, outcome=float(i) if t.particle == "p0" else None)
            for w in range(workers)
            for i in range(adds)
            for key, t in by_name(run(f"{w}-{i}", task_id=f"t{i}")).items()
        }
        assert store.counts().tasks == adds


def test_a_writer_waits_for_another_that_takes_its_time(tmp_path):
    store = TrajectoryStore(tmp_path / "store.db")
    blocker = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")
    threading.Timer(0.3, lambda: blocker.execute("COMMIT")).start()
    assert store.add(run()) == 2


def test_a_store_travels_to_another_process_and_hides_its_password(tmp_path):
    store = TrajectoryStore(tmp_path / "store.db")
    store.add(run())
    assert pickle.loads(pickle.dumps(store)).counts() == store.counts()
    with pytest.raises(StoreError) as failed:
        TrajectoryStore("postgresql://me:secret@127.0.0.1:1/none")
    assert "secret" not in str(failed.value)


def test_what_is_no_store_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("not a database" * 100)
    with pytest.raises(StoreError, match="not a database"):
        TrajectoryStore(tmp_path / "notes.txt")
    with pytest.raises(StoreError, match="file path"):
        TrajectoryStore("sqlite://")
    with pytest.raises(StoreError, match="not a database URL"):
        TrajectoryStore("://")
    with pytest.raises(StoreError, match="no database 'foo'"):
        TrajectoryStore("foo://x")


@SLOW
@given(collected=collections())
def test_whole_collections_come_back_through_one_transaction(store, collected):
    prefix = uuid.uuid4().hex
    records = []
    for task, metadata, particles in collected:
        mine = task and {**task, "id": prefix + task["id"]}
        for p in particles:
            renamed = replace(p, run_id=prefix + p.run_id, task_id=mine and mine["id"])
            records.append(Record(renamed, mine, metadata))
    assert store.add_records(lambda: records) == len(records)
    read = by_name(store.trajectories(run_ids={r.trajectory.run_id for r in records}))
    assert read == by_name(r.trajectory for r in records)
