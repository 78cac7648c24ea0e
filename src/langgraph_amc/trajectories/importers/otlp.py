"""OTLP in JSON: a document, or one request a line, as the collector's file exporter writes it.

Format: the JSON encoding of ``ExportTraceServiceRequest`` in the OpenTelemetry protocol, whose ids are
hexadecimal; those of generic Protobuf-to-JSON encoders, in base64, are read too.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from langgraph_amc.trajectories.importers.attributes import Raw, read_scores, read_span
from langgraph_amc.trajectories.importers.spans import MALFORMED, Score, Span, Unusable
from langgraph_amc.trajectories.importers.values import first, seconds


def detect(record: Any) -> bool:
    """Whether this looks like an export request."""
    return isinstance(record, Mapping) and bool(first(record, "resourceSpans", "resource_spans"))


def read(record: Any, where: str, key: str) -> Iterator[Span | Score | Unusable]:
    """The spans of one request, and the evaluations logged as their events."""
    if not detect(record):
        # logs and metrics of the same collector may be in the file: they are not ours to complain about
        if not (isinstance(record, Mapping) and ("resourceLogs" in record or "resourceMetrics" in record)):
            yield Unusable("unknown schema", where)
        return
    for resource in first(record, "resourceSpans", "resource_spans"):
        for scope in first(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans") or ():
            for span in scope.get("spans") or ():
                try:
                    raw = _raw(span)
                    yield read_span(raw, key)
                    yield from read_scores(raw)
                except MALFORMED:
                    yield Unusable("unreadable span", where)


def _raw(span: Mapping[str, Any]) -> Raw:
    status = span.get("status") or {}
    parent = first(span, "parentSpanId", "parent_span_id")
    dropped = [first(span, f"dropped{n}Count", f"dropped_{n.lower()}_count") for n in ("Attributes", "Events")]
    start = seconds(first(span, "startTimeUnixNano", "start_time_unix_nano"))
    return Raw(
        trace=_id(first(span, "traceId", "trace_id"), 16),
        id=_id(first(span, "spanId", "span_id"), 8),
        parent=_id(parent, 8) if parent else None,
        name=str(span.get("name", "")),
        start=0.0 if start is None else start,
        end=seconds(first(span, "endTimeUnixNano", "end_time_unix_nano")),
        attributes=_attributes(span.get("attributes")),
        events=[(str(e.get("name", "")), _attributes(e.get("attributes"))) for e in span.get("events") or ()],
        failed=status.get("code") in (2, "2", "STATUS_CODE_ERROR"),
        message=str(status.get("message", "")),
        dropped=any(int(number or 0) for number in dropped),
    )


def _id(text: Any, size: int) -> str:
    """An id of ``size`` bytes in hexadecimal."""
    if not isinstance(text, str) or not text:
        raise ValueError("a span has ids")
    if len(text) == 2 * size:
        return text.lower()
    try:
        decoded = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("an id that is neither hexadecimal nor base64") from error
    return decoded.hex() if len(decoded) == size else text


def _attributes(pairs: Any) -> dict[str, Any]:
    return {str(pair["key"]): _value(pair.get("value")) for pair in pairs or ()}


def _value(value: Any) -> Any:
    """The value of an ``AnyValue``."""
    if not isinstance(value, Mapping) or not value:
        return None
    kind, content = next(iter(value.items()))
    if kind in ("arrayValue", "array_value"):
        return [_value(item) for item in content.get("values") or ()]
    if kind in ("kvlistValue", "kvlist_value"):
        return _attributes(content.get("values"))
    return int(content) if kind in ("intValue", "int_value") else content
