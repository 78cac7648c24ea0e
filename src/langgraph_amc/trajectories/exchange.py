"""Trajectories as files: JSON Lines and Parquet, exact to read back.

JSON Lines: a header, then one object per line with ``kind`` *task*, *run* or *trajectory*; a task or run
comes before the trajectories that belong to it. Parquet: one row per trajectory, with its task and the
metadata of its run as JSON columns; needs the ``parquet`` extra. A clone's row holds all its segments.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from langgraph_amc.errors import AMCError, MissingExtraError
from langgraph_amc.files import replacing
from langgraph_amc.trajectories._insert import Record, task_row
from langgraph_amc.trajectories._json import dumps
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.trajectories.types import Status, Trajectory, Usage

FORMAT = "langgraph-amc/trajectories"
VERSION = 1
_FIELDS = {f.name for f in fields(Trajectory)}


class ExchangeError(AMCError, ValueError):
    """A file that cannot be read as trajectories; names the file and, where there is one, the line."""


def export_trajectories(
    store: TrajectoryStore,
    path: str | Path,
    *,
    task_ids: Iterable[str] | None = None,
    status: Status | Iterable[Status] | None = None,
    run_ids: Iterable[str] | None = None,
    split: str | None = None,
) -> int:
    """Write what `TrajectoryStore.trajectories` selects to a ``.jsonl`` or ``.parquet`` file.

    Returns how many. The file appears complete or not at all.
    """
    tasks = {task["id"]: task for task in store.tasks()}
    runs = {run.id: run.metadata for run in store.runs()}
    chosen = store.trajectories(task_ids, status, run_ids, split)
    return write(path, (Record(t, tasks.get(t.task_id or ""), runs.get(t.run_id)) for t in chosen))


def import_trajectories(
    store: TrajectoryStore, path: str | Path, *, on_conflict: Literal["error", "skip"] = "error"
) -> int:
    """Add a ``.jsonl`` or ``.parquet`` file to the store, all or nothing; return how many were new.

    Raises `ExchangeError` for a file that is not what `export_trajectories` writes, and `StoreError` as
    `TrajectoryStore.add` does.
    """
    return store.add_records(lambda: read(path), on_conflict=on_conflict)


def write(path: str | Path, records: Iterable[Record]) -> int:
    """Write records to a ``.jsonl`` or ``.parquet`` file and return how many."""
    path = Path(path)
    writer = _format(path, jsonl=_write_jsonl, parquet=_write_parquet)
    with replacing(path) as draft:
        return writer(draft, records)


def read(path: str | Path) -> Iterator[Record]:
    """The records of a ``.jsonl`` or ``.parquet`` file, one after another."""
    path = Path(path)
    return _format(path, jsonl=_read_jsonl, parquet=_read_parquet)(path)


def _format(path: Path, *, jsonl: Callable[..., Any], parquet: Callable[..., Any]) -> Callable[..., Any]:
    if path.suffix in (".jsonl", ".parquet"):
        return jsonl if path.suffix == ".jsonl" else parquet
    raise ExchangeError(f"{path}: unknown format {path.suffix!r}: use a name that ends in .jsonl or .parquet")


def _write_jsonl(path: Path, records: Iterable[Record]) -> int:
    seen: set[tuple[str, str]] = set()
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        print(_line({"kind": "header", "format": FORMAT, "version": VERSION}), file=file)
        for record in records:
            trajectory, task, run = _plain(record)
            for kind, item in (("task", task), ("run", run)):
                if item is not None and (kind, item["id"]) not in seen:
                    seen.add((kind, item["id"]))
                    print(_line({"kind": kind, **item}), file=file)
            print(_line({"kind": "trajectory", **trajectory}), file=file)
            count += 1
    return count


def _read_jsonl(path: Path) -> Iterator[Record]:
    tasks: dict[str, dict[str, Any]] = {}
    runs: dict[str, dict[str, Any]] = {}
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                item = json.loads(line.decode("utf-8"), parse_constant=_refuse)
                kind = item.pop("kind")
                if number == 1 or kind == "header":
                    _check_header(kind, item)
                elif kind == "task":
                    tasks[item["id"]] = item
                elif kind == "run":
                    runs[item["id"]] = item["metadata"]
                elif kind == "trajectory":
                    trajectory = _trajectory(item)
                    yield Record(trajectory, tasks.get(trajectory.task_id or ""), runs.get(trajectory.run_id))
                else:
                    raise ValueError(f"unknown kind {kind!r}")
            except (ValueError, TypeError, KeyError, AttributeError) as exc:
                raise ExchangeError(f"{path}, line {number}: {_reason(exc)}") from exc
    if number == 0:
        raise ExchangeError(f"{path}: the file is empty; an export has at least a header line")


def _check_header(kind: str, item: Mapping[str, Any]) -> None:
    if kind != "header" or item.get("format") != FORMAT:
        raise ValueError(f"the first line of an export says its format, {FORMAT}")
    if item.get("version") != VERSION:
        raise ValueError(f"format version {item.get('version')!r}, this langgraph-amc reads {VERSION}: upgrade it")


def _plain(record: Record) -> tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]:
    """The record as JSON values: trajectory, task, run."""
    t = record.trajectory
    # JSON knows no infinities; -inf is a legal log-weight.
    log_weight = "-inf" if t.log_weight == -math.inf else t.log_weight
    usage = {f.name: getattr(t.usage, f.name) for f in fields(Usage)}
    trajectory = {name: getattr(t, name) for name in sorted(_FIELDS)}
    trajectory |= {"log_weight": log_weight, "usage": usage, "metadata": dict(t.metadata)}
    run = None if record.run_metadata is None else {"id": t.run_id, "metadata": dict(record.run_metadata)}
    if record.task is None:
        return trajectory, None, run
    row = task_row(record.task)
    parts = {name: json.loads(row[name]) for name in ("input", "reference", "metadata")}
    return trajectory, row | parts, run


def _trajectory(item: Mapping[str, Any]) -> Trajectory:
    if unknown := item.keys() - _FIELDS:
        raise ValueError(f"a trajectory has no {sorted(unknown)}")
    values = dict(item)
    for name in ("segments", "rewards", "values"):
        if not isinstance(values.get(name, []), list):
            raise ValueError(f"{name} is not a list")
        values[name] = tuple(values.get(name, []))
    if values.get("log_weight") == "-inf":
        values["log_weight"] = -math.inf
    if not all(isinstance(segment, str) for segment in values["segments"]):
        raise ValueError("segments are strings")
    numbers = (*values["rewards"], *values["values"], values.get("outcome"), values.get("log_weight"))
    if not all(number is None or isinstance(number, (int, float)) for number in numbers):
        raise ValueError("rewards, values, outcome and log_weight are numbers")
    return Trajectory(**values | {"usage": Usage(**item.get("usage", {}))})


def _line(item: Mapping[str, Any]) -> str:
    return dumps(item, f"a {item['kind']}", readable=True)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON; a missing number is null")


def _reason(exc: Exception) -> str:
    return f"{exc} is missing" if isinstance(exc, KeyError) else str(exc)


def _arrow() -> tuple[Any, Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as exc:
        raise MissingExtraError("Parquet", "parquet") from exc
    text, number, integer = pa.string(), pa.float64(), pa.int64()
    schema = pa.schema(
        {
            "run_id": text,
            "particle": text,
            "task_id": text,
            "status": text,
            "segments": pa.list_(text),
            "rewards": pa.list_(number),
            "values": pa.list_(number),
            "outcome": number,
            "log_weight": number,
            "parent": text,
            "forked_at": integer,
            "calls": integer,
            "input_tokens": integer,
            "output_tokens": integer,
            "cost": number,
            "fingerprint": text,
            "error": text,
            "metadata": text,
            "task": text,
            "run": text,
        },
        metadata={"format": FORMAT, "version": str(VERSION)},
    )
    return pa, pq, schema


def _write_parquet(path: Path, records: Iterable[Record]) -> int:
    pa, pq, schema = _arrow()
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        rows: list[dict[str, Any]] = []
        for record in records:
            rows.append(_parquet_row(record))
            count += 1
            if len(rows) == 1000:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                rows = []
        writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    return count


def _parquet_row(record: Record) -> dict[str, Any]:
    trajectory, task, run = _plain(record)
    return {
        **trajectory,
        **trajectory["usage"],
        "log_weight": record.trajectory.log_weight,
        "metadata": dumps(trajectory["metadata"], "the metadata of a trajectory"),
        "task": None if task is None else dumps(task, "a task"),
        "run": None if run is None else dumps(run["metadata"], "the metadata of a run"),
    }


def _read_parquet(path: Path) -> Iterator[Record]:
    pa, pq, schema = _arrow()
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as exc:
        raise ExchangeError(f"{path}: not a Parquet file: {exc}") from exc
    number = 0
    with file:
        _check_parquet(path, file.schema_arrow, schema)
        try:
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    number += 1
                    yield _record(row)
        except (ValueError, TypeError, KeyError, OSError) as exc:
            raise ExchangeError(f"{path}, after row {number}: {_reason(exc)}") from exc


def _check_parquet(path: Path, found: Any, schema: Any) -> None:
    marks = found.metadata or {}
    if marks.get(b"format") != FORMAT.encode():
        raise ExchangeError(f"{path}: not an export of trajectories ({FORMAT})")
    if marks.get(b"version") != str(VERSION).encode() or not found.equals(schema):
        raise ExchangeError(f"{path}: another version of the format, this langgraph-amc reads {VERSION}: upgrade it")


def _record(row: dict[str, Any]) -> Record:
    task, run = row.pop("task"), row.pop("run")
    usage = {f.name: row.pop(f.name) for f in fields(Usage)}
    trajectory = _trajectory({**row, "usage": usage, "metadata": json.loads(row["metadata"])})
    return Record(trajectory, task and json.loads(task), None if run is None else json.loads(run))
