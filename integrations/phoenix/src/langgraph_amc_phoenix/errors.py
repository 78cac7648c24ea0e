"""What can go wrong with a viewer."""

from __future__ import annotations

from langgraph_amc.errors import AMCError


class PhoenixError(AMCError):
    """Phoenix did not start, or ended; the message has its last words."""
