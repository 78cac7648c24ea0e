"""The history of a run: a file of JSON lines from which its weights can be made again, anywhere.

The first line says what the run started from; each further one is a generation: rewards, update, state, hash of the
weights after it. Lines are only ever appended, and each is on the disk before the next generation begins. A process
that is killed while it writes leaves a torn last line, which is as if that generation had not been finished.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import AMCError
from langgraph_amc.evolution.asktell import State, Update
from langgraph_amc.evolution.errors import HistoryError
from langgraph_amc.evolution.fields import an_object, is_number, items, nested, text
from langgraph_amc.evolution.strategy import Strategy

_FORMAT = 1
_ADVICE = "go on with what it was started with, or write to a new file"


@dataclass(frozen=True, slots=True)
class Header:
    """What a run started from.

    Attributes
    ----------
    layout: fingerprint of what is perturbed. weights: hash of the starting weights. scope: of the layout.
    about: whatever the caller wants to find again (plain data), e.g. the model's folder and the tasks' file.
    """

    strategy: Strategy
    scope: str
    layout: str
    weights: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "record": "start",
            "format": _FORMAT,
            "strategy": self.strategy.to_json(),
            "scope": self.scope,
            "layout": self.layout,
            "weights": self.weights,
            "about": dict(self.about),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Header:
        """Raises HistoryError, or the strategy's ConfigurationError, for a damaged field."""
        data = an_object(data, "the line")
        if data.get("record") != "start" or data.get("format") != _FORMAT:
            raise HistoryError(f"not a history of format {_FORMAT}: its first line must be the record of the start")
        strategy = Strategy.from_json(nested(data, "strategy"))
        scope, layout, weights = (text(data, name) for name in ("scope", "layout", "weights"))
        return cls(strategy, scope, layout, weights, nested(data, "about"))


@dataclass(frozen=True, slots=True)
class Record:
    """One generation: ``rewards`` [members, tasks] (NaN missing), and ``state`` and hash of the weights after it."""

    update: Update
    rewards: NDArray[np.float64]
    state: State
    weights: str
    notes: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        rewards = [[None if math.isnan(r) else r for r in row] for row in self.rewards.tolist()]
        return {
            "record": "generation",
            "update": self.update.to_json(),
            "rewards": rewards,
            "state": self.state.to_json(),
            "weights": self.weights,
            "notes": dict(self.notes),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Record:
        """Raises HistoryError for a damaged field."""
        data = an_object(data, "the line")
        if data.get("record") != "generation":
            raise HistoryError(f"a generation was expected, got a record of kind {data.get('record')!r}")
        update, state = Update.from_json(nested(data, "update")), State.from_json(nested(data, "state"))
        if state.number != update.generation.number + 1:
            raise HistoryError(f"generation {update.generation.number} has the state of generation {state.number - 1}")
        rows = items(data, "rewards", _is_row, "rows of numbers and null")
        if len(rows) != len(update.generation.members) or len(set(map(len, rows))) != 1:
            raise HistoryError(f"the field 'rewards' must have {len(update.generation.members)} rows of one length")
        rewards = np.array([[math.nan if r is None else r for r in row] for row in rows], np.float64)
        return cls(update, rewards, state, text(data, "weights"), nested(data, "notes"))


@dataclass(frozen=True, slots=True)
class Log:
    """A history as read from its file."""

    header: Header
    records: tuple[Record, ...]

    @property
    def state(self) -> State:
        """Where the run goes on."""
        return self.records[-1].state if self.records else State()

    @property
    def weights(self) -> str:
        """Hash of the weights after the last generation."""
        return self.records[-1].weights if self.records else self.header.weights


def read(path: str | Path) -> Log:
    """Read a history, without a torn last line.

    Raises HistoryError if the file is missing, empty, damaged, or its generations do not follow one another.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise HistoryError(f"the history {path} cannot be read: {error}") from error
    log = _parse(data[: _whole(data)], path)
    if log is None:
        raise HistoryError(f"the history {path} is empty: its run was killed before it began; start it again")
    return log


class History:
    """A history that is being written; one process at a time, closed by ``close`` or ``with``.

    Parameters
    ----------
    path: the file; made if missing. If it is there, the run goes on from ``log``.
    header: must be that of the file, except for ``about``.

    Raises
    ------
    HistoryError: the file is another run's, is damaged, or is being written by another process.
    """

    def __init__(self, path: str | Path, header: Header) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = self.path.open("a+b", buffering=0)
        try:
            _lock(self._file, self.path)
            self._file.seek(0)
            data = self._file.read()
            found = _parse(data[: _whole(data)], self.path)
            if found is None and not _begun(data):
                raise HistoryError(f"{self.path} holds something else than a history: move it away")
            if found is not None:
                _same(found.header, header, self.path)
            self._file.truncate(_whole(data) if found is not None else 0)
            if found is None:
                self._write(header.to_json())
                _sync_folder(self.path.parent)
        except BaseException:
            self._file.close()
            raise
        self._log = found or Log(header, ())

    @property
    def log(self) -> Log:
        """What has been written so far."""
        return self._log

    def append(self, record: Record) -> None:
        """Write one generation; it is on the disk when this returns.

        Raises HistoryError if it is not the next one.
        """
        expected = self._log.state.number
        if record.update.generation.number != expected or record.state.number != expected + 1:
            raise HistoryError(f"generation {record.update.generation.number} was given, {expected} is the next one")
        self._write(record.to_json())
        self._log = Log(self._log.header, (*self._log.records, record))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> History:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, data: dict[str, Any]) -> None:
        """Append a whole line or nothing, also if the disk is full."""
        line = memoryview(json.dumps(data, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        end = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except BaseException:
            self._file.truncate(end)
            raise


def _whole(data: bytes) -> int:
    """Length without a torn last line: one that has no end, or that is no JSON (a page that was never written)."""
    end = data.rfind(b"\n") + 1
    last = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    try:
        json.loads(data[last:end] or b"0")
    except (ValueError, RecursionError):
        return last
    return end


def _begun(data: bytes) -> bool:
    """Whether this may be what is left of a first line: it is torn, or its page was never written."""
    head = b'{"record":"start"'
    return not data.strip(b"\0") or data.startswith(head) or head.startswith(data)


def _parse(data: bytes, path: str | Path) -> Log | None:
    lines = data.splitlines()
    if not lines:
        return None
    number = 0
    try:
        header = Header.from_json(json.loads(lines[0]))
        records = []
        for number, line in enumerate(lines[1:], start=1):
            records.append(Record.from_json(json.loads(line)))
            if records[-1].update.generation.number != number - 1:
                raise HistoryError(f"generation {number - 1} was expected")
    except (AMCError, ValueError, RecursionError) as error:
        back = "restore it from a copy" + (", or cut it before that line and go on from there" if number else "")
        raise HistoryError(f"the history {path} is damaged in line {number + 1}: {error}; {back}") from error
    return Log(header, tuple(records))


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and bool(row) and all(r is None or is_number(r) for r in row)


def _same(found: Header, wanted: Header, path: Path) -> None:
    old, new = found.to_json(), wanted.to_json()
    changed = [key for key in old["strategy"] if old["strategy"][key] != new["strategy"][key]]
    if changed:
        differs = ", ".join(f"{key} {old['strategy'][key]} there, {new['strategy'][key]} now" for key in changed)
        raise HistoryError(f"{path} is of a run with another strategy ({differs}): {_ADVICE}")
    for key, what in (("scope", "scope"), ("layout", "model, with other parameters"), ("weights", "starting weights")):
        if old[key] != new[key]:
            raise HistoryError(f"{path} is of a run with another {what} ({old[key]} there, {new[key]} now): {_ADVICE}")


def _lock(file: IO[bytes], path: Path) -> None:
    """Refuse a second writer, on systems that have such locks; the lock goes with the process."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise HistoryError(f"{path} is being written by another process: wait for it, or use another file") from error


def _sync_folder(folder: Path) -> None:
    """A new file's name is on the disk only when its folder is."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
