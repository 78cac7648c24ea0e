"""Runs of langgraph-amc that were traced themselves: particles with their lineage, as a live run records them.

A clone is logged from where it was cloned: the states before are its parent's. docs/tracing.md names the attributes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import get_args

from langgraph_amc.trajectories.importers.conversation import Conversation
from langgraph_amc.trajectories.types import Status


def with_lineages(conversations: Iterable[Conversation]) -> Iterator[Conversation]:
    """Conversations of one trace, those of particles with the states of their ancestors and the status they ended in.

    Clones whose parents are not in the log begin where they were cloned, as invocations of their own.
    """
    found = list(conversations)
    lives = Counter((c.run, c.particle.id) for c in found if c.particle is not None)
    known: dict[tuple[str, str], Conversation] = {}
    for conversation in sorted(found, key=lambda c: c.start):
        particle, run = conversation.particle, conversation.run
        plain = replace(conversation, particle=None, run=None)
        if particle is None or run is None or lives[run, particle.id] > 1:
            yield plain  # a particle that goes on behind its effects is logged twice
            continue
        parent = None if particle.parent is None else known.get((run, particle.parent))
        if particle.parent is not None and (parent is None or len(parent.states) <= (particle.forked_at or 0)):
            yield plain
            continue
        if parent is not None:
            conversation = replace(conversation, states=(*parent.states[: particle.forked_at], *conversation.states))
        ended = next((status for status in get_args(Status) if status == particle.outcome), conversation.status)
        known[run, particle.id] = replace(conversation, status=ended)
        yield known[run, particle.id]
