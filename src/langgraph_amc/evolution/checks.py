"""Arguments of this room, checked where they arrive.

Stricter than `langgraph_amc.checks`: a history writes them down as JSON, which knows plain numbers only.
"""

from __future__ import annotations

from langgraph_amc.checks import is_number
from langgraph_amc.errors import ConfigurationError


def finite(name: str, value: object, *, above: float) -> None:
    """Refuse what is not a finite number greater than ``above``."""
    if not isinstance(value, int | float) or not is_number(value) or value <= above:
        raise ConfigurationError(f"{name} must be a finite number above {above}, got {value!r}")


def at_least(name: str, value: object, least: float) -> None:
    """Refuse what is not a finite number of at least ``least``."""
    if not isinstance(value, int | float) or not is_number(value) or value < least:
        raise ConfigurationError(f"{name} must be a finite number of at least {least}, got {value!r}")


def as_float(settings: object, *names: str) -> None:
    """Make these fields of a frozen dataclass floats where they are whole numbers: 1 and 1.0 are one setting."""
    for name in names:
        if (value := getattr(settings, name)) is not None:
            object.__setattr__(settings, name, float(value))


def whole(name: str, value: object, least: int) -> None:
    """Refuse what is not an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} must be an integer of at least {least}, got {value!r}")


def one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Refuse what is not in the list."""
    if not any(type(value) is type(one) and value == one for one in allowed):
        raise ConfigurationError(f"{name} is one of {', '.join(map(repr, allowed))}, got {value!r}")
