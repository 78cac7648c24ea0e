"""Spans with attributes: OpenInference's conventions, OpenTelemetry's gen_ai, and both in one span.

Attribute names: OpenInference semantic conventions; OpenTelemetry semantic conventions for generative AI, from
the indexed ``gen_ai.prompt.0.content`` and message events to ``gen_ai.input.messages``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph_amc.trajectories.importers.messages import REDACTED_TEXT
from langgraph_amc.trajectories.importers.spans import TRUNCATED, Kind, ParticleOf, Score, Span
from langgraph_amc.trajectories.importers.values import (
    amount,
    at,
    count,
    error_of,
    first,
    is_pause,
    mapping,
    messages_in,
    nested,
    parsed,
    state_in,
)
from langgraph_amc.trajectories.types import Usage

_MODEL_CALLS = ("chat", "text_completion", "generate_content", "completion")
_EVENT_ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_DETAILS = "gen_ai.client.inference.operation.details"
_EVALUATION = "gen_ai.evaluation.result"
_GIVEN_LATER = "amc.reward"


@dataclass(frozen=True, slots=True)
class Raw:
    """A span as formats with attributes have it: ``events`` are pairs of a name and attributes."""

    trace: str
    id: str
    parent: str | None
    name: str
    start: float
    end: float | None
    attributes: Mapping[str, Any]
    events: Sequence[tuple[str, Mapping[str, Any]]] = ()
    failed: bool = False
    message: str = ""
    dropped: bool = False
    """Whether attributes or events were lost on the way."""


def read_span(raw: Raw, key: str) -> Span:
    """The span; ``key`` names the messages in the app's state."""
    tree = nested(raw.attributes)
    where = mapping(tree.get("metadata"))
    kind = _kind(tree)
    entered, left = state_in(at(tree, "input", "value"), key), state_in(at(tree, "output", "value"), key)
    asked = answered = None
    problem = entered.problem or left.problem
    if kind == "llm":
        asked, lost_in = _asked(tree, raw.events)
        answered, lost_out = _answered(tree, raw.events)
        problem = lost_in or lost_out
        if raw.dropped:  # a message may be among what was lost, unless the whole was logged in one piece
            asked, answered = asked if _value(tree, "input") else None, answered if _value(tree, "output") else None
    if problem is None and raw.dropped:
        problem = TRUNCATED
    pauses = any(name == "exception" and is_pause(a.get("exception.type")) for name, a in raw.events)
    return Span(
        trace=raw.trace,
        id=raw.id,
        parent=raw.parent,
        name=raw.name,
        kind=kind,
        start=raw.start,
        end=raw.end,
        state_in=None if kind == "llm" else entered.messages,
        state_out=None if kind == "llm" else left.messages,
        asked=asked,
        answered=answered,
        **place(where),
        session=_text(first(at(tree, "session") or {}, "id") or at(tree, "gen_ai", "conversation", "id")),
        error=None if pauses or not raw.failed else _error(raw),
        interrupted=left.interrupted or pauses,
        usage=_usage(tree) if kind == "llm" else None,
        problem=problem,
        particle=_particle(raw.name, tree),
        run=_text(at(tree, "amc", "run", "id")),
    )


def _particle(name: str, tree: Mapping[str, Any]) -> ParticleOf | None:
    """The particle whose whole life a span is; segments and effects of it are none."""
    about = at(tree, "amc", "particle") or {}
    if not name.startswith("amc.particle") or about.get("id") is None:
        return None
    outcome = _text(about.get("outcome"))
    return ParticleOf(str(about["id"]), _text(about.get("parent_id")), count(about.get("forked_at")), outcome)


def read_scores(raw: Raw) -> list[Score]:
    """Evaluation results that were logged as events of the span.

    Those that were given when a run was over have a span of their own, below the one that they are about.
    """
    about = raw.parent if raw.name == _GIVEN_LATER else raw.id
    found = []
    for name, attributes in raw.events:
        if name == _EVALUATION:
            result = at(nested(attributes), "gen_ai", "evaluation") or {}
            value = at(result, "score", "value")
            label = at(result, "score", "label")
            found.append(Score(str(result.get("name")), label if value is None else value, about, raw.trace))
    return found


def place(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Where in a graph a span ran, from the metadata that LangGraph gives to everything it runs."""
    path = [
        part.split(":")[0]
        for part in str(metadata.get("langgraph_checkpoint_ns") or metadata.get("langgraph_node") or "").split("|")
        if part and not part.isdigit()
    ]
    triggers = metadata.get("langgraph_triggers") or ()
    inner = len(path) > 1  # the step of a subgraph counts from its own beginning
    return {
        "node": path[0] if path else None,
        "step": None if inner else count(metadata.get("langgraph_step")),
        "pushed": "__pregel_push" in triggers,
    }


def _kind(tree: Mapping[str, Any]) -> Kind:
    named = at(tree, "openinference", "span", "kind")
    does = at(tree, "gen_ai", "operation", "name")
    if str(named).upper() == "LLM" or does in _MODEL_CALLS:
        return "llm"
    if str(named).upper() == "TOOL" or does == "execute_tool":
        return "tool"
    if named is None and does is None and (at(tree, "gen_ai", "prompt") or at(tree, "gen_ai", "completion")):
        return "llm"
    return "other"


Found = tuple[tuple[Any, ...] | None, str | None]


def _asked(tree: Mapping[str, Any], events: Sequence[tuple[str, Mapping[str, Any]]]) -> Found:
    details = next((nested(a) for name, a in events if name == _DETAILS), {})
    said = [_of_event(name, a) for name, a in events if name in _EVENT_ROLES]
    rules = at(tree, "gen_ai", "system_instructions") or at(details, "gen_ai", "system_instructions")
    return _first_of(
        _value(tree, "input"),
        at(tree, "llm", "input_messages"),
        _with_rules(rules, at(tree, "gen_ai", "input", "messages") or at(details, "gen_ai", "input", "messages")),
        at(tree, "gen_ai", "prompt"),
        said,
    )


def _answered(tree: Mapping[str, Any], events: Sequence[tuple[str, Mapping[str, Any]]]) -> Found:
    details = next((nested(a) for name, a in events if name == _DETAILS), {})
    choice = next((a for name, a in events if name == "gen_ai.choice"), None)
    said = None if choice is None else [{**_of_event("", choice), "role": "assistant"}]
    return _first_of(
        _value(tree, "output"),
        at(tree, "llm", "output_messages"),
        at(tree, "gen_ai", "output", "messages") or at(details, "gen_ai", "output", "messages"),
        _as_answers(at(tree, "gen_ai", "completion")),
        said,
    )


def _as_answers(completions: Any) -> Any:
    return [{"role": "assistant", **c} for c in completions] if isinstance(completions, list) else None


def _value(tree: Mapping[str, Any], name: str) -> Any:
    """A model call's whole input or output, where LangChain logged it: it has more than the attributes."""
    value = at(tree, name, "value")
    whole = isinstance(value, str) and ('"generations"' in value or '"messages"' in value or value == REDACTED_TEXT)
    return ({"role": "user", "content": value} if value == REDACTED_TEXT else value) if whole else None


def _first_of(*candidates: Any) -> Found:
    problem = None
    for candidate in candidates:
        found, lost = messages_in(candidate)
        if found:
            return found, None
        problem = problem or lost
    return None, problem


def _with_rules(rules: Any, messages: Any) -> Any:
    """Messages with the system's instructions, which the gen_ai conventions log apart, before them."""
    try:
        rules, messages = parsed(rules), parsed(messages)
    except ValueError:
        return "[cut"  # not JSON: the reader of messages says so
    return [{"role": "system", "parts": rules}, *messages] if rules and messages else messages


def _of_event(name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A message of the older message events, whose body some exporters write as JSON."""
    body = {k.removeprefix("gen_ai."): v for k, v in attributes.items()}
    for part in ("event.body", "event_body", "body", "message"):
        body |= mapping(body.pop(part, None))
    found = {"role": _EVENT_ROLES.get(name, "assistant"), **body}
    if name == "gen_ai.tool.message":
        found.setdefault("tool_call_id", body.get("id"))
    if isinstance(found.get("tool_calls"), str):
        found["tool_calls"] = parsed(found["tool_calls"])
    found.pop("id", None)
    return found


def _usage(tree: Mapping[str, Any]) -> Usage | None:
    counted = at(tree, "llm", "token_count") or {}
    used = at(tree, "gen_ai", "usage") or {}
    into = count(first({**used, **counted}, "prompt", "input_tokens", "prompt_tokens"))
    out = count(first({**used, **counted}, "completion", "output_tokens", "completion_tokens"))
    if into is None and out is None:
        return None
    return Usage(1, into or 0, out or 0, amount(at(tree, "llm", "cost", "total")))


def _error(raw: Raw) -> str:
    """Type and message, as a failed particle has them."""
    for name, attributes in raw.events:
        if name == "exception" and attributes.get("exception.type"):
            short = str(attributes["exception.type"]).rsplit(".", 1)[-1]
            return f"{short}: {attributes.get('exception.message', '')}"
    return error_of(raw.message)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
