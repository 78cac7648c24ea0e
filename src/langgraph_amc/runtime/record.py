"""What a particle's run leaves behind on the way: its transcript and step rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import BaseMessage

from langgraph_amc.tasks.rewards import step_reward
from langgraph_amc.trajectories.transcript import Transcript, TranscriptBuilder, TranscriptError


@dataclass(frozen=True, slots=True)
class Kept:
    """What a journal keeps of a record: its texts and rewards, and how much of the state it had read."""

    segments: tuple[str, ...]
    rewards: tuple[float, ...]
    messages: int
    seen: int


@dataclass(frozen=True, slots=True)
class Record:
    """Transcript and step rewards so far; immutable, so a clone shares its parent's."""

    builder: TranscriptBuilder | None = None
    """``None`` where the state cannot be written as text; segments are then empty."""
    segments: tuple[str, ...] = ()
    rewards: tuple[float, ...] = ()
    messages: tuple[Any, ...] = ()
    """Messages of the last state; their rewards are booked."""
    needed: bool = True
    """Whether a state that cannot be written as text is an error; else it ends the text."""
    problem: str | None = None
    """Why the text has ended."""

    @classmethod
    def restored(cls, transcript: Transcript | None, record: Kept, state: Any, needed: bool) -> Record:
        """The record that had these segments when the run stood at ``state``, or at a part of it."""
        messages = messages_of(state)[: record.messages]
        if state is None:  # it was pruned, and its states are gone
            return cls(None, record.segments, record.rewards, messages, needed)
        try:
            builder = None if transcript is None else TranscriptBuilder(transcript).extend(state)
        except TranscriptError as error:
            return cls(None, record.segments, record.rewards, messages, needed, str(error))
        if builder is not None:
            seen = None if builder.seen is None else builder.seen[: record.seen]
            builder = replace(builder, segments=record.segments, seen=seen)
        return cls(builder, record.segments, record.rewards, messages, needed)

    @property
    def seen(self) -> int:
        """How many messages, or how much text, the transcript has of the last state."""
        return 0 if self.builder is None or self.builder.seen is None else len(self.builder.seen)

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
        added = [m for m in self._added(messages) if isinstance(m, BaseMessage)]
        rewards = () if self.empty else (*self.rewards, step_reward(added))
        return Record(builder, segments, rewards, messages, self.needed, problem)

    def _added(self, messages: tuple[Any, ...]) -> list[Any]:
        """Messages the last state did not have, also where earlier ones were removed or summarised."""
        before = len(self.messages)
        if len(messages) >= before and (not before or _same(messages[before - 1], self.messages[-1])):
            return list(messages[before:])
        known = {getattr(m, "id", None) or id(m) for m in self.messages}
        return [m for m in messages if (getattr(m, "id", None) or id(m)) not in known]


def _same(a: Any, b: Any) -> bool:
    """Whether two states mean one message; a clone holds copies, with the same ids."""
    name = getattr(a, "id", None)
    return a is b or (name is not None and name == getattr(b, "id", None)) or bool(a == b)


def messages_of(state: Any) -> tuple[Any, ...]:
    """The messages of a state, wherever LangGraph apps keep them by convention."""
    found = state.get("messages") if isinstance(state, Mapping) else getattr(state, "messages", state)
    return tuple(found) if isinstance(found, list | tuple) else ()
