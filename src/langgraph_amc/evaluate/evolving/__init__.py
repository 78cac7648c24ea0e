"""From an app whose model is local to that model tuned: the rollouts of evolution, and the study around them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_amc.errors import needing_local

if TYPE_CHECKING:
    from langgraph_amc.evaluate.evolving.run import Evolution, Standing, aevolve, evolve

__all__ = ["Evolution", "Standing", "aevolve", "evolve"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needing_local("Evolution"):
        return getattr(import_module(f"{__name__}.run"), name)
