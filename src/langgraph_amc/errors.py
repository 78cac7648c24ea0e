"""The root of every error this library raises on purpose; each message says what to do."""

from __future__ import annotations


class AMCError(Exception):
    """Base class: catch it to catch everything langgraph-amc raises on purpose."""


class ConfigurationError(AMCError, ValueError):
    """An argument or a combination of arguments that cannot work."""


class MissingExtraError(AMCError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the '{extra}' extra: pip install 'langgraph-amc[{extra}]'")


class RunStoppedError(AMCError):
    """Base class of what stops a whole run rather than one particle; a run with a journal can be gone on with."""
