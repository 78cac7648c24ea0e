"""Automatic heuristic design as a study: search, keep, compare on instances that played no part."""

from langgraph_amc.evaluate.designing.run import Designed, adesign, design

__all__ = ["Designed", "adesign", "design"]
