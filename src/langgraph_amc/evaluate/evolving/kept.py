"""What a run of evolution keeps in its folder, and reading it again: no model, no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from langgraph_amc.evaluate.evolving.report import GenerationReport, ValidationReport, columns_of, generation_report
from langgraph_amc.evolution.history import Log, read
from langgraph_amc.files import write_whole

HISTORY, STORE, MODEL, RESULT = "history.jsonl", "trajectories.sqlite", "model", "result.json"
VALIDATIONS = "validations.json"
"""Names in a run's folder."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A run as its folder tells it.

    Attributes
    ----------
    validations: those until now, as in `Evolution.to_json`.
    result: what ``result.json`` holds (`Evolution.to_json`), where the run has ended where the history does.
    """

    folder: Path
    log: Log
    generations: tuple[GenerationReport, ...]
    validations: tuple[dict[str, Any], ...]
    result: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``; NaN and infinities are ``None``."""
        header = self.log.header.to_json()
        told = {name: header[name] for name in ("strategy", "scope", "layout", "weights", "about")}
        found = {"folder": str(self.folder), **told, "generations": [asdict(g) for g in self.generations]}
        found |= {"validations": self.validations, "result": self.result}
        plain: dict[str, Any] = json.loads(json.dumps(found), parse_constant=lambda _: None)
        return plain


def is_kept(folder: Path) -> bool:
    """Whether this is the folder of a run."""
    return (folder / HISTORY).is_file()


def read_kept(folder: Path) -> Kept:
    """Read a run, which may be going on; raises HistoryError where its history is damaged."""
    log = read(folder / HISTORY)
    generations = tuple(generation_report(record, columns_of(record)) for record in log.records)
    return Kept(folder, log, generations, _validations(folder / VALIDATIONS), _result(folder / RESULT, log))


def write_validations(folder: Path, validations: Sequence[ValidationReport]) -> None:
    """Keep those until now, for whoever looks at a run that goes on."""
    write_whole(folder / VALIDATIONS, json.dumps([asdict(validation) for validation in validations]))


def _validations(path: Path) -> tuple[dict[str, Any], ...]:
    """None where there are none, or they cannot be read: they are in the store as well."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
        return tuple(dict(validation) for validation in found)
    except (OSError, ValueError, TypeError):
        return ()


def _result(path: Path, log: Log) -> dict[str, Any] | None:
    """The result of the history's end; ``None`` where there is none, or one of an earlier end only."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        ended = [generation["weights"] for generation in found["generations"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if ended == [record.weights for record in log.records] else None
