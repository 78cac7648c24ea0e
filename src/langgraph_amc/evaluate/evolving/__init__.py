"""From an app whose model is local to that model tuned: the rollouts of evolution, and the study around them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langgraph_amc.errors import MissingExtraError

if TYPE_CHECKING:
    from langgraph_amc.evaluate.evolving.run import Evolution, Standing, aevolve, evolve

__all__ = ["Evolution", "Standing", "aevolve", "evolve"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.run"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("torch", "transformers", "peft", "safetensors"):
            raise
        raise MissingExtraError("Evolution", "local") from error
