"""Frozen channel values: what a checkpoint of a particle holds instead of live objects.

A value is frozen once, when a super-step saves it, and thawed into fresh objects for whoever reads it, so
that a node which edits its state in place changes its own particle only. A list of messages is frozen
message by message and a message that was frozen before is reused: saving a step costs O(new messages), and
a fork shares everything.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage

ATOMS = (type(None), bool, int, float, str, bytes)


@dataclass(frozen=True, slots=True)
class Packed:
    """A private copy of a value. The bytes never leave this process and are never read from outside it."""

    data: bytes

    def thaw(self) -> Any:
        return pickle.loads(self.data)  # noqa: S301


@dataclass(frozen=True, slots=True)
class Shared:
    """An immutable value, or one that cannot be copied and is therefore shared by all particles."""

    value: Any

    def thaw(self) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class MessageList:
    """A list of messages, each frozen on its own."""

    items: tuple[Packed | Shared, ...]

    def thaw(self) -> list[Any]:
        return [item.thaw() for item in self.items]


Cell = Packed | Shared | MessageList


def freeze(value: Any) -> Packed | Shared:
    """A cell holding a private copy of ``value`` (or the value itself where it cannot be copied)."""
    if type(value) in ATOMS:
        return Shared(value)
    try:
        return Packed(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception:  # pickle raises whatever a value's __reduce__ raises
        return Shared(value)


def _stamp(message: BaseMessage) -> tuple[object, ...]:
    """Objects whose identity changes when somebody assigns to the message."""
    d = message.__dict__
    return (d.get("content"), d.get("tool_calls"), d.get("additional_kwargs"), d.get("artifact"), d.get("id"))


def _same(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    return all(x is y for x, y in zip(a, b, strict=True))


@dataclass(slots=True)
class MessageFreezer:
    """Freezes successive versions of one message list, copying only what is new or was edited."""

    seen: dict[int, tuple[BaseMessage, tuple[object, ...], Packed | Shared]] = field(default_factory=dict)

    def freeze(self, messages: Sequence[BaseMessage], rewritten: frozenset[int] = frozenset()) -> MessageList:
        """Freeze ``messages``; those whose ``id()`` is in ``rewritten`` are copied again in any case."""
        items: list[Packed | Shared] = []
        current: dict[int, tuple[BaseMessage, tuple[object, ...], Packed | Shared]] = {}
        for message in messages:
            key, stamp = id(message), _stamp(message)
            known = self.seen.get(key)
            if known is not None and key not in rewritten and _same(known[1], stamp):
                entry = known
            else:
                entry = (message, stamp, freeze(message))
            current[key] = entry
            items.append(entry[2])
        self.seen = current
        return MessageList(tuple(items))

    def thaw(self, cell: MessageList) -> list[Any]:
        """Thaw a list and remember its items, so that the next version copies only what it adds."""
        messages = cell.thaw()
        self.seen = {id(m): (m, _stamp(m), c) for m, c in zip(messages, cell.items, strict=True)}
        return messages


def is_message_list(value: Any) -> bool:
    return type(value) is list and bool(value) and all(isinstance(m, BaseMessage) for m in value)
