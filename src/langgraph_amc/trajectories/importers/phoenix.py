"""Phoenix: its spans, as its REST API, clients and data frames export them, and its span annotations.

Format: spans with ``context.trace_id``, ``context.span_id``, ``parent_id`` and attributes that are nested or have
dotted names; annotations inside a span or as records of their own, with ``span_id``, ``name`` and ``result``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langgraph_amc.trajectories.importers.attributes import Raw, read_scores, read_span
from langgraph_amc.trajectories.importers.pages import detect_in, records_of
from langgraph_amc.trajectories.importers.spans import MALFORMED, Score, Span, Unusable
from langgraph_amc.trajectories.importers.values import at, first, nested, seconds


def detect(record: Any) -> bool:
    """Whether this looks like a span, an annotation or a page of them."""
    return detect_in(record, _is_known)


def _is_known(record: Mapping[str, Any]) -> bool:
    return _is_span(record) or _is_annotation(record)


def _is_span(record: Mapping[str, Any]) -> bool:
    return "context.span_id" in record or at(record.get("context"), "span_id") is not None


def _is_annotation(record: Mapping[str, Any]) -> bool:
    return "span_id" in record and "name" in record and ("result" in record or "score" in record)


def read(record: Any, where: str, key: str) -> Iterator[Span | Score | Unusable]:
    """What one record holds: a span with its annotations, an annotation, or a page of either."""
    for item in records_of(record):
        yield from _read(item, where, key)


def _read(record: Any, where: str, key: str) -> Iterator[Span | Score | Unusable]:
    if not detect(record):
        yield Unusable("unknown schema", where)
        return
    try:
        if not _is_span(record):
            yield _score(record)
            return
        raw = _raw(record)
        yield read_span(raw, key)
        yield from read_scores(raw)
        for annotation in first(record, "annotations", "span_annotations") or ():
            yield _score({"span_id": raw.id, **annotation})
    except MALFORMED:
        yield Unusable("unreadable span", where)


def _raw(record: Mapping[str, Any]) -> Raw:
    # rows of a data frame have names like attributes.input.value
    tree = nested({k: v for k, v in record.items() if k not in ("attributes", "events")})
    attributes = record.get("attributes") or tree.get("attributes") or {}
    start = seconds(tree.get("start_time"))
    parent = tree.get("parent_id")
    return Raw(
        trace=str(tree["context"]["trace_id"]),
        id=str(tree["context"]["span_id"]),
        parent=str(parent) if parent else None,
        name=str(tree.get("name", "")),
        start=0.0 if start is None else start,
        end=seconds(tree.get("end_time")),
        attributes={"openinference.span.kind": tree.get("span_kind"), **attributes},
        events=[(str(e.get("name", "")), _flat(e.get("attributes") or {})) for e in record.get("events") or ()],
        failed=str(tree.get("status_code", "")).upper() == "ERROR",
        message=str(tree.get("status_message") or ""),
    )


def _flat(attributes: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in attributes.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found


def _score(annotation: Mapping[str, Any]) -> Score:
    value = first(annotation, "score") if "score" in annotation else at(annotation, "result", "score")
    label = first(annotation, "label") if "label" in annotation else at(annotation, "result", "label")
    return Score(str(annotation["name"]), label if value is None else value, str(annotation["span_id"]))
