"""Better skills for an unchanged app, weights left alone: `amc optimize`."""

from __future__ import annotations

from langgraph_amc.evaluate.optimizing.run import Optimization, Standing, aoptimize, optimize

__all__ = ["Optimization", "Standing", "aoptimize", "optimize"]
