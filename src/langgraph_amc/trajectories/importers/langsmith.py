"""LangSmith: runs as its clients, its bulk export and its web app write them, and feedback.

Format: run records with ``id``, ``trace_id``, ``parent_run_id``, ``run_type``, ``inputs``, ``outputs`` (objects, or
JSON in text columns) and ``feedback_stats``; feedback records with ``run_id``, ``key`` and ``score``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langgraph_amc.trajectories.importers.attributes import place
from langgraph_amc.trajectories.importers.spans import MALFORMED, TRUNCATED, Kind, Score, Span, Unusable
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

_KINDS: dict[str, Kind] = {"llm": "llm", "tool": "tool"}


def detect(record: Any) -> bool:
    """Whether this looks like a run or like feedback on one."""
    return isinstance(record, Mapping) and ("run_type" in record or _is_feedback(record))


def _is_feedback(record: Mapping[str, Any]) -> bool:
    return "key" in record and "run_id" in record


def read(record: Any, where: str, key: str) -> Iterator[Span | Score | Unusable]:
    """What one record holds: a run with its children and feedback, or feedback."""
    if not detect(record):
        yield Unusable("unknown schema", where)
        return
    try:
        if _is_feedback(record):
            yield _score(record, str(record["run_id"]))
            return
        yield _run(record, key)
        yield from _feedback(record)
    except MALFORMED:
        yield Unusable("unreadable run", where)
    for child in record.get("child_runs") or ():
        yield from read(child, where, key)


def _run(run: Mapping[str, Any], key: str) -> Span:
    kind = _KINDS.get(str(run["run_type"]), "other")
    metadata = {**mapping(at(mapping(run.get("extra")), "metadata")), **mapping(run.get("metadata"))}
    parent = run.get("parent_run_id") or next(iter(reversed(run.get("parent_run_ids") or [])), None)
    entered, left = state_in(run.get("inputs"), key), state_in(run.get("outputs"), key)
    asked = answered = None
    problem = entered.problem or left.problem
    if kind == "llm":
        asked, lost_in = messages_in(run.get("inputs") or None)
        answered, lost_out = messages_in(run.get("outputs") or None)
        problem = lost_in or lost_out
    if not (run.get("inputs") or run.get("outputs")) and (run.get("inputs_s3_urls") or run.get("outputs_s3_urls")):
        problem = TRUNCATED  # kept elsewhere
    start = seconds(run.get("start_time"))
    error = run.get("error")
    session = first(metadata, "session_id", "conversation_id", "thread_id")
    return Span(
        trace=str(run.get("trace_id") or run["id"]),
        id=str(run["id"]),
        parent=None if parent is None else str(parent),
        name=str(run.get("name", "")),
        kind=kind,
        start=0.0 if start is None else start,
        end=None if run.get("status") == "pending" else seconds(run.get("end_time")),
        state_in=None if kind == "llm" else entered.messages,
        state_out=None if kind == "llm" else left.messages,
        asked=asked,
        answered=answered,
        **place(metadata),
        session=None if session is None else str(session),
        error=error_of(str(error)) if error and not is_pause(error) else None,
        interrupted=left.interrupted or is_pause(error),
        usage=_usage(run, answered) if kind == "llm" else None,
        problem=problem,
    )


def _usage(run: Mapping[str, Any], answered: tuple[Any, ...] | None) -> Usage | None:
    into, out = count(run.get("prompt_tokens")), count(run.get("completion_tokens"))
    said = getattr(answered[0], "usage_metadata", None) if answered else None
    if not into and not out and said:  # the columns are 0 where the service did not count
        into, out = said["input_tokens"], said["output_tokens"]
    if not into and not out:
        return None
    return Usage(1, into or 0, out or 0, amount(run.get("total_cost")))


def _feedback(run: Mapping[str, Any]) -> Iterator[Score]:
    given = run.get("feedback") or ()
    for item in given:
        yield _score(item, str(run["id"]))
    named = {item.get("key") for item in given}
    for key, stats in mapping(run.get("feedback_stats")).items():
        if key not in named:
            average = at(stats, "avg")
            labels = mapping(at(stats, "values"))  # of categorical feedback, with their counts
            yield Score(key, next(iter(labels)) if average is None and len(labels) == 1 else average, str(run["id"]))


def _score(item: Mapping[str, Any], run: str) -> Score:
    return Score(str(item["key"]), first(item, "score", "value"), run)
