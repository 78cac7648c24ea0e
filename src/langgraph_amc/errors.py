"""The root of every error this library raises on purpose; each message says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_LOCAL_PACKAGES = ("torch", "transformers", "peft", "safetensors", "sklearn", "scipy")
"""What the extra ``local`` brings."""


class AMCError(Exception):
    """Base class: catch it to catch everything langgraph-amc raises on purpose."""


class ConfigurationError(AMCError, ValueError):
    """An argument or a combination of arguments that cannot work."""


class MissingExtraError(AMCError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the '{extra}' extra: pip install 'langgraph-amc[{extra}]'")


@contextmanager
def needing_local(feature: str) -> Iterator[None]:
    """Around an import of what ``local`` brings; raises `MissingExtraError` where that is absent, and only there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _LOCAL_PACKAGES:
            raise
        raise MissingExtraError(feature, "local") from error


class RunStoppedError(AMCError):
    """Base class of what stops a whole run rather than one particle; a run with a journal can be gone on with."""
