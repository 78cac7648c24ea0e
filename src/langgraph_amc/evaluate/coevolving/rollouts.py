"""`coevolve.loop.Rollouts` over the rollouts, rewards and store of evolution, with weights or without."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from langgraph_amc.coevolve.design import Arms
from langgraph_amc.coevolve.loop import Floats
from langgraph_amc.evaluate.evolving.report import columns_of
from langgraph_amc.evaluate.evolving.rollouts import TRAIN, Rollout, StoredRollouts
from langgraph_amc.evaluate.execution.executor import Executor
from langgraph_amc.evaluate.runner import Job, Outcome, Progress
from langgraph_amc.evolution.asktell import Update
from langgraph_amc.evolution.history import Record
from langgraph_amc.evolution.loop import Column
from langgraph_amc.evolution.members import Generation
from langgraph_amc.skills.evidence import gather
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Evidence
from langgraph_amc.trajectories.types import Trajectory

NO_WEIGHTS = "none"
"""Stands for the hash of the weights where there are none that could be tuned."""
LOOKED_AT = 4
"""Generations whose rollouts are shown to a proposer: older ones are of other weights."""


class Weightless:
    """`Replicas` of a model behind an API: there is nothing to perturb, and every step is the empty one."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._begun = 0

    def run(
        self, jobs: Iterable[Job], *, concurrency: int, progress: Progress | None = None
    ) -> AsyncGenerator[Outcome, None]:
        """Run jobs here."""
        todo = list(jobs)
        self._begun += len(todo)
        return self._executor.run(todo, concurrency=concurrency, progress=progress)

    def serving(self, generation: Generation) -> AbstractAsyncContextManager[None]:
        """All members are the model as it is."""
        return nullcontext()

    async def apply(self, update: Update) -> str:
        """Nothing moves."""
        return NO_WEIGHTS

    async def restore(self, updates: Sequence[Update]) -> str:
        """Nothing has moved."""
        return NO_WEIGHTS

    async def samples(self, *, members: bool) -> int:
        """Rollouts begun: what the API was asked, only the API knows."""
        return self._begun

    async def layout(self) -> str:
        """Of nothing."""
        return NO_WEIGHTS

    async def dtype(self) -> str:
        """Of nothing."""
        return NO_WEIGHTS


class SkilledRollouts:
    """Rollouts with a library for each member and column.

    Parameters
    ----------
    rollouts: what runs and keeps them. weighty: whether the model's weights are tuned. start: hash of the weights
        that the run started from.
    """

    def __init__(self, rollouts: StoredRollouts, *, weighty: bool, start: str) -> None:
        self._rollouts = rollouts
        self._weighty = weighty
        self._start = start

    @property
    def weighty(self) -> bool:
        """Whether there are weights to be tuned."""
        return self._weighty

    def serving(self, generation: Generation) -> AbstractAsyncContextManager[None]:
        """The replicas answer for the generation's members."""
        return self._rollouts.serving(generation)

    async def rewards(
        self, generation: Generation, columns: Sequence[Column], libraries: Sequence[SkillLibrary], arms: Arms
    ) -> Floats:
        """Rewards [members, columns]; NaN where missing."""
        wanted = planned(generation, columns, libraries, arms)
        found = await self._rollouts.members(generation, wanted)
        return found.reshape(len(generation.members), len(columns))

    async def evidence(self, log: Sequence[Record], champion: SkillLibrary) -> Evidence:
        """What the last few generations show of this library, from the store."""
        return gather(t for trajectories in self._shown(log, champion) for t in trajectories)

    def _shown(self, log: Sequence[Record], champion: SkillLibrary) -> Iterator[Iterator[Trajectory]]:
        """Rollouts with another library have other names in the store, so all that is found is the champion's."""
        for number in range(max(0, len(log) - LOOKED_AT), len(log)):
            generation = log[number].update.generation
            wanted = [
                Rollout(TRAIN, generation.number, member, column, champion)
                for member in generation.members
                for column in columns_of(log[number])
            ]
            yield self._rollouts.stored(generation, wanted, log[number - 1].weights if number else self._start)

    async def validate(self, weights: str, library: SkillLibrary) -> Floats:
        """Rewards [tasks, repeats] on the validation tasks."""
        return await self._rollouts.validate(weights, library)

    async def validated(self, weights: str, library: SkillLibrary) -> Floats:
        """What is stored of `validate`."""
        return await self._rollouts.validated(weights, library)

    async def apply(self, update: Update) -> str:
        """Take a step."""
        return await self._rollouts.apply(update)

    async def restore(self, updates: Sequence[Update]) -> str:
        """Go to the weights after these updates."""
        return await self._rollouts.restore(updates)


def planned(
    generation: Generation, columns: Sequence[Column], libraries: Sequence[SkillLibrary], arms: Arms
) -> list[Rollout]:
    """Who runs what with which library, members one after another: their prompts' prefixes are shared."""
    return [
        Rollout(TRAIN, generation.number, member, column, libraries[arms[row, place]])
        for row, member in enumerate(generation.members)
        for place, column in enumerate(columns)
    ]
