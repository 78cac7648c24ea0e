"""Pages: what a paged API answers, a list of records under ``data`` with what says where the next page is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def records_of(record: Any) -> Iterator[Any]:
    """The records of a page, of a page of pages, or the record itself."""
    if isinstance(record, Mapping) and isinstance(record.get("data"), list):
        for item in record["data"]:
            yield from records_of(item)
    else:
        yield record


def detect_in(record: Any, looks_right: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Whether the record, or the first one of the page, looks right."""
    first = next(records_of(record), None)
    return isinstance(first, Mapping) and looks_right(first)
