"""Reading export files: JSON documents, JSON Lines, gzip of either, Parquet; which format each is in."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO, cast

from langgraph_amc.errors import AMCError, MissingExtraError
from langgraph_amc.trajectories.importers import langfuse, langsmith, otlp, phoenix
from langgraph_amc.trajectories.importers.spans import MALFORMED, Score, Span, Unusable

FORMATS: dict[str, ModuleType] = {"otlp": otlp, "langsmith": langsmith, "phoenix": phoenix, "langfuse": langfuse}
_ENOUGH = 50  # records looked at to tell a file's format


class ImportFileError(AMCError, ValueError):
    """A file that cannot be imported at all; one bad record never is this."""


def read_file(path: str | Path, format: str = "auto", key: str = "messages") -> Iterator[Span | Score | Unusable]:
    """What a file of traces holds; ``key`` names the messages in the app's state.

    Raises `ImportFileError` for a file that is missing or in none of the formats.
    """
    path = Path(path)
    if format != "auto" and format not in FORMATS:
        raise ImportFileError(f"unknown format {format!r}: use auto, {', '.join(FORMATS)}")
    module = detect(path) if format == "auto" else FORMATS[format]
    for where, record in records(path):
        if isinstance(record, Unusable):
            yield record
        else:
            try:
                yield from module.read(record, where, key)
            except MALFORMED:
                yield Unusable("unreadable record", where)


def detect(path: Path) -> ModuleType:
    """The format of a file, by its first readable records."""
    for number, (_, record) in enumerate(records(path)):
        for module in FORMATS.values():
            if module.detect(record):
                return module
        if number == _ENOUGH:
            break
    raise ImportFileError(
        f"{path}: no record is of a known format; if you know which it is, say so with format= (--format): "
        f"{', '.join(FORMATS)}"
    )


def records(path: Path) -> Iterator[tuple[str, Any]]:
    """``(where, record)`` for each record, malformed ones as `Unusable`; a list in a document is its items."""
    try:
        if path.suffix == ".parquet":
            yield from _parquet(path)
        else:
            yield from _json(path)
    except OSError as error:
        raise ImportFileError(f"{path} cannot be read: {error}") from error
    except (EOFError, zlib.error):  # what came before it is good
        yield path.name, Unusable("the file ends early", path.name)


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    if (whole := _document(path)) is not None:
        yield from _items(path.name, whole)
        return
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path.name}:{number}"
                try:
                    yield from _items(where, json.loads(line))
                except (ValueError, RecursionError):
                    yield where, Unusable("malformed line", where)


def _opened(path: Path) -> TextIO:
    opened = gzip.open if path.suffix == ".gz" else open
    return cast(TextIO, opened(path, "rt", encoding="utf-8-sig", errors="replace"))


def _document(path: Path) -> Any:
    """What a file holds that is one JSON value over several lines, ``None`` for any other file."""
    with _opened(path) as file:
        line = next((line for line in file if line.strip()), "")
        try:
            json.loads(line or "null")
        except (ValueError, RecursionError):
            try:
                return json.loads(line + file.read())
            except (ValueError, RecursionError, EOFError, zlib.error):
                pass
    return None


def _items(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield f"{where}[{number}]", item
    else:
        yield where, value


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise MissingExtraError("Parquet", "parquet") from error
    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path.name}:{number}", _without_empty(row)
    except pa.ArrowInvalid as error:
        raise ImportFileError(f"{path}: not a Parquet file: {error}") from error


def _without_empty(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the columns that it has no value for: a data frame has them for all."""
    return {name: value for name, value in row.items() if value is not None}
