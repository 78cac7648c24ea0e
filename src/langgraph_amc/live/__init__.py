"""Watching runs in a terminal: particles as rows, resampling as it happens; plain lines where there is no terminal."""

from __future__ import annotations

from langgraph_amc.live.watch import LiveView

__all__ = ["LiveView"]
