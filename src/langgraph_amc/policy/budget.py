"""What may be spent: limits in dollars, tokens, calls and seconds, and the errors that keep them.

`Budget` is plain data; `Budget.open` gives the `Account` that reserves and settles (module `account`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.trajectories.types import Usage

if TYPE_CHECKING:
    from langgraph_amc.policy.account import Account

Limit = Literal["usd", "tokens", "calls", "seconds"]
ANY_MODEL = "*"
"""In ``Budget.prices``: every model that is not named and that no table knows."""


class BudgetExceededError(AMCError):
    """A model call was refused because its worst case does not fit into the budget.

    Attributes
    ----------
    limit: which one: ``"usd"``, ``"tokens"``, ``"calls"`` or ``"seconds"``.
    allowed, spent, reserved, asked: in the limit's unit; ``reserved`` by calls still on their way, ``asked`` by
        the refused one.
    """

    def __init__(self, limit: Limit, allowed: float, spent: float, reserved: float, asked: float) -> None:
        self.limit = limit
        self.allowed = allowed
        self.spent = spent
        self.reserved = reserved
        self.asked = asked
        worst = "" if limit in ("seconds", "calls") else f", the next call may take {show(limit, asked)}"
        held = f", {show(limit, reserved)} reserved" if reserved else ""
        super().__init__(
            f"the budget of {show(limit, allowed)} is used up: {show(limit, spent)} spent{held}{worst}. "
            f"Raise Budget({limit}=…), or ask for less (fewer particles, a smaller max_tokens)"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.limit, self.allowed, self.spent, self.reserved, self.asked)


class UnknownPriceError(ConfigurationError):
    """Money is capped and nobody knows what the model costs."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"the budget caps dollars, but the price of {model!r} is unknown: give it with "
            f"Budget(prices={{{model!r}: Price(input=…, output=…)}}), US dollars per million tokens (on the command "
            "line with --price IN/OUT), or cap tokens"
        )


@dataclass(frozen=True, slots=True)
class Price:
    """A model's price in US dollars per million tokens; ``cached``: of input read from the provider's cache."""

    input: float
    output: float
    cached: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("input", self.input), ("output", self.output), ("cached", self.cached)):
            free = name == "cached" and value is None
            if not free and (value is None or not _is_number(value) or value < 0):
                raise ConfigurationError(f"Price({name}=…) is in US dollars per million tokens, got {value!r}")

    def of(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """US dollars for one call."""
        cached = self.input if self.cached is None else self.cached
        fresh = input_tokens - cached_tokens
        return (fresh * self.input + cached_tokens * cached + output_tokens * self.output) / 1e6


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on what model calls may take together; ``None`` is no limit.

    Attributes
    ----------
    usd, tokens, calls, seconds: US dollars, input plus output tokens, model calls, seconds since it was opened.
    prices: by model name, with or without provider, before any table; ``"*"`` for whatever else is unknown.
    output_tokens: the longest answer to reckon with where neither the call nor the model's entry says.

    Raises ConfigurationError for anything else than numbers above 0 (``calls=0`` allows none).
    """

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: float | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    output_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("usd", self.usd), ("seconds", self.seconds)):
            if value is not None and not (_is_number(value) and value > 0):
                raise ConfigurationError(f"Budget({name}=…) is a number above 0, or None for no limit, got {value!r}")
        for name, count, least in (
            ("tokens", self.tokens, 1),
            ("calls", self.calls, 0),
            ("output_tokens", self.output_tokens, 1),
        ):
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < least):
                raise ConfigurationError(f"Budget({name}=…) is a whole number of at least {least}, got {count!r}")
        form = "Budget(prices=…) maps model names to Price(input=…, output=…)"
        if not isinstance(self.prices, Mapping):
            raise ConfigurationError(f"{form}, got {self.prices!r}")
        for model, known in self.prices.items():
            if not isinstance(model, str) or not isinstance(known, Price):
                raise ConfigurationError(f"{form}, got {model!r}: {known!r}")

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.usd, self.tokens, self.calls, self.seconds))

    def open(self) -> Account:
        """An account to charge; used in a ``with`` statement, all model calls below charge it (and those around it)."""
        from langgraph_amc.policy.account import Account

        return Account(self)

    def allowed(self, limit: Limit) -> float | None:
        """A limit by its name."""
        return {"usd": self.usd, "tokens": self.tokens, "calls": self.calls, "seconds": self.seconds}[limit]

    def price(self, names: tuple[str, ...]) -> Price | None:
        """The price given for a model that goes by these names, not counting ``"*"``."""
        for name in names:
            found = self.prices.get(name) or self.prices.get(name.partition("/")[2])
            if found is not None:
                return found
            for given, known in self.prices.items():  # the model may be called without the provider
                if given.partition("/")[2] == name:
                    return known
        return None


def amount(usage: Usage, limit: Limit) -> float:
    """What counts of a usage for a limit, in its unit; an unknown cost counts nothing."""
    return (usage.cost or 0.0) if limit == "usd" else usage.tokens if limit == "tokens" else usage.calls


def show(limit: Limit, quantity: float) -> str:
    """An amount with its unit."""
    if limit == "usd":
        return f"${quantity:.4g}" if quantity < 1 else f"${quantity:,.2f}"
    return f"{quantity:.4g} seconds" if limit == "seconds" else f"{quantity:,.0f} {limit}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
