"""What can go wrong with weights and histories."""

from __future__ import annotations

from langgraph_amc.errors import AMCError


class WeightsError(AMCError):
    """The weights cannot take an update, or are not those that a history speaks of."""


class HistoryError(AMCError):
    """A history cannot be read, continued or replayed."""
