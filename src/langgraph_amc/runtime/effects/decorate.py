"""`amc.effect`: a tool's or a function's own word on its policy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, cast

from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.effects.current import current_effects, opened
from langgraph_amc.runtime.effects.errors import EffectDeniedError
from langgraph_amc.runtime.effects.gate import AWAITING, BLOCKING, Call, gate
from langgraph_amc.runtime.effects.identity import jsonable
from langgraph_amc.runtime.effects.policy import ATTRIBUTE, METADATA, Policy, checked, note_use
from langgraph_amc.runtime.effects.scope import EffectScope
from langgraph_amc.runtime.engine import complete

F = TypeVar("F", bound=Callable[..., Any])


def effect(policy: Policy) -> Callable[[F], F]:
    """Give a LangChain tool or a function its policy; above or below ``@tool``.

    A decorated function that a node calls directly passes the same gate inside a particle, and is the plain
    function outside. Raises ConfigurationError for what cannot be decorated.
    """
    checked(policy, "effect()")

    def mark(target: F) -> F:
        if isinstance(target, BaseTool):
            target.metadata = {**(target.metadata or {}), METADATA: policy}
            return target
        if inspect.isclass(target) or not callable(target):
            raise ConfigurationError(f"effect() decorates a tool or a function, got {target!r}")
        if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
            raise ConfigurationError(f"effect() cannot hold {target.__name__!r}, which is a generator")
        return cast(F, _gated_function(target, policy))

    return mark


def _gated_function(function: Callable[..., Any], policy: Policy) -> Callable[..., Any]:
    wrapper: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def agated(*args: Any, **kwargs: Any) -> Any:
            scope = current_effects.get()
            if scope is None or _was_opened(agated):
                return await function(*args, **kwargs)
            return await gate(scope, _function_call(scope, function, policy, args, kwargs), AWAITING)

        wrapper = agated
    else:

        @functools.wraps(function)
        def gated(*args: Any, **kwargs: Any) -> Any:
            scope = current_effects.get()
            if scope is None or _was_opened(gated):
                return function(*args, **kwargs)
            return complete(gate(scope, _function_call(scope, function, policy, args, kwargs), BLOCKING))

        wrapper = gated
    setattr(wrapper, ATTRIBUTE, policy)
    note_use(function.__qualname__)
    return wrapper


def _was_opened(function: Any) -> bool:
    if opened.get() is not function:
        return False
    opened.set(None)  # in the context of this call only: its tool runs it in a copy
    return True


def _function_call(
    scope: EffectScope,
    function: Callable[..., Any],
    policy: Policy,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Call:
    def run() -> Any:
        return function(*args, **kwargs)

    bound = inspect.signature(function).bind(*args, **kwargs)
    return Call(
        function.__name__,
        scope.rules.of_function(function.__name__, policy),
        jsonable(dict(bound.arguments)),
        None,
        ensure_config(),
        run,
        run,
        _refuse,
    )


def _refuse(text: str) -> NoReturn:
    raise EffectDeniedError(text)
