"""The weights of the model that writes: one that is tuned in this process, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from langgraph_amc.evaluate.coevolving.rollouts import NO_WEIGHTS
from langgraph_amc.evaluate.evolving.replicas import serving_on
from langgraph_amc.evolution.asktell import Update
from langgraph_amc.evolution.members import Generation

if TYPE_CHECKING:
    from langgraph_amc.evaluate.evolving.replica import Replica


class NoWeights:
    """A model behind an API, or one that is to stay as it is."""

    weighty = False
    layout = NO_WEIGHTS

    def serving(self, generation: Generation) -> AbstractAsyncContextManager[None]:
        """All members are the model as it is."""
        return nullcontext()

    async def apply(self, update: Update) -> str:
        """Nothing moves."""
        return NO_WEIGHTS

    async def restore(self, updates: Sequence[Update]) -> str:
        """Nothing has moved."""
        return NO_WEIGHTS


class LocalWeights:
    """A model of this process."""

    weighty = True

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self.layout = replica.layout.fingerprint()

    def serving(self, generation: Generation) -> AbstractAsyncContextManager[None]:
        """The engine answers for members."""
        return serving_on(self._replica, generation)

    async def apply(self, update: Update) -> str:
        """Take a step."""
        return await asyncio.to_thread(self._replica.apply, update)

    async def restore(self, updates: Sequence[Update]) -> str:
        """Go to other weights."""
        return await asyncio.to_thread(self._replica.restore, updates)
