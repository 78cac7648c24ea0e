"""Variants: perturbed forms of one model that a batch engine serves side by side (`BatchEngine.serving`)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, Protocol


class Variants(Protocol):
    """Makes a model compute with another variant of its weights for each row of a batch.

    All methods are called by one thread at a time, and none while a forward pass runs. An engine attaches once,
    calls `use` whenever other rows are to be computed, and detaches, whatever has happened in between.
    """

    @property
    def names(self) -> Collection[Hashable]:
        """The variants that requests may name; ``None``, the weights as they are, can always be had."""
        ...

    @property
    def mixes(self) -> bool:
        """Whether rows of different variants can share a forward pass; if not, they are served in turn."""
        ...

    def attach(self, model: Any) -> None:
        """Get ready to change what this model computes; an error must leave the model as it was."""
        ...

    def detach(self, model: Any) -> None:
        """Give the model back exactly as it was before `attach`."""
        ...

    def use(self, rows: Sequence[Hashable | None]) -> None:
        """Say which variant each row of the forward passes to come is of, in the order of the rows."""
        ...
