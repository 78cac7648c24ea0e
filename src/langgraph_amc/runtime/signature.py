"""Signatures of what takes the settings of a run: written once, by `read_settings`, for readers and type checkers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from langgraph.pregel import Pregel

S = ParamSpec("S")
P = ParamSpec("P")
App = TypeVar("App", bound=Pregel)
F = TypeVar("F", bound=Callable[..., Any])


class Wrapping(Protocol[S]):
    """`wrap`."""

    __name__: str

    @overload
    def __call__(self, app: App, *args: S.args, **settings: S.kwargs) -> App: ...

    @overload
    def __call__(self, app: App, *, config: Any, **settings: Any) -> App: ...


class Decorating(Protocol[S]):
    """`amc`."""

    __name__: str

    @overload
    def __call__(self, *args: S.args, **settings: S.kwargs) -> Callable[[Callable[P, App]], Callable[P, App]]: ...

    @overload
    def __call__(self, *, config: Any, **settings: Any) -> Callable[[Callable[P, App]], Callable[P, App]]: ...


def wrapping(read: Callable[Concatenate[Any, S], Any]) -> Callable[[Callable[..., Any]], Wrapping[S]]:
    """The decorated function takes an app and the settings that ``read`` reads, and gives an app of the same type."""

    def typed(function: Callable[..., Any]) -> Wrapping[S]:
        return cast(Wrapping[S], showing(read)(function))

    return typed


def decorating(read: Callable[Concatenate[Any, S], Any]) -> Callable[[Callable[..., Any]], Decorating[S]]:
    """The decorated function takes the settings that ``read`` reads, and gives a decorator of what makes an app."""

    def typed(function: Callable[..., Any]) -> Decorating[S]:
        return cast(Decorating[S], showing(read)(function))

    return typed


def showing(read: Callable[..., Any]) -> Callable[[F], F]:
    """Give a function with ``**settings`` the arguments of ``read`` in its signature, the app's excepted."""

    def shown(function: F) -> F:
        own = inspect.signature(function)
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        taken = [p for p in inspect.signature(read).parameters.values() if p.kind is p.KEYWORD_ONLY]
        function.__signature__ = own.replace(parameters=[*parameters, *taken])  # type: ignore[attr-defined]
        return function

    return shown
