"""Messages as plain data: a serialiser takes several times as long over a pydantic object as over what is in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

_CLASSES: Mapping[str, type[BaseMessage]] = {
    c.__name__: c for c in (AIMessage, HumanMessage, SystemMessage, ToolMessage)
}
_ATOMS = frozenset((type(None), bool, int, float, str, bytes))

Plain = tuple[str, dict[str, Any], list[str]]
"""(name of the class, values by field, the fields that were given)"""


def to_plain(value: Any) -> Plain | None:
    """The parts of a message of a common class; ``None`` for anything else, and where the parts are not plain."""
    kind = type(value)
    if _CLASSES.get(kind.__name__) is not kind or value.__pydantic_extra__ or value.__pydantic_private__:
        return None
    fields = value.__dict__
    return (kind.__name__, fields, list(value.__pydantic_fields_set__)) if _is_plain(fields) else None


def from_plain(plain: Sequence[Any]) -> BaseMessage:
    """The message that `to_plain` took apart."""
    name, fields, given = plain
    return _CLASSES[name].model_construct(set(given), **fields)


def plain_lists(value: Any, held: Mapping[str, int] | None = None) -> list[Any] | None:
    """A state as [what is no list of messages, its lists of messages in parts, those stored elsewhere, names in order].

    ``held``: by name, the numbers of lists that are stored elsewhere. ``None`` for a state without lists.
    """
    if type(value) is not dict:
        return None
    held = held or {}
    lists = {n: parts for n, part in value.items() if n not in held and (parts := _plain_list(part)) is not None}
    if not lists and not held:
        return None
    rest = {name: part for name, part in value.items() if name not in lists and name not in held}
    return [rest, lists, dict(held), list(value)]


def from_plain_lists(parts: Sequence[Any], value: Callable[[int], Any]) -> dict[str, Any]:
    """The state that `plain_lists` took apart; ``value`` gives what is stored elsewhere by its number."""
    rest, lists, held, order = parts
    whole = {
        **rest,
        **{name: [from_plain(plain) for plain in said] for name, said in lists.items()},
        **{name: value(number) for name, number in held.items()},
    }
    return {name: whole[name] for name in order}


def _plain_list(value: Any) -> list[Plain] | None:
    if type(value) is not list or not value:
        return None
    parts = [to_plain(item) for item in value]
    return None if None in parts else parts  # type: ignore[return-value]


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        for key, part in value.items():
            if type(key) is not str or not (type(part) in _ATOMS or _is_plain(part)):
                return False
        return True
    if kind is list:
        return all(type(part) in _ATOMS or _is_plain(part) for part in value)
    return kind in _ATOMS
