"""Tasks: what an agent is asked, with the reference it may be judged by, and sets of them split by task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, overload

from langgraph_amc.errors import AMCError
from langgraph_amc.files import write_whole
from langgraph_amc.trajectories._json import NotJSONError, dumps


class TaskError(AMCError, ValueError):
    """A task or a set of tasks that cannot be used."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thing an agent is asked to do.

    Attributes
    ----------
    id: unique within a set and for ever: another input or reference is another task.
    input: what the app is invoked with; a string becomes one user message.
    reference: what a reward function may compare the result with.
    split: e.g. "train" or "test"; a task is in one split only.
    """

    id: str
    input: Any = field(hash=False)
    reference: Any = field(default=None, hash=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    split: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise TaskError(f"a task's id is a non-empty string, not {self.id!r}")
        if "\x00" in self.id or any("\ud800" <= character <= "\udfff" for character in self.id):
            raise TaskError(f"a task's id is text that files and databases can hold, not {self.id!r}")
        if isinstance(self.input, str):
            # A dict and not a ("user", text) pair: JSON keeps it as it is.
            object.__setattr__(self, "input", {"messages": [{"role": "user", "content": self.input}]})


_FIELDS = {f.name for f in fields(Task)}


class TaskSet(Sequence[Task]):
    """An immutable sequence of tasks with unique ids; slices are sets too.

    Raises `TaskError` where two tasks have one id.
    """

    __slots__ = ("_by_id", "_tasks")

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self._tasks = tuple(tasks)
        self._by_id: dict[str, Task] = {}
        for task in self._tasks:
            if task.id in self._by_id:
                raise TaskError(f"two tasks have the id {task.id!r}: ids must be unique")
            self._by_id[task.id] = task

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Task | Self:
        return type(self)(self._tasks[index]) if isinstance(index, slice) else self._tasks[index]

    def __eq__(self, other: object) -> bool:
        return self._tasks == other._tasks if isinstance(other, TaskSet) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # tasks hold mappings

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}: {len(self.split(name))}" for name in self.splits)
        return f"<TaskSet of {len(self)}{f' ({splits})' if splits else ''}>"

    @property
    def ids(self) -> tuple[str, ...]:
        """The tasks' ids, in order."""
        return tuple(self._by_id)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have tasks, in order of appearance."""
        return tuple(dict.fromkeys(task.split for task in self._tasks if task.split is not None))

    def get(self, task_id: str) -> Task:
        """The task with this id; `TaskError` if there is none."""
        if task_id not in self._by_id:
            raise TaskError(f"no task has the id {task_id!r}")
        return self._by_id[task_id]

    def split(self, name: str) -> TaskSet:
        """The tasks of one split, in order; may be empty."""
        return TaskSet(task for task in self._tasks if task.split == name)

    def random_split(self, fractions: Mapping[str, float], seed: int = 0) -> TaskSet:
        """The same tasks, each assigned to a split, in the expected proportions ``fractions`` (sum 1).

        A task's split depends on its id, the seed and the fractions alone: adding tasks moves no other.
        """
        if not fractions or min(fractions.values()) < 0 or abs(sum(fractions.values()) - 1) > 1e-9:
            raise TaskError(f"split fractions are not negative and sum to 1, got {dict(fractions)}")
        return TaskSet(replace(task, split=_at(fractions, _uniform("split", seed, task.id))) for task in self._tasks)

    def take(self, n: int, seed: int | None = None) -> TaskSet:
        """``n`` tasks in their order: the first ones, or with a seed a random choice by id.

        Raises `TaskError` where the set has fewer.
        """
        if not 0 <= n <= len(self):
            raise TaskError(f"cannot take {n} of {len(self)} tasks")
        if seed is None:
            return TaskSet(self._tasks[:n])
        chosen = set(sorted(self.ids, key=lambda task_id: _uniform("take", seed, task_id))[:n])
        return TaskSet(task for task in self._tasks if task.id in chosen)

    @classmethod
    def from_iterable(cls, tasks: Iterable[Task | Mapping[str, Any] | str]) -> TaskSet:
        """Tasks from tasks, mappings with a task's fields, or bare input strings."""
        out = []
        for number, task in enumerate(tasks, start=1):
            try:
                out.append(_task(task))
            except (TaskError, NotJSONError) as exc:
                raise TaskError(f"task {number}: {exc}") from exc
        return TaskSet(out)

    @classmethod
    def from_jsonl(cls, path: str | Path) -> TaskSet:
        """Tasks from a file of JSON objects, one a line, with a task's fields; blank lines are skipped.

        Only ``input`` is required. A missing id is a hash of input and reference. Errors name the line.
        """
        out: dict[str, Task] = {}
        lines: dict[str, int] = {}
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    task = _task(json.loads(line))
                except (ValueError, NotJSONError, RecursionError) as exc:
                    raise TaskError(f"{path}, line {number}: {exc}") from exc
                if task.id in out:
                    first = lines[task.id]
                    raise TaskError(f"{path}, line {number}: task {task.id!r} is already on line {first}")
                out[task.id], lines[task.id] = task, number
        return TaskSet(out.values())

    def to_jsonl(self, path: str | Path) -> None:
        """Write the tasks so that `from_jsonl` reads the same set."""
        lines = [
            dumps({name: getattr(task, name) for name in _FIELDS}, f"task {task.id!r}", readable=True)
            for task in self._tasks
        ]
        write_whole(path, "".join(line + "\n" for line in lines))


def _task(item: Task | Mapping[str, Any] | str) -> Task:
    if isinstance(item, Task):
        return item
    if isinstance(item, str):
        item = {"input": item}
    if not isinstance(item, Mapping):
        raise TaskError(f"a task is an object with an input, not {type(item).__name__}")
    if unknown := item.keys() - _FIELDS:
        raise TaskError(f"a task has no {sorted(unknown)}: put your own fields into metadata")
    if item.get("input") is None:
        raise TaskError("a task needs an input")
    if not isinstance(item.get("metadata") or {}, Mapping):
        raise TaskError("a task's metadata is an object")
    values = {name: value for name, value in item.items() if value is not None}
    if "id" not in values:
        # Of the input as it is used, so that "text" and its message form are one task.
        values["id"] = _content_id(Task("?", item["input"]).input, item.get("reference"))
    return Task(**values)


def _content_id(task_input: Any, reference: Any) -> str:
    content = dumps({"input": task_input, "reference": reference}, "a task")
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _uniform(purpose: str, seed: int, task_id: str) -> float:
    """A number in [0, 1) that depends on nothing else, the same on every machine."""
    digest = hashlib.sha256(f"{purpose}:{seed}:{task_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6]) / 2**48


def _at(fractions: Mapping[str, float], u: float) -> str:
    edge = 0.0
    for name, fraction in fractions.items():
        edge += fraction
        if u < edge:
            return name
    return next(name for name in reversed(list(fractions)) if fractions[name] > 0)  # rounding: the sum was < u
