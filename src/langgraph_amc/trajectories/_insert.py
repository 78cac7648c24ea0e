"""How records get into the store's tables, within one transaction."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, get_args

import sqlalchemy as sa

from langgraph_amc.trajectories import schema
from langgraph_amc.trajectories._json import dumps
from langgraph_amc.trajectories._rows import Row, check_id, check_number, load, rows_of
from langgraph_amc.trajectories.schema import StoreError
from langgraph_amc.trajectories.transcript import printable
from langgraph_amc.trajectories.types import Status, Trajectory


class TaskLike(Protocol):
    """What the store keeps of a task; `langgraph_amc.tasks.Task` is one."""

    @property
    def id(self) -> str: ...
    @property
    def input(self) -> Any: ...
    @property
    def reference(self) -> Any: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def split(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Record:
    """A trajectory with the task it ran on and the metadata of its run, as far as they are known."""

    trajectory: Trajectory
    task: TaskLike | Mapping[str, Any] | None = None
    run_metadata: Mapping[str, Any] | None = None


def parents_first(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The same trajectories, otherwise in order, with each parent before its clones."""
    by_name = {(t.run_id, t.particle): t for t in trajectories}
    out: list[Trajectory] = []
    placed: set[int] = set()
    for trajectory in trajectories:
        line: list[Trajectory] = []
        ancestor: Trajectory | None = trajectory
        while ancestor is not None and id(ancestor) not in placed:
            placed.add(id(ancestor))
            line.append(ancestor)
            parent = ancestor.parent
            ancestor = None if parent is None else by_name.get((ancestor.run_id, parent))
        out.extend(reversed(line))
    return out


class Inserter:
    """Inserts records through one connection; remembers what it wrote to spare look-ups."""

    def __init__(self, connection: sa.Connection, *, skip_stored: bool) -> None:
        self._connection = connection
        self._skip_stored = skip_stored
        self._tasks: dict[str, dict[str, Any]] = {}
        self._runs: dict[str, str | None] = {}
        # States of the particles of the current run: clones follow their parents.
        self._run_id = ""
        self._particles: dict[str, tuple[int, list[Row]]] = {}

    def insert(self, record: Record) -> bool:
        """Insert one record and say whether it was new."""
        trajectory = record.trajectory
        try:
            rows, head = rows_of(trajectory), _head(trajectory)
            task = None if record.task is None else task_row(record.task)
        except StoreError as exc:
            name = f"particle {trajectory.particle!r} of run {trajectory.run_id!r}"
            raise StoreError(f"{name} cannot be stored: {exc}") from exc
        if task is not None:
            if head["task_id"] not in (None, task["id"]):
                raise StoreError(f"a trajectory of task {head['task_id']!r} was given task {task['id']!r}")
            head["task_id"] = task["id"]
            self._put_task(task)
        self._put_run(trajectory.run_id, record.run_metadata)
        if self._stored(trajectory.run_id, trajectory.particle):
            if self._skip_stored:
                return False
            raise StoreError(
                f"particle {trajectory.particle!r} of run {trajectory.run_id!r} is already stored: "
                "give each run its own id, or pass on_conflict='skip'"
            )
        self._put(trajectory, head, rows)
        return True

    def _put(self, trajectory: Trajectory, head: dict[str, Any], rows: list[Row]) -> None:
        if trajectory.run_id != self._run_id:
            self._run_id, self._particles = trajectory.run_id, {}
        parent = None if trajectory.parent is None else self._particle(trajectory.run_id, trajectory.parent)
        shares = 0 if parent is None else _common(parent[1], rows)
        head |= {"shares_key": parent[0] if parent and shares else None, "shares": shares}
        done = self._connection.execute(schema.trajectories.insert().values(**head))
        assert done.inserted_primary_key is not None  # one row, with an autoincrement key
        key = done.inserted_primary_key[0]
        own = [
            {"trajectory": key, "t": t, "segment": row.segment, "reward": row.reward, "value": row.value}
            for t, row in enumerate(rows[shares:], start=shares)
        ]
        if own:
            self._connection.execute(schema.steps.insert(), own)
        self._particles[trajectory.particle] = (key, rows)

    def _particle(self, run_id: str, particle: str) -> tuple[int, list[Row]] | None:
        if particle not in self._particles:
            key = self._stored(run_id, particle)
            if key is None:
                return None
            self._particles[particle] = (key, rows_of(load(self._connection, [key])[0]))
        return self._particles[particle]

    def _stored(self, run_id: str, particle: str) -> int | None:
        table = schema.trajectories
        where = (table.c.run_id == run_id) & (table.c.particle == particle)
        return self._connection.execute(sa.select(table.c.key).where(where)).scalar()

    def _put_run(self, run_id: str, metadata: Mapping[str, Any] | None) -> None:
        text = None if metadata is None else dumps(dict(metadata), f"the metadata of run {run_id!r}")
        if run_id in self._runs and text in (None, self._runs[run_id]):
            return
        table = schema.runs
        row = {"id": run_id, "metadata": text or "{}", "created_at": time.time()}
        if not self._insert_missing(table, row) and text is not None:
            self._connection.execute(table.update().where(table.c.id == run_id).values(metadata=text))
        self._runs[run_id] = text

    def _put_task(self, row: dict[str, Any]) -> None:
        if self._tasks.get(row["id"]) == row:
            return
        table = schema.tasks
        if not self._insert_missing(table, row):
            found = self._connection.execute(sa.select(table).where(table.c.id == row["id"])).one()
            if (found.input, found.reference) != (row["input"], row["reference"]):
                raise StoreError(
                    f"task {row['id']!r} is already stored with another input or reference: "
                    "values are compared within a task, so give another task another id"
                )
            self._connection.execute(
                table.update().where(table.c.id == row["id"]).values(metadata=row["metadata"], split=row["split"])
            )
        self._tasks[row["id"]] = row

    def _insert_missing(self, table: sa.Table, row: dict[str, Any]) -> bool:
        """Insert ``row`` unless its id exists, also where another transaction is inserting it just now."""
        if self._connection.execute(sa.select(table.c.id).where(table.c.id == row["id"])).first():
            return False
        try:
            with self._connection.begin_nested():
                self._connection.execute(table.insert().values(**row))
        except sa.exc.IntegrityError:
            return False
        return True


def task_row(task: TaskLike | Mapping[str, Any]) -> dict[str, Any]:
    """The row of a task; `StoreError` or `NotJSONError` says what cannot be stored."""
    if not isinstance(task, Mapping):
        task = {name: getattr(task, name) for name in ("id", "input", "reference", "metadata", "split")}
    task_id = check_id(task["id"], "a task's id")
    split = task.get("split")
    return {
        "id": task_id,
        "input": dumps(task["input"], f"the input of task {task_id!r}"),
        "reference": dumps(task.get("reference"), f"the reference of task {task_id!r}"),
        "metadata": dumps(dict(task.get("metadata") or {}), f"the metadata of task {task_id!r}"),
        "split": None if split is None else check_id(split, "a split's name"),
    }


def _head(trajectory: Trajectory) -> dict[str, Any]:
    if trajectory.status not in get_args(Status):
        raise StoreError(f"status {trajectory.status!r} is none of {', '.join(get_args(Status))}")
    names = {"parent": trajectory.parent, "task_id": trajectory.task_id}
    return {
        "run_id": check_id(trajectory.run_id, "run_id"),
        "particle": check_id(trajectory.particle, "particle"),
        **{name: None if text is None else check_id(text, name) for name, text in names.items()},
        "forked_at": trajectory.forked_at,
        "status": trajectory.status,
        "outcome": check_number(trajectory.outcome, "the outcome"),
        "log_weight": check_number(trajectory.log_weight, "the log-weight", minus_infinity=True),
        "states": len(trajectory.segments),
        "has_values": bool(trajectory.values),
        "calls": trajectory.usage.calls,
        "input_tokens": trajectory.usage.input_tokens,
        "output_tokens": trajectory.usage.output_tokens,
        "cost": check_number(trajectory.usage.cost, "the cost"),
        "fingerprint": trajectory.fingerprint,
        # An error message is for people: it must not lose the trajectory it belongs to.
        "error": None if trajectory.error is None else printable(trajectory.error),
        "metadata": dumps(dict(trajectory.metadata), "its metadata"),
    }


def _common(parent: list[Row], clone: list[Row]) -> int:
    shared = 0
    for ours, theirs in zip(clone, parent, strict=False):
        if ours != theirs:
            break
        shared += 1
    return shared
