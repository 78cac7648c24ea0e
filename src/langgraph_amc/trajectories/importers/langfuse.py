"""Langfuse: traces with observations and scores, together or as records of their own.

Format: the API's trace (``id``, ``sessionId``, ``input``, ``output``, ``observations``, ``scores``), observation
(``traceId``, ``parentObservationId``, ``type``, ``usageDetails``) and score (``traceId``, ``observationId``, ``name``,
``value``); names in snake case, as the Python client has them, are read too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from langgraph_amc.trajectories.importers.attributes import place
from langgraph_amc.trajectories.importers.pages import detect_in, records_of
from langgraph_amc.trajectories.importers.spans import MALFORMED, Kind, Score, Span, Unusable
from langgraph_amc.trajectories.importers.values import (
    amount,
    at,
    count,
    error_of,
    first,
    is_pause,
    mapping,
    messages_in,
    seconds,
    state_in,
)
from langgraph_amc.trajectories.types import Usage

_KINDS: dict[str, Kind] = {"GENERATION": "llm", "TOOL": "tool"}
_POINT = ("EVENT", "SCORE")


def detect(record: Any) -> bool:
    """Whether this looks like a trace, an observation, a score, or a page of them."""
    return detect_in(record, _is_known)


def _is_known(record: Mapping[str, Any]) -> bool:
    return _is_trace(record) or _is_observation(record) or _is_score(record)


def _is_trace(record: Mapping[str, Any]) -> bool:
    return "id" in record and ("observations" in record or ("sessionId" in record and "traceId" not in record))


def _is_observation(record: Mapping[str, Any]) -> bool:
    return first(record, "traceId", "trace_id") is not None and "type" in record and "id" in record


def _is_score(record: Mapping[str, Any]) -> bool:
    return first(record, "traceId", "trace_id") is not None and first(record, "dataType", "data_type") is not None


def read(record: Any, where: str, key: str) -> Iterator[Span | Score | Unusable]:
    """What one record holds."""
    for item in records_of(record):
        yield from _read(item, where, key)


def _read(record: Any, where: str, key: str) -> Iterator[Span | Score | Unusable]:
    if not detect(record):
        yield Unusable("unknown schema", where)
        return
    try:
        if _is_score(record):
            yield _score(record)
        elif _is_trace(record):
            yield _summary(record, key)
            for item in _objects(record, "observations"):
                if item.get("type") not in _POINT:
                    yield _observation({"traceId": record["id"], **item}, _session(record), key)
            for item in _objects(record, "scores"):
                yield _score({"traceId": record["id"], **item})
        elif record["type"] not in _POINT:
            yield _observation(record, _session(record), key)
    except MALFORMED:
        yield Unusable("unreadable observation", where)


def _objects(trace: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Those that are here; the list of traces has ids only."""
    return [item for item in trace.get(name) or () if isinstance(item, Mapping)]


def _session(record: Mapping[str, Any]) -> str | None:
    found = first(record, "sessionId", "session_id")
    return None if found is None else str(found)


def _summary(trace: Mapping[str, Any], key: str) -> Span:
    """The trace itself, as the list of traces has it: its input and output, without observations."""
    whole = {**trace, "traceId": trace["id"], "type": "SPAN", "startTime": trace.get("timestamp")}
    found = _observation({**whole, "endTime": trace.get("timestamp")}, _session(trace), key)
    return replace(found, summary=True)


def _observation(item: Mapping[str, Any], session: str | None, key: str) -> Span:
    kind = _KINDS.get(str(item["type"]).upper(), "other")
    metadata = mapping(item.get("metadata"))
    metadata = {**metadata, **mapping(metadata.get("attributes"))}
    entered, left = state_in(item.get("input"), key), state_in(item.get("output"), key)
    asked = answered = None
    problem = entered.problem or left.problem
    if kind == "llm":
        asked, lost_in = messages_in(item.get("input"))
        answered, lost_out = messages_in(item.get("output"))
        problem = lost_in or lost_out
    failed = str(item.get("level", "")).upper() == "ERROR"
    message = str(first(item, "statusMessage", "status_message") or "")
    parent = first(item, "parentObservationId", "parent_observation_id")
    start = seconds(first(item, "startTime", "start_time"))
    return Span(
        trace=str(first(item, "traceId", "trace_id")),
        id=str(item["id"]),
        parent=None if parent is None else str(parent),
        name=str(item.get("name") or ""),
        kind=kind,
        start=0.0 if start is None else start,
        end=seconds(first(item, "endTime", "end_time")),
        state_in=None if kind == "llm" else entered.messages,
        state_out=None if kind == "llm" else left.messages,
        asked=asked,
        answered=answered,
        **place(metadata),
        session=session or first(metadata, "langfuse_session_id", "thread_id"),
        error=error_of(message) if failed and not is_pause(message) else None,
        interrupted=left.interrupted or is_pause(message),
        usage=_usage(item) if kind == "llm" else None,
        problem=problem,
    )


def _usage(item: Mapping[str, Any]) -> Usage | None:
    used = mapping(first(item, "usageDetails", "usage_details")) or mapping(item.get("usage"))
    into = count(first(used, "input", "input_tokens", "promptTokens", "prompt_tokens"))
    out = count(first(used, "output", "output_tokens", "completionTokens", "completion_tokens"))
    if into is None and out is None:
        return None
    cost = first(item, "calculatedTotalCost", "calculated_total_cost", "totalCost", "total_cost")
    cost = at(mapping(first(item, "costDetails", "cost_details")), "total") if cost is None else cost
    # 0 is what Langfuse has for a model it knows no price of
    return Usage(1, into or 0, out or 0, amount(cost) or None)


def _score(item: Mapping[str, Any]) -> Score:
    kind = str(first(item, "dataType", "data_type") or "NUMERIC").upper()
    value = first(item, "stringValue", "string_value") if kind == "CATEGORICAL" else item.get("value")
    on = first(item, "observationId", "observation_id")
    trace = str(first(item, "traceId", "trace_id"))
    return Score(str(item["name"]), value, None if on is None else str(on), trace)
