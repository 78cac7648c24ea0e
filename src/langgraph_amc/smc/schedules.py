"""When to resample: small composable conditions such as `ess_below(0.5) | every(5)`.

A boundary is a super-step, counted from 1, at which particles may be compared. `possible` says whether the
schedule could fire at a boundary at all: between impossible boundaries particles run freely, with no barrier
and no scoring. `fires` decides at a boundary that is possible.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, SupportsIndex, runtime_checkable

from langgraph_amc.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Check:
    """What a schedule sees: the boundary, and the effective sample size as a fraction of the live."""

    boundary: int
    ess: float


@runtime_checkable
class Schedule(Protocol):
    """A condition for resampling; any object with these two methods will do."""

    def possible(self, boundary: int) -> bool: ...

    def fires(self, check: Check) -> bool: ...


class _Composable:
    __slots__ = ()

    def __or__(self: Schedule, other: Schedule) -> Schedule:
        return Either(self, other) if isinstance(other, Schedule) else NotImplemented

    def __ror__(self: Schedule, other: Schedule) -> Schedule:
        return Either(other, self) if isinstance(other, Schedule) else NotImplemented

    def __and__(self: Schedule, other: Schedule) -> Schedule:
        return Both(self, other) if isinstance(other, Schedule) else NotImplemented

    def __rand__(self: Schedule, other: Schedule) -> Schedule:
        return Both(other, self) if isinstance(other, Schedule) else NotImplemented


@dataclass(frozen=True, slots=True, repr=False)
class At(_Composable):
    """Fires at the given boundaries."""

    boundaries: tuple[int, ...]

    def possible(self, boundary: int) -> bool:
        return boundary in self.boundaries

    def fires(self, check: Check) -> bool:
        return check.boundary in self.boundaries

    def __repr__(self) -> str:
        return f"at({', '.join(map(str, self.boundaries))})"


@dataclass(frozen=True, slots=True, repr=False)
class Every(_Composable):
    """Fires at every k-th boundary."""

    k: int

    def possible(self, boundary: int) -> bool:
        return boundary % self.k == 0

    def fires(self, check: Check) -> bool:
        return check.boundary % self.k == 0

    def __repr__(self) -> str:
        return f"every({self.k})"


@dataclass(frozen=True, slots=True, repr=False)
class EssBelow(_Composable):
    """Fires where the effective sample size has fallen to the fraction of the live particles, or below."""

    fraction: float

    def possible(self, boundary: int) -> bool:
        return True

    def fires(self, check: Check) -> bool:
        # Half dead, half equal has an ESS of exactly n/2, and so has one solved for: both shall fire.
        return check.ess <= self.fraction * (1 + 1e-9)

    def __repr__(self) -> str:
        return f"ess_below({self.fraction!r})"


@dataclass(frozen=True, slots=True, repr=False)
class Never(_Composable):
    """Never fires: all particles run to their end on their own, which is best-of-N."""

    def possible(self, boundary: int) -> bool:
        return False

    def fires(self, check: Check) -> bool:
        return False

    def __repr__(self) -> str:
        return "never()"


@dataclass(frozen=True, slots=True, repr=False)
class Either(_Composable):
    """Fires where one of the two fires."""

    left: Schedule
    right: Schedule

    def possible(self, boundary: int) -> bool:
        return self.left.possible(boundary) or self.right.possible(boundary)

    def fires(self, check: Check) -> bool:
        return self.left.fires(check) or self.right.fires(check)

    def __repr__(self) -> str:
        right = f"({self.right!r})" if isinstance(self.right, Either) else repr(self.right)
        return f"{self.left!r} | {right}"


@dataclass(frozen=True, slots=True, repr=False)
class Both(_Composable):
    """Fires where both fire."""

    left: Schedule
    right: Schedule

    def possible(self, boundary: int) -> bool:
        return self.left.possible(boundary) and self.right.possible(boundary)

    def fires(self, check: Check) -> bool:
        return self.left.fires(check) and self.right.fires(check)

    def __repr__(self) -> str:  # & binds tighter than |, and to the left
        left = f"({self.left!r})" if isinstance(self.left, Either) else repr(self.left)
        right = f"({self.right!r})" if isinstance(self.right, (Either, Both)) else repr(self.right)
        return f"{left} & {right}"


def at(*boundaries: SupportsIndex) -> At:
    """Resample at these boundaries, counted from 1: `at(4, 12)`."""
    if not boundaries:
        raise ConfigurationError("at() needs at least one boundary, as in at(4, 12); use never() for none.")
    return At(tuple(sorted({_positive_int(boundary, "at") for boundary in boundaries})))


def every(k: SupportsIndex) -> Every:
    """Resample at every k-th boundary."""
    return Every(_positive_int(k, "every"))


def ess_below(fraction: float) -> EssBelow:
    """Resample where the ESS is at most this fraction, in (0, 1], of the number of live particles."""
    if isinstance(fraction, bool) or not (0 < fraction <= 1):
        raise ConfigurationError(f"ess_below needs a fraction in (0, 1], as in ess_below(0.5), got {fraction!r}.")
    return EssBelow(float(fraction))


def never() -> Never:
    """Never resample: best-of-N."""
    return Never()


_BY_NAME: Mapping[str, Callable[..., Schedule]] = {
    "at": at,
    "every": every,
    "ess_below": ess_below,
    "never": never,
}


def parse_schedule(text: str) -> Schedule:
    """The schedule a text such as `every(3) | ess_below(0.5)` names; nothing in it is evaluated."""
    try:
        return _build(ast.parse(text.strip(), mode="eval").body, text)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise _unreadable(text, str(error)) from error


def _build(node: ast.expr, text: str) -> Schedule:
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return Either(_build(left, text), _build(right, text))
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return Both(_build(left, text), _build(right, text))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _BY_NAME:
            return _BY_NAME[name](*(_number(argument, text) for argument in args))
    raise _unreadable(text, f"'{ast.unparse(node)}' is not one of them")


def _number(node: ast.expr, text: str) -> int | float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    raise _unreadable(text, f"'{ast.unparse(node)}' is not a positive number")


def _unreadable(text: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"Cannot read the schedule '{text}': {why}. Combine at(4, 12), every(5), ess_below(0.5) and never() "
        "with | and &, for example 'every(3) | ess_below(0.5)'."
    )


def _positive_int(number: SupportsIndex, name: str) -> int:
    try:
        value = 0 if isinstance(number, bool) else operator.index(number)
    except TypeError:
        value = 0
    if value < 1:
        raise ConfigurationError(f"{name}() takes whole numbers of at least 1, got {number!r}.")
    return value
