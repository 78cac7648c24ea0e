"""A proposer whose answers are kept: a run that is gone on with pays for no proposal twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langgraph_amc.evaluate.optimizing.answers import asking_as
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Evidence, Proposal, Proposer, Rejected


@dataclass(frozen=True, slots=True)
class Remembered:
    """A proposer whose model's answers are kept like those of rollouts, by the round that they belong to."""

    inner: Proposer

    @property
    def name(self) -> str:
        """The proposer's."""
        return self.inner.name

    async def propose(
        self, library: SkillLibrary, evidence: Evidence, rejected: Sequence[Rejected], limit: int
    ) -> tuple[Proposal, ...]:
        """What it proposes; its calls belong to this champion, after so many rejections."""
        with asking_as("proposals", library.digest, len(rejected)):
            return await self.inner.propose(library, evidence, rejected, limit)
