"""Asking a proposer, which may be anybody's: what it gives is proposals, or an error that names it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Evidence, Proposal, Proposer, Rejected, SkillError


async def asked(
    proposer: Proposer, library: SkillLibrary, evidence: Evidence, rejected: Sequence[Rejected], limit: int
) -> tuple[Proposal, ...]:
    """Its proposals, as they come.

    Raises SkillError where it gives something else, and whatever it raises.
    """
    given: object = await proposer.propose(library, evidence, rejected, limit)
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    if wrong := [item for item in found if not isinstance(item, Proposal)]:
        raise SkillError(f"the proposer {proposer.name!r} gave {wrong[0]!r:.60}: propose(…) gives Proposals")
    return found
