"""LangChain messages from the many ways in which logs write them.

Read are LangChain's own forms (constructor, ``{type, data}``, plain), OpenAI's (role, content, tool calls),
OpenTelemetry's (role and parts), OpenInference's nested attributes, pairs and bare text. Nothing is ever
instantiated by a name in the log but the message classes below.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

_CLASSES: dict[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "user": HumanMessage,
    "ai": AIMessage,
    "assistant": AIMessage,
    "model": AIMessage,
    "system": SystemMessage,
    "developer": SystemMessage,
    "tool": ToolMessage,
    "function": FunctionMessage,
}
_KEPT = ("content", "id", "name", "additional_kwargs", "response_metadata")
_MORE: dict[type[BaseMessage], tuple[str, ...]] = {
    AIMessage: ("usage_metadata",),
    ToolMessage: ("artifact", "status"),
}
REDACTED_TEXT = "__REDACTED__"
"""What OpenInference writes in place of hidden text."""


class NoMessageError(ValueError):
    """Something in the place of a message that is none."""


def messages_from(value: Any) -> tuple[BaseMessage, ...]:
    """The messages of a list, or the one message that is none; raises `NoMessageError` for anything else."""
    if isinstance(value, list) and not _is_pair(value):
        if len(value) == 1 and isinstance(value[0], list) and not _is_pair(value[0]):
            value = value[0]  # LangChain logs a model's input as a batch of one
        return tuple(m for item in value for one in _each(item) if (m := message_from(one)) is not None)
    message = message_from(value)
    return () if message is None else (message,)


def message_from(item: Any) -> BaseMessage | None:
    """One message; ``None`` for the removal of one."""
    if isinstance(item, str):
        return HumanMessage(item)
    if isinstance(item, list | tuple) and _is_pair(item):
        item = {"role": item[0], "content": item[1]}
    if not isinstance(item, Mapping):
        raise NoMessageError(type(item).__name__)
    fields = _fields(item)
    kind = str(fields.get("role") or fields.get("type") or "")
    # the kind in LangChain's own forms is `type`; a role beside it is the name of a chat message's speaker
    kind = str(fields["type"]) if fields.get("type") in (*_CLASSES, "chat", "remove") else kind
    kind = kind.removesuffix("MessageChunk").removesuffix("Message").lower()
    if kind == "remove":
        return None
    if "parts" in fields:
        fields = _from_parts(fields)
    if "contents" in fields and not fields.get("content"):
        fields["content"] = [block for part in fields["contents"] if (block := _content_block(part))]
    if _CLASSES.get(kind) is AIMessage:
        return _ai(fields)
    given: dict[str, Any] = {name: fields[name] for name in _KEPT if fields.get(name) is not None}
    given["content"] = _content(fields.get("content"))
    if kind == "tool" or (kind == "function" and fields.get("tool_call_id")):
        given |= {name: fields[name] for name in _MORE[ToolMessage] if fields.get(name) is not None}
        return ToolMessage(**given, tool_call_id=str(fields.get("tool_call_id") or ""))
    if kind == "function":
        return FunctionMessage(**{"name": "", **given})
    if kind in _CLASSES:
        return _CLASSES[kind](**given)
    if fields.get("role"):
        return ChatMessage(**given, role=str(fields["role"]))
    raise NoMessageError("a message without a role")


def _each(item: Any) -> list[Any]:
    """A message; several where one message of the gen_ai conventions has the results of several tools."""
    parts = item.get("parts") if isinstance(item, Mapping) else None
    results = [part for part in parts or () if part.get("type") == "tool_call_response"]
    return [{**item, "parts": [part]} for part in results] if len(results) > 1 else [item]


def _is_pair(item: Any) -> bool:
    """``["user", "text"]``, LangGraph's short form; a list of two texts otherwise."""
    return len(item) == 2 and isinstance(item[0], str) and (item[0] in _CLASSES or item[0] == "placeholder")


def _fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message, whichever envelope it comes in."""
    if item.get("type") == "constructor" and isinstance(item.get("kwargs"), Mapping):
        name = str((item.get("id") or [""])[-1])
        return {"type": name.removesuffix("Chunk").removesuffix("Message").lower(), **_typed(item["kwargs"])}
    if isinstance(item.get("data"), Mapping) and "type" in item:
        return {**item["data"], "type": item["type"]}
    if isinstance(item.get("message"), Mapping):
        return _fields(item["message"])
    return dict(item)


def _typed(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    # Chunks have a type of their own; the class says it better.
    return {k: v for k, v in kwargs.items() if k != "type"}


def _content(content: Any) -> Any:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return [block if isinstance(block, str | dict) else json.dumps(block) for block in content]
    return json.dumps(content, ensure_ascii=False, sort_keys=True)


def _content_block(part: Any) -> dict[str, Any] | None:
    """A block of OpenInference's ``message.contents``."""
    content = part.get("message_content", part) if isinstance(part, Mapping) else {"type": "text", "text": str(part)}
    return dict(content) if content else None


def _ai(fields: Mapping[str, Any]) -> AIMessage:
    calls: list[dict[str, Any]] = []
    invalid: list[dict[str, Any]] = [dict(call) for call in fields.get("invalid_tool_calls") or ()]
    extra = dict(fields.get("additional_kwargs") or {})
    for call in fields.get("tool_calls") or extra.get("tool_calls") or ():
        name, arguments, call_id = _call(call)
        parsed = _arguments(arguments)
        if parsed is None:
            invalid.append({"name": name, "args": str(arguments), "id": call_id, "error": None})
        else:
            calls.append({"name": name, "args": parsed, "id": call_id})
    given = {name: fields[name] for name in _KEPT if fields.get(name) is not None}
    usage = fields.get("usage_metadata")
    return AIMessage(
        **{
            **given,
            "content": _content(fields.get("content")),
            "additional_kwargs": {k: v for k, v in extra.items() if k != "tool_calls"},
            "tool_calls": calls,
            "invalid_tool_calls": invalid,
            "usage_metadata": usage if _counts(usage) else None,
        }
    )


def _counts(usage: Any) -> bool:
    """Whether this is usage metadata with both numbers of tokens."""
    numbers = [usage.get(name) for name in ("input_tokens", "output_tokens")] if isinstance(usage, Mapping) else [None]
    return all(isinstance(number, int) and 0 <= number < 2**53 for number in numbers)


def _call(call: Mapping[str, Any]) -> tuple[str, Any, str | None]:
    """Name, arguments and id of a tool call."""
    call = call.get("tool_call", call)
    function = call.get("function") or {}
    name = call.get("name") or function.get("name") or ""
    arguments: Any = next((c[k] for c in (call, function) for k in ("args", "arguments") if c.get(k) is not None), {})
    call_id = call.get("id")
    return str(name), arguments, None if call_id is None else str(call_id)


def _arguments(arguments: Any) -> dict[str, Any] | None:
    """Arguments of a tool call; ``None`` where they are not a JSON object."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return None
    return dict(arguments) if isinstance(arguments, Mapping) else None


def _from_parts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A message of OpenTelemetry's gen_ai conventions: role and parts."""
    content: list[dict[str, Any]] = []
    calls: list[Mapping[str, Any]] = []
    found = {k: v for k, v in fields.items() if k != "parts"}
    for part in fields["parts"]:
        kind = part.get("type")
        if kind == "tool_call":
            calls.append(part)
        elif kind == "tool_call_response":
            found["tool_call_id"] = part.get("id")
            answer = part.get("response", part.get("result"))
            content.append({"type": "text", "text": _content(answer)})
        elif kind == "text":
            content.append({"type": "text", "text": part.get("content") or ""})
        elif kind in ("reasoning", "thinking"):
            content.append({"type": "reasoning", "reasoning": part.get("content") or ""})
        else:
            content.append({"type": str(kind or "content")})
    only_text = all(block["type"] == "text" and isinstance(block["text"], str) for block in content)
    found["content"] = "".join(block["text"] for block in content) if only_text else content
    return {**found, "tool_calls": calls}


def is_redacted(messages: tuple[Any, ...] | None) -> bool:
    """Whether somebody's text was hidden before it was logged."""
    return any(message.content == REDACTED_TEXT for message in messages or ())
