"""Which effects are in force where the current code runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph_amc.runtime.effects.scope import EffectScope

current_effects: ContextVar[EffectScope | None] = ContextVar("amc_current_effects", default=None)
"""The particle's scope while its nodes run; ``None`` in a plain run."""

current_effect: ContextVar[str | None] = ContextVar("amc_current_effect", default=None)
"""Idempotency key of the gated call whose body is running; hand it to an API that takes one."""

inside: ContextVar[str | None] = ContextVar("amc_inside_effect", default=None)
"""Policy of the gated call whose body is running: what it calls is part of it and passes no gate of its own."""

opened: ContextVar[Any] = ContextVar("amc_opened_function", default=None)
"""The decorated function whose tool has passed the gate already."""


@contextmanager
def body(key: str, policy: str) -> Iterator[None]:
    """The code within is the body of a gated call."""
    effect, flag = current_effect.set(key), inside.set(policy)
    try:
        yield
    finally:
        inside.reset(flag)
        current_effect.reset(effect)


@contextmanager
def opening(function: Any) -> Iterator[None]:
    """``function`` passes no gate of its own the next time it is called within."""
    token = opened.set(function)
    try:
        yield
    finally:
        opened.reset(token)
