"""What was proposed and what became of it: a file of JSON lines, appended only, from which a run goes on.

The first line says what the run is about and which library it started from. A line is on the disk before the next thing
is done, so that no proposal is paid twice and no rejected one is tried again. A process that is killed while it writes
leaves a torn last line, which counts as not written.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import AMCError
from langgraph_amc.skills.gate import Verdict
from langgraph_amc.skills.types import Citation, Edit, Proposal

_FORMAT = 1
_START = b'{"record":"start"'
Outcome = Literal["accepted", "rejected", "refused", "stale"]
"""Taken; tried and not taken; not tried because it must not be; not tried because the champion has changed."""


class HistoryError(AMCError):
    """A history that cannot be read, is another run's, or is being written by another process."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """What a round's proposer came up with."""

    round: int
    proposals: tuple[Proposal, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of a proposal.

    Attributes
    ----------
    place: within the round. proposal: as it was made to the champion. champion: digest of the champion afterwards.
    verdict: of the gate, ``None`` where nothing was run. rewards: mean by validation task, empty where not all ran.
    """

    round: int
    place: int
    proposal: Proposal
    outcome: Outcome
    reason: str
    champion: str
    verdict: Verdict | None = None
    rewards: tuple[float, ...] = ()

    @property
    def by_task(self) -> NDArray[np.float64]:
        """The rewards as an array."""
        return np.array(self.rewards, np.float64)


@dataclass(frozen=True, slots=True)
class Look:
    """The held-out tasks were looked at, to compare this library with the start's."""

    library: str


Line = Proposed | Trial | Look


class History:
    """A history that is being written, by one process at a time.

    Parameters
    ----------
    path: the file, made if missing. about: what the run is about. base: digest of the library that it starts from.

    Raises HistoryError for a damaged file, one that starts from another library, or one that is in use.
    """

    def __init__(self, path: str | Path, about: Mapping[str, Any], base: str) -> None:
        self.path = Path(path)
        self._file: IO[bytes] = self.path.open("a+b", buffering=0)
        try:
            _lock(self._file, self.path)
            self.about, self.lines = self._begun(about, base)
        except BaseException:
            self._file.close()
            raise

    def _begun(self, about: Mapping[str, Any], base: str) -> tuple[Mapping[str, Any], list[Line]]:
        """What the file holds, without a torn last line; an empty one gets its first."""
        self._file.seek(0)
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        lines = [_parsed(line, number, self.path) for number, line in enumerate(whole.splitlines(), start=1)]
        if not lines:
            if not _START.startswith(data[: len(_START)]):
                raise HistoryError(f"{self.path} holds something else than a history: move it away")
            self._file.truncate(0)
            self._write({"record": "start", "format": _FORMAT, "about": dict(about), "base": base})
            return about, []
        first, *rest = lines
        if first.get("record") != "start" or first.get("format") != _FORMAT:
            raise HistoryError(f"{self.path} is no history of format {_FORMAT}: give another folder")
        if first["base"] != base:
            raise HistoryError(
                f"{self.path} is of a run that started from another library ({first['base']}, now {base}): the skills' "
                "folder has changed since; give it back as it was, or give another folder for the new run"
            )
        found = [_line(record) for record in rest]
        self._file.truncate(len(whole))
        return first["about"], found

    def proposals(self, number: int) -> tuple[Proposal, ...] | None:
        """What was proposed in a round; ``None`` before that."""
        return next((x.proposals for x in self.lines if isinstance(x, Proposed) and x.round == number), None)

    def trial(self, number: int, place: int) -> Trial | None:
        """What became of a round's proposal; ``None`` before that."""
        trials = (line for line in self.lines if isinstance(line, Trial))
        return next((t for t in trials if (t.round, t.place) == (number, place)), None)

    @property
    def looks(self) -> int:
        """At how many libraries the held-out tasks were looked at."""
        return len({line.library for line in self.lines if isinstance(line, Look)})

    def append(self, line: Line) -> None:
        """Write a line; it is on the disk when this returns."""
        self._write({"record": type(line).__name__.lower(), **asdict(line)})
        self.lines.append(line)

    def close(self) -> None:
        """Close the file, and let others write it."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: Mapping[str, Any]) -> None:
        line = memoryview(json.dumps(_finite(data), allow_nan=False, separators=(",", ":")).encode() + b"\n")
        end = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except BaseException:
            self._file.truncate(end)
            raise


def _parsed(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise HistoryError(f"{path} is damaged in line {number}: {error}") from error
    if not isinstance(found, dict):
        raise HistoryError(f"{path} is damaged in line {number}: it is no record")
    return found


def _line(data: Mapping[str, Any]) -> Line:
    try:
        match data["record"]:
            case "proposed":
                return Proposed(data["round"], tuple(_proposal(p) for p in data["proposals"]))
            case "trial":
                given = {f.name: data[f.name] for f in fields(Trial)}
                verdict = None if given["verdict"] is None else Verdict(**_numbers(given["verdict"]))
                rewards = tuple(math.nan if r is None else r for r in given["rewards"])
                return Trial(
                    **{**given, "proposal": _proposal(data["proposal"]), "verdict": verdict, "rewards": rewards}
                )
            case "look":
                return Look(data["library"])
            case other:
                raise HistoryError(f"the history holds a record {other!r} of a newer format")
    except (KeyError, TypeError, AttributeError) as error:
        raise HistoryError(f"the history is damaged: a record has no {error}") from error


def _proposal(data: Mapping[str, Any]) -> Proposal:
    edits = [
        Edit(**{**edit, **{name: tuple(Citation(**c) for c in edit[name]) for name in ("supports", "contradicts")}})
        for edit in data["edits"]
    ]
    return Proposal(tuple(edits), data["proposer"])


def _numbers(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in data.items()}


def _finite(value: Any) -> Any:
    """NaN as null, which JSON knows."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _lock(file: IO[bytes], path: Path) -> None:
    """Refuse a second writer, on systems that have such locks; the lock goes with the process."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise HistoryError(f"{path} is being written by another process: wait for it, or use another folder") from error
