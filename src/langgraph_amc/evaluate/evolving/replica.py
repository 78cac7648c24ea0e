"""One copy of the model that is evolved, in one process: the engine that serves it to the app, and its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any
from weakref import WeakSet

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.replicas import Tuning
from langgraph_amc.evolution.asktell import Update
from langgraph_amc.evolution.full import Full
from langgraph_amc.evolution.layout import Layout, layout
from langgraph_amc.evolution.low_rank import LowRank
from langgraph_amc.evolution.members import Generation
from langgraph_amc.evolution.replay import load
from langgraph_amc.evolution.weights import Weights
from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.engines import get_engine, loaded_engine
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.policy.variants import Variants

_replicas: WeakSet[Replica] = WeakSet()
"""Those of this process: weakly, so that one whose start was cancelled holds nothing back."""
_starting = Lock()


class Replica:
    """The model of `Tuning` as this process serves it; blocks, and is used by one thread at a time.

    Its engine is the one that the app's calls find, so whatever it serves is what the app gets. Raises
    ConfigurationError where another one tunes the same model in this process.
    """

    def __init__(self, tuning: Tuning) -> None:
        load_litellm()
        self.tuning = tuning
        with _starting:
            used = loaded_engine(tuning.model)
            if used is not None and any(replica.engine is used for replica in _replicas):
                raise ConfigurationError(
                    f"{tuning.model} is being evolved in this process already: wait until that ends, use another "
                    "process, or give a copy of the folder"
                )
            if used is not None:
                used.close()  # it may be another size, and have served other weights
            self.engine: BatchEngine = get_engine(tuning.model, max_batch=tuning.max_batch)
            _replicas.add(self)
        self.layout: Layout = layout(self.engine.model, tuning.scope)
        self._weights = self._fresh()
        self._applied: list[Update] = []

    @property
    def hash(self) -> str:
        """Of the weights as they are."""
        return self._weights.hash()

    @property
    def dtype(self) -> str:
        """The type of number that is served, like ``float32``."""
        return str(next(self.engine.model.parameters()).dtype).removeprefix("torch.")

    def samples(self, *, members: bool) -> int:
        """How many answers the engine has begun, all or those of members only."""
        stats = self.engine.stats
        return stats.variant_samples if members else stats.samples

    @contextmanager
    def serving(self, generation: Generation) -> Iterator[None]:
        """Answer for the members of a generation."""
        with self.engine.serving(_variants(self.layout, generation)):
            yield

    def apply(self, update: Update) -> str:
        """Take a step; returns the new weights' hash."""
        with self.engine.paused():
            self._weights.apply(update)
            self._applied.append(update)
            return self.hash

    def restore(self, updates: Sequence[Update]) -> str:
        """Make the weights those of the files after these updates; returns their hash."""
        with self.engine.paused() as model:
            if self._applied != list(updates[: len(self._applied)]):
                _reload(model, self.tuning.model)
                self._weights, self._applied = self._fresh(), []
            for update in updates[len(self._applied) :]:
                self._weights.apply(update)
                self._applied.append(update)
            return self.hash

    def close(self) -> None:
        """End the engine: whoever calls this model next gets it as it is in its files."""
        self.engine.close()

    def _fresh(self) -> Weights:
        return Weights(self.engine.model, self.layout, anchor="copy" if self.tuning.anchored else None)


def _variants(layout: Layout, generation: Generation) -> Variants:
    return Full(layout, generation) if generation.rank is None else LowRank(layout, generation)


def _reload(model: Any, path: str) -> None:
    """Write the weights of the files over the model's own, in place."""
    pristine = load(path, dtype=next(model.parameters()).dtype)
    with torch.no_grad():
        known = dict(pristine.named_parameters())
        for name, parameter in model.named_parameters():
            parameter.copy_(known[name])
