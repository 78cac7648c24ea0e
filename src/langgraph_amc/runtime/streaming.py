"""Which of the particles' stream events are shown, and when.

A particle's events lie in segments, from one boundary to the next, which clones share with their parents.
`SettledStream` shows a segment once every particle in the race has it: what was shown stays true.
`BestStream` shows at every check what the particle that is best valued now has done; where a later check
prefers another one, it says so and goes on from where the two part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from langchain_core.messages import BaseMessage

from langgraph_amc.runtime.launch import Event, parse_event

Segment = tuple[Event, ...]

LIVE_METADATA = frozenset({"source", "step", "parents", "counters_since_delta_snapshot"})
"""Metadata of a checkpoint as its run shows it; what is saved also holds the metadata of the call."""


class Runner(Protocol):
    """What is needed of a particle."""

    name: str
    lineage: tuple[Segment, ...]
    values: tuple[float | None, ...]

    @property
    def done(self) -> bool: ...

    @property
    def observed(self) -> float: ...


class Stream(Protocol):
    """A way to show a run."""

    def check(self, candidates: Sequence[Runner]) -> list[Event]:
        """Events to show now; ``candidates`` are all particles in the race, in order of birth."""
        ...

    def end(self, winner: Runner) -> list[Event]:
        """What is left to show once the winner is known."""
        ...


@dataclass(slots=True)
class SettledStream:
    """Shows what every particle in the race has in common."""

    shown: int = 0

    def check(self, candidates: Sequence[Runner]) -> list[Event]:
        lineages = [p.lineage for p in candidates]
        events: list[Event] = []
        while lineages and all(len(line) > self.shown for line in lineages):
            segment = lineages[0][self.shown]
            if any(line[self.shown] is not segment for line in lineages):
                break
            events.extend(segment)
            self.shown += 1
        return events

    def end(self, winner: Runner) -> list[Event]:
        left = winner.lineage[self.shown :]
        self.shown = len(winner.lineage)
        return [event for segment in left for event in segment]


@dataclass(slots=True)
class BestStream:
    """Shows the particle that is best valued now, ahead of the decision.

    ``gives`` tells which events the reader gets: those are what it is told to drop.
    """

    gives: Callable[[Event], bool]
    shown: tuple[Segment, ...] = ()
    particle: str | None = None

    def check(self, candidates: Sequence[Runner]) -> list[Event]:
        best = self._best([p for p in candidates if p.lineage])
        return [] if best is None else self._show(best)

    def end(self, winner: Runner) -> list[Event]:
        return self._show(winner)

    def _best(self, candidates: Sequence[Runner]) -> Runner | None:
        # of equals the one that is shown already: a needless switch would only confuse the reader
        return max(
            candidates,
            key=lambda p: (_potential(p), _common(self.shown, p.lineage), len(p.lineage)),
            default=None,
        )

    def _show(self, best: Runner) -> list[Event]:
        common = _common(self.shown, best.lineage)
        events: list[Event] = []
        if common < min(len(self.shown), len(best.lineage)) or (common < len(self.shown) and best.done):
            events.append(self._switch(best.name, common))
        elif common < len(self.shown):
            return []  # the same line, seen from a particle that has not come as far
        events.extend(event for segment in best.lineage[common:] for event in segment)
        self.shown, self.particle = best.lineage, best.name
        return events

    def _switch(self, particle: str, common: int) -> Event:
        """The custom event that tells a reader to drop the last events: another line goes on from there."""
        kept, withdrawn = (
            sum(self.gives(event) for segment in part for event in segment)
            for part in (self.shown[:common], self.shown[common:])
        )
        about = {"event": "switch", "particle": particle, "from": self.particle, "kept": kept, "withdrawn": withdrawn}
        return (), "custom", {"amc": about}, None


def _potential(particle: Runner) -> float:
    """Return so far and to come, as far as it is known."""
    value = next((v for v in reversed(particle.values) if v is not None), None)
    return particle.observed + (value or 0.0)


def _common(one: Sequence[Segment], other: Sequence[Segment]) -> int:
    """How many segments two lineages share."""
    n = 0
    for a, b in zip(one, other, strict=False):
        if a is not b and not _continued(a, b):
            break
        n += 1
    return n


def _continued(shown: Segment, now: Segment) -> bool:
    """Whether ``now`` is ``shown`` after a pause, which takes back the events of the interrupted step."""
    kept = {id(event) for event in shown}
    return bool(now) and len(now) < len(shown) and all(id(event) in kept for event in now)


# -- events as they were ---------------------------------------------------------------------------------


def kept_event(event: Event, entered: str | None, watched: bool) -> Event:
    """An event as the user of a plain run would see it at this moment.

    ``entered`` is the checkpoint a clone has entered at: its debug event comes from what was saved. Where the
    stream is watched, messages and containers are copied: nodes and reducers go on to edit what they were given.
    """
    ns, mode, payload, raw = event
    if mode == "debug" and entered is not None and not ns and payload["type"] == "checkpoint":
        inner = payload["payload"]
        if inner["config"]["configurable"]["checkpoint_id"] == entered:
            metadata = {k: v for k, v in inner["metadata"].items() if k in LIVE_METADATA}
            inner["metadata"] = metadata  # the payload was made for this stream alone
    return parse_event(_snapshot(raw)) if watched else event


def _snapshot(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return copy.copy(value)
    kind = type(value)
    if kind is dict:
        return {k: _snapshot(v) for k, v in value.items()}
    if kind is list:
        return [_snapshot(v) for v in value]
    if kind is tuple:
        return tuple([_snapshot(v) for v in value])
    return value
