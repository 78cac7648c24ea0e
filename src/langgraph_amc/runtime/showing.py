"""What an agent said and did, for who watches: one line of its last action, and messages as traces have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_messages

from langgraph_amc.runtime.record import messages_of

LONGEST = 200
"""Characters of an action."""
_ROLES = {"human": "user", "ai": "assistant"}


def last_action(state: Any) -> str:
    """The newest tool calls of a state's messages with their arguments, else the end of the newest answer's text."""
    for message in reversed(messages_of(state)):
        if isinstance(message, AIMessage):
            calls = ", ".join(f"{c['name']}({_arguments(c['args'])})" for c in message.tool_calls)
            return _cut(calls or " ".join(message.text.split()))
    return ""


def _arguments(given: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def gen_ai_messages(state: Any) -> str | None:
    """A state's messages as JSON by OpenTelemetry's conventions (role and parts); ``None`` where it has none."""
    messages = messages_of(state)
    if not messages:
        return None
    found = convert_to_messages(list(messages))
    return json.dumps([_message(message) for message in found], ensure_ascii=False, default=str)


def _message(message: BaseMessage) -> dict[str, Any]:
    if isinstance(message, ToolMessage):
        answer = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [answer]}
    parts = _parts(message.content)
    if isinstance(message, AIMessage):
        parts += [
            {"type": "tool_call", "id": c["id"], "name": c["name"], "arguments": c["args"]} for c in message.tool_calls
        ]
    return {"role": _ROLES.get(message.type, message.type), "parts": parts}


def _parts(content: str | Sequence[Any]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}] if content else []
    texts = [block if isinstance(block, str) else block.get("text") for block in content]
    return [{"type": "text", "content": text} for text in texts if text]
