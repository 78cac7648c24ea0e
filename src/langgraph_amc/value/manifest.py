"""Reading the JSON file that says what a folder's value function is: one way for every kind of value function."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from langgraph_amc.value.errors import FingerprintMismatch, ValueModelError

T = TypeVar("T")
FORMAT = 1
"""Of the files that this version writes, and the only one that it reads."""
REPORT_FILE = "amc_value_report.json"
"""What training said, beside the manifest."""


def read_manifest(path: Path, make: Callable[[dict[str, Any]], T], absent: str) -> T:
    """What ``make`` makes of the JSON object in the file.

    Raises ValueModelError where it is missing (``absent`` says what to do), no JSON, of another format, or where
    ``make`` cannot read it.
    """
    if not path.is_file():
        raise ValueModelError(f"{path.parent} holds no {path.name}, so it is no value function: {absent}")
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if raw.get("format") != FORMAT:
            raise ValueModelError(
                f"{path} has format {raw.get('format')!r} (written by langgraph-amc {raw.get('library_version')!r}), "
                f"this version reads {FORMAT}: train again or install that one"
            )
        return make(raw)
    except (AttributeError, KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise ValueModelError(f"{path} cannot be read: {error}; restore it or train again") from error


def check_transcripts(folder: Path, trained_on: str, given: str | None, *, any_other: bool) -> None:
    """Raises FingerprintMismatch where the transcripts to score are written otherwise than those trained on."""
    if any_other or given is None or given == trained_on:
        return
    raise FingerprintMismatch(
        f"{folder} was trained on transcripts with fingerprint {trained_on!r}, yours is {given!r}: use the transcript "
        "options it was trained with, train again, or pass allow_fingerprint_mismatch=True to accept values of a text "
        "it has never seen"
    )


def check_replaceable(folder: Path, name: str) -> None:
    """Raises ValueModelError for a folder that holds something else than a value function with such a file."""
    if folder.exists() and not (folder.is_dir() and ((folder / name).is_file() or not any(folder.iterdir()))):
        raise ValueModelError(
            f"{folder} exists and holds something else than a value function with {name}: choose another folder"
        )


def write_json(path: Path, found: Mapping[str, Any]) -> None:
    """Write such a file, or the report beside it."""
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
