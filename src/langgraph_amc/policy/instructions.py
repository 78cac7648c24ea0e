"""Placing instructions in a prompt: where a slot says, else at the end of the system message.

The text is added to what is sent, never to what the app keeps: no state and no checkpoint ever holds it. Whoever places
it first wins: a prompt that already holds the text is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage, SystemMessage

from langgraph_amc.context import instructions

SLOT = "<skills/>"
"""Wherever it stands in a prompt, the text comes in its place."""
_TOLD = ("system", "developer", "user", "human")
_SYSTEM = ("system", "developer")

M = TypeVar("M")


def place_in_messages(messages: Sequence[BaseMessage], own: str | None = None) -> list[BaseMessage]:
    """The messages with the instructions of this context, else with ``own``; the given ones are not changed."""
    return _place(
        list(messages),
        own,
        role=lambda m: m.type,
        content=lambda m: m.content,
        changed=lambda m, content: m.model_copy(update={"content": content}),
        made=lambda text: SystemMessage(text),
    )


def place_in_dicts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The same for messages as OpenAI's API takes them."""
    return _place(
        list(messages),
        None,
        role=lambda m: str(m.get("role")),
        content=lambda m: m.get("content"),
        changed=lambda m, content: {**m, "content": content},
        made=lambda text: {"role": "system", "content": text},
    )


def _place(
    messages: list[M],
    own: str | None,
    *,
    role: Callable[[M], str],
    content: Callable[[M], Any],
    changed: Callable[[M, Any], M],
    made: Callable[[str], M],
) -> list[M]:
    here = instructions.get()
    text = (own or "") if here is None else here.text
    if here is not None:
        here.placed += 1
    told = [i for i, message in enumerate(messages) if role(message) in _TOLD]
    if slots := [i for i in told if _holds(content(messages[i]), SLOT)]:
        for i in slots:
            messages[i] = changed(messages[i], _replaced(content(messages[i]), text))
        return messages
    if not text or any(_holds(content(messages[i]), text) for i in told):
        return messages
    system = next((i for i in told if role(messages[i]) in _SYSTEM), None)
    if system is None:
        return [made(text), *messages]
    messages[system] = changed(messages[system], _appended(content(messages[system]), text))
    return messages


def _holds(content: Any, text: str) -> bool:
    if isinstance(content, str):
        return text in content
    return any(text in _text(block) for block in content or ())


def _replaced(content: Any, text: str) -> Any:
    if isinstance(content, str):
        return content.replace(SLOT, text)
    return [
        block.replace(SLOT, text)
        if isinstance(block, str)
        else {**block, "text": block["text"].replace(SLOT, text)}
        if SLOT in _text(block)
        else block
        for block in content
    ]


def _appended(content: Any, text: str) -> Any:
    if isinstance(content, str):
        return f"{content}\n\n{text}" if content else text
    return [*(content or ()), {"type": "text", "text": text}]


def _text(block: Any) -> str:
    if isinstance(block, str):
        return block
    text = block.get("text")
    return text if isinstance(text, str) else ""
