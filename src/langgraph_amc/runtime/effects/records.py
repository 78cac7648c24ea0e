"""What a scope remembers: held effects, their fate, and the log of stateful calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")

EffectState = Literal["held", "committed", "dropped", "denied", "unknown", "failed"]


@dataclass(frozen=True, slots=True)
class HeldEffect:
    """An effect a particle stands before."""

    key: str
    tool: str
    arguments: Any
    tool_call_id: str | None
    place: str
    """Where in the graph it was asked for."""


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """One effect and what became of it.

    Attributes
    ----------
    arguments: as JSON.
    state: held (waits for its lineage to be selected), committed, dropped (its lineage was not), denied,
        unknown (begun by a process that died), failed (the tool raised).
    particle: in which it was asked for.
    key: its idempotency key.
    """

    tool: str
    arguments: Any
    policy: str
    state: EffectState
    particle: str
    key: str

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StatefulCall:
    """A call that changed a session, and how to make it again."""

    key: str
    step: int
    tool: str
    arguments: Any
    tool_call_id: str | None
    answer: Answer
    again: Callable[[], Any]
    """Makes the same call; gives its answer, or an awaitable of it if ``is_async``."""
    is_async: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned, or the exception it raised."""

    value: Any = None
    error: Exception | None = None

    def give(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, slots=True)
class Chain(Generic[T]):
    """An append-only sequence whose copies share everything; a fork costs nothing."""

    item: T | None = None
    before: Chain[T] | None = None

    def add(self, item: T) -> Chain[T]:
        return Chain(item, self)

    def __bool__(self) -> bool:
        return self.before is not None

    def __iter__(self) -> Iterator[T]:
        items: list[Any] = []
        link = self
        while link.before is not None:
            items.append(link.item)
            link = link.before
        return reversed(items)
