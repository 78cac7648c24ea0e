"""Small readers of what logs hold: nested values from flat names, JSON within JSON, times, numbers, states."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from langgraph_amc.trajectories.importers.messages import REDACTED_TEXT, is_redacted, messages_from
from langgraph_amc.trajectories.importers.spans import MALFORMED, REDACTED, TRUNCATED, UNKNOWN


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a.0.b": 1}`` as ``{"a": [{"b": 1}]}``, at any depth; what is nested already stays so."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        _put(tree, name.split("."), value)
    return {name: _lists(value) for name, value in tree.items()}


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    if isinstance(value, list):
        value = [nested(item) if isinstance(item, Mapping) else item for item in value]
    if len(path) > 1:
        below = tree.setdefault(path[0], {})
        if isinstance(below, dict):  # a value of its own beside names below it, as old conventions had
            _put(below, path[1:], value)
    elif isinstance(value, Mapping):
        below = tree.setdefault(path[0], {})
        if isinstance(below, dict):
            for name, item in value.items():
                _put(below, str(name).split("."), item)
    else:
        tree[path[0]] = value


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    plain = {name: _lists(item) for name, item in value.items()}
    if plain and all(name.isdigit() for name in plain):
        return [plain[name] for name in sorted(plain, key=int)]
    return plain


def at(tree: Any, *path: str) -> Any:
    """The value at a path of names, ``None`` where there is none."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def first(tree: Mapping[str, Any], *names: str) -> Any:
    """The first of these that is there and not ``None``: exporters differ in how they spell a name."""
    return next((tree[name] for name in names if tree.get(name) is not None), None)


def parsed(value: Any) -> Any:
    """JSON text as what it means, anything else as it is; raises ValueError for JSON that is cut off or too deep."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping, written as one or as JSON; empty where it is neither."""
    try:
        value = parsed(value)
    except ValueError:
        return {}
    return value if isinstance(value, Mapping) else {}


def seconds(value: Any) -> float | None:
    """Seconds since the epoch of an ISO time, a datetime, or nanoseconds; ``None`` where there is no time."""
    if value in (None, "", 0, "0"):
        return None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, int | float) or str(value).isdigit():
        return int(value) / 1e9 if int(value) > 1e14 else float(value) / (1e3 if int(value) > 1e11 else 1)
    return seconds(datetime.fromisoformat(str(value).replace("Z", "+00:00")))


def count(value: Any) -> int | None:
    """A number of tokens; ``None`` where there is none that can be."""
    number = amount(value)
    return int(number) if number is not None and 0 <= number < 2**53 else None


def amount(value: Any) -> float | None:
    """A finite number, as one or as text; ``None`` where there is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def error_of(text: str) -> str:
    """``RuntimeError('no such city')Traceback …`` as a failed particle has it: type and message."""
    line = text.partition("Traceback (most recent call last)")[0].partition("\n")[0].strip()
    name, opened, rest = line.partition("(")
    if opened and name.isidentifier() and rest.endswith(")"):
        return f"{name}: {rest[:-1].strip().rstrip(',').strip(chr(39) + chr(34))}"
    return line or "failed"


def is_pause(error: Any) -> bool:
    """Whether an error, by its name or its text, is how LangGraph pauses for a person."""
    name = str(error or "").partition("(")[0].rsplit(".", 1)[-1]
    return name in ("GraphInterrupt", "NodeInterrupt")


@dataclass(frozen=True, slots=True)
class State:
    """Messages of a logged input or output; ``problem`` is set where what was logged is cut off or hidden."""

    messages: tuple[Any, ...] | None = None
    problem: str | None = None
    interrupted: bool = False


def state_in(value: Any, key: str) -> State:
    """The messages under ``key`` of a state, or of an update in a node's command."""
    if value == REDACTED_TEXT:
        return State(problem=REDACTED)
    try:
        value = parsed(value)
        found = _list_of(value, key)
        messages = None if found is None else messages_from(found)
    except json.JSONDecodeError:
        return State(problem=TRUNCATED)
    except ValueError:
        return State(problem=UNKNOWN)
    if is_redacted(messages):
        return State(problem=REDACTED)
    return State(messages, interrupted=isinstance(value, Mapping) and bool(value.get("__interrupt__")))


def _list_of(value: Any, key: str) -> Any:
    """The list of messages in a state, in an update, or in a list of commands."""
    if isinstance(value, list):
        updates = [found for item in value if (found := _list_of(item, key)) is not None]
        return [message for update in updates for message in update] if updates else None
    if not isinstance(value, Mapping):
        return None
    found = value.get(key)
    if isinstance(found, str | Mapping):
        found = [found]
    if isinstance(found, list):
        return found
    for envelope in ("update", "input", "output", "value"):
        if (inside := value.get(envelope)) is not None and not isinstance(inside, str):
            return _list_of(inside, key)
    return None


def messages_in(value: Any) -> tuple[tuple[Any, ...] | None, str | None]:
    """Messages a model was called with or answered, in whichever form, and why there are none."""
    try:
        value = parsed(value)
        if value is None or value == "":
            return None, None
        if isinstance(value, Mapping):
            if "generations" in value:
                value = _generation(value["generations"])
            elif "messages" in value:
                value = value["messages"]
            elif "prompts" in value:
                value = value["prompts"]
            elif "choices" in value:
                value = value["choices"][0]["message"]
            elif "output" in value and not value.get("role"):
                value = value["output"]
        found = messages_from(value) if value else None
    except json.JSONDecodeError:
        return None, TRUNCATED
    except MALFORMED:
        return None, UNKNOWN
    return (None, REDACTED) if is_redacted(found) else (found, None)


def _generation(generations: Any) -> Any:
    """The first answer of LangChain's ``generations``, a message or a text."""
    while isinstance(generations, list):
        generations = generations[0]
    return generations.get("message") or {"role": "assistant", "content": generations.get("text", "")}
