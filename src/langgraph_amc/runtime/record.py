"""What a particle's run leaves behind on the way: its transcript and step rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph_amc.tasks.rewards import step_reward
from langgraph_amc.trajectories.transcript import TranscriptBuilder, TranscriptError


@dataclass(frozen=True, slots=True)
class Record:
    """Transcript and step rewards so far; immutable, so a clone shares its parent's."""

    builder: TranscriptBuilder | None = None
    """``None`` where the state cannot be written as text; segments are then empty."""
    segments: tuple[str, ...] = ()
    rewards: tuple[float, ...] = ()
    messages: int = 0
    """How many messages the last state had; their rewards are booked."""
    needed: bool = True
    """Whether a state that cannot be written as text is an error; else it ends the text."""
    problem: str | None = None
    """Why the text has ended."""

    @property
    def empty(self) -> bool:
        return not self.segments

    def extend(self, state: Any) -> Record:
        """The record after one more state."""
        builder, problem = self.builder, self.problem
        if builder is not None:
            try:
                builder = builder.extend(state)
            except TranscriptError as error:
                if self.needed:
                    raise
                builder, problem = None, str(error)
        segments = (*self.segments, "") if builder is None else builder.segments
        messages = messages_of(state)
        rewards = () if self.empty else (*self.rewards, step_reward(messages[self.messages :]))
        return Record(builder, segments, rewards, len(messages), self.needed, problem)


def messages_of(state: Any) -> tuple[Any, ...]:
    """The messages of a state, wherever LangGraph apps keep them by convention."""
    found = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", state)
    return tuple(found) if isinstance(found, list | tuple) else ()
