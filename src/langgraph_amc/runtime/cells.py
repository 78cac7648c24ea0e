"""Frozen channel values: what a checkpoint of a particle holds instead of live objects.

A value is frozen once, when a super-step saves it, and thawed into fresh objects for whoever reads it, so
that a node which edits its state in place changes its own particle only. A list of messages is frozen
message by message and a message that was frozen before is reused: saving a step costs O(new messages), and
a fork shares everything.
"""

from __future__ import annotations

import functools
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
    if type(value) in ATOMS or isinstance(value, BaseException):
        return Shared(value)  # exceptions with an __init__ of their own can be pickled, and then not be read
    try:
        return Packed(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception:  # pickle raises whatever a value's __reduce__ raises
        return Shared(value)


Known = tuple[BaseMessage, Packed | Shared, Any, Any, Any]
"""A message that was frozen, its cell, and the parts whose identity changes when somebody assigns to it."""


def _known(message: BaseMessage, cell: Packed | Shared) -> Known:
    now = message.__dict__
    return message, cell, now["content"], now["additional_kwargs"], now.get("tool_calls")


@dataclass(slots=True)
class MessageFreezer:
    """Freezes successive versions of one message list, copying only what is new or was edited."""

    seen: dict[int, Known] = field(default_factory=dict)

    def freeze(self, messages: Sequence[BaseMessage], rewritten: frozenset[int] = frozenset()) -> MessageList:
        """Freeze ``messages``; those whose ``id()`` is in ``rewritten`` are copied again in any case."""
        seen = self.seen
        current: dict[int, Known] = {}
        cells: list[Packed | Shared] = []
        for message in messages:
            key = id(message)
            known = seen.get(key)
            if known is None or key in rewritten or not _unchanged(*known):
                known = _known(message, freeze(message))
            current[key] = known
            cells.append(known[1])
        self.seen = current
        return MessageList(tuple(cells))

    def is_frozen(self, messages: Sequence[Any], cell: MessageList) -> bool:
        """Whether these are the messages that were frozen as this list, and nobody has edited them since."""
        known = [self.seen.get(id(message)) for message in messages]
        return len(known) == len(cell.items) and all(
            k is not None and k[0] is message and k[1] is item and _unchanged(*k)
            for k, message, item in zip(known, messages, cell.items, strict=True)
        )

    def thaw(self, cell: MessageList) -> list[Any]:
        """Thaw a list and remember its items, so that the next version copies only what it adds."""
        messages = cell.thaw()
        self.seen = {id(m): _known(m, c) for m, c in zip(messages, cell.items, strict=True)}
        return messages


def _unchanged(message: BaseMessage, cell: Packed | Shared, content: Any, extras: Any, calls: Any) -> bool:
    now = message.__dict__
    return now["content"] is content and now["additional_kwargs"] is extras and now.get("tool_calls") is calls


def freeze_write(value: Any) -> Cell:
    """A cell for what a node wrote; lists of messages message by message, as the channel has them too."""
    return MessageList(tuple([freeze(message) for message in value])) if is_message_list(value) else freeze(value)


def is_message_list(value: Any) -> bool:
    return type(value) is list and bool(value) and all(map(_is_message, set(map(type, value))))


@functools.lru_cache(maxsize=256)
def _is_message(kind: type) -> bool:
    return issubclass(kind, BaseMessage)
