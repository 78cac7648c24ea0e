"""Exchange files: exact to read back, atomic to import, and errors that name file and line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import uuid

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from langgraph_amc.trajectories import (
    Record,
    StoreError,
    Trajectory,
    TrajectoryStore,
    export_trajectories,
    import_trajectories,
)
from langgraph_amc.trajectories.exchange import ExchangeError, read, write
from tests.trajectories.support import collections, run

FORMATS = pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])


def content(store):
    runs = {r.id: r.metadata for r in store.runs()}
    return list(store.trajectories()), list(store.tasks()), runs, store.counts()


@FORMATS
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(collected=collections())
def test_a_store_comes_back_exactly_clones_shared_again(tmp_path, suffix, collected):
    folder = tmp_path / uuid.uuid4().hex
    source, target = TrajectoryStore(folder / "source.db"), TrajectoryStore(folder / "target.db")
    for task, metadata, particles in collected:
        source.add(particles, task, metadata)
    count = export_trajectories(source, folder / f"export{suffix}")
    assert import_trajectories(target, folder / f"export{suffix}") == count
    assert content(target) == content(source)


@FORMATS
def test_records_without_a_store_come_back_exactly(tmp_path, suffix):
    odd = Trajectory("r", "p0", ("", "\u2028 \x85 ü \x00", "\r\n"), log_weight=-math.inf, rewards=(0.1, 1e-300))
    task = {"id": "t", "input": [1, {"a": None}], "reference": None, "metadata": {}, "split": None}
    records = [Record(odd), *(Record(t, task, {"seed": 1}) for t in run(task_id="t"))]
    assert write(tmp_path / f"x{suffix}", iter(records)) == 3
    assert list(read(tmp_path / f"x{suffix}")) == records


@FORMATS
def test_export_selects_and_replaces_the_file_whole(tmp_path, suffix):
    store, path = TrajectoryStore(tmp_path / "s.db"), tmp_path / "out" / f"x{suffix}"
    store.add(run("r1"), {"id": "t1", "input": 1, "split": "train"})
    store.add(run("r2"), {"id": "t2", "input": 2, "split": "test"})
    assert export_trajectories(store, path) == 4
    assert export_trajectories(store, path, split="test") == 2
    assert {r.task["id"] for r in read(path)} == {"t2"}

    def failing():
        yield Record(run()[0])
        raise OSError("the disk is on fire")

    with pytest.raises(OSError, match="fire"):
        write(path, failing())
    assert len(list(read(path))) == 2
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def _lines(tmp_path):
    store = TrajectoryStore(tmp_path / "source.db")
    store.add(run("r1"), {"id": "t", "input": 1}, {"seed": 1})
    export_trajectories(store, tmp_path / "x.jsonl")
    return (tmp_path / "x.jsonl").read_bytes().splitlines(keepends=True)


def _change(line, **changes):
    return json.dumps({**json.loads(line), **changes}).encode() + b"\n"


CORRUPT = {
    "cut off": (5, lambda line: line[: len(line) // 2], "line 5"),
    "no JSON": (4, lambda line: b"oops\n", "line 4"),
    "no object": (4, lambda line: b"[]\n", "line 4"),
    "not UTF-8": (5, lambda line: line.replace(b"r1", b"\xff\xfe"), "line 5"),
    "unknown kind": (3, lambda line: _change(line, kind="gift"), "line 3: unknown kind 'gift'"),
    "unknown field": (4, lambda line: _change(line, mood=1), r"line 4: a trajectory has no \['mood'\]"),
    "missing field": (4, lambda line: b'{"kind":"trajectory","run_id":"r"}\n', "line 4"),
    "no kind": (4, lambda line: b"{}\n", "line 4: 'kind' is missing"),
    "rewards that do not fit": (5, lambda line: _change(line, rewards=[1.0]), "line 5.*need 2 rewards"),
    "rewards that are text": (5, lambda line: _change(line, rewards=["1", "2"]), "line 5.*are numbers"),
    "segments that are a text": (5, lambda line: _change(line, segments="abc"), "line 5.*not a list"),
    "a segment that is a number": (5, lambda line: _change(line, segments=[1, 2, 3]), "line 5.*strings"),
    "NaN": (5, lambda line: _change(line, outcome=math.nan), "line 5: NaN is not JSON"),
    "no header": (1, lambda line: b"", "line 1.*says its format"),
    "newer": (1, lambda line: _change(line, version=9), "line 1: format version 9.*upgrade"),
}


@pytest.mark.parametrize(("number", "damage", "message"), CORRUPT.values(), ids=CORRUPT.keys())
def test_a_corrupt_line_is_named_and_nothing_is_imported(tmp_path, number, damage, message):
    lines = _lines(tmp_path)
    lines[number - 1] = damage(lines[number - 1])
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines))
    target = TrajectoryStore(tmp_path / "target.db")
    before = target.counts()
    with pytest.raises(ExchangeError, match=message) as error:
        import_trajectories(target, tmp_path / "x.jsonl")
    assert "x.jsonl" in str(error.value)
    assert target.counts() == before


def test_an_import_that_the_store_refuses_is_undone(tmp_path):
    _lines(tmp_path)
    target = TrajectoryStore(tmp_path / "target.db")
    target.add([Trajectory("r1", "p1", ("mine",))])
    with pytest.raises(StoreError, match="already stored"):
        import_trajectories(target, tmp_path / "x.jsonl")
    assert target.counts().trajectories == 1
    assert target.counts().tasks == 0
    assert import_trajectories(target, tmp_path / "x.jsonl", on_conflict="skip") == 1


def test_other_files_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "junk.parquet").write_text("junk")
    with pytest.raises(ExchangeError, match="empty"):
        list(read(tmp_path / "empty.jsonl"))
    with pytest.raises(ExchangeError, match=r"junk\.parquet: not a Parquet file"):
        list(read(tmp_path / "junk.parquet"))
    with pytest.raises(ExchangeError, match=r"\.csv"):
        read(tmp_path / "x.csv")
    write(tmp_path / "x.parquet", [Record(run()[0])])
    table = pq.read_table(tmp_path / "x.parquet")
    pq.write_table(table.replace_schema_metadata({"format": "else"}), tmp_path / "else.parquet")
    pq.write_table(table.drop_columns("cost"), tmp_path / "less.parquet")
    with pytest.raises(ExchangeError, match="not an export"):
        list(read(tmp_path / "else.parquet"))
    with pytest.raises(ExchangeError, match="upgrade"):
        list(read(tmp_path / "less.parquet"))


def test_importing_the_rooms_loads_no_heavy_library():
    code = (
        "import sys, langgraph_amc.trajectories, langgraph_amc.tasks\n"
        "heavy = {'sqlalchemy', 'pyarrow', 'langchain_core', 'langgraph', 'numpy', 'torch'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
        "from langgraph_amc.trajectories import *\n"
        "assert TrajectoryStore and import_trajectories\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
