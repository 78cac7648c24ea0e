"""Where a particle stands, as the journal keeps it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_amc.runtime.journal.coding import Typed, dump, to_json
from langgraph_amc.runtime.journal.messages import from_plain_lists, plain_lists
from langgraph_amc.trajectories.types import Status, Usage

_TEXT = ("utf-8", "surrogatepass")
"""How segments are stored: models also write what no text column takes."""


@dataclass(frozen=True, slots=True)
class ParticleRecord:
    """One particle at a boundary, or at its end.

    Attributes
    ----------
    parent, forked_at: the particle and boundary it was cloned from.
    status: how it ended; ``None`` while it can run.
    boundary, step: the boundary it has reached, and LangGraph's number of its last super-step.
    started: whether boundary 0 has been passed.
    ran: nodes that ran in the super-step that ended last.
    segments, rewards, values: the transcript, the step rewards and V where it was scored; segments only grow.
    outcome: reward of the finished run as a whole.
    model_nodes: top-level nodes that have called a model.
    output: what it ended with; only of particles that have ended and were not pruned.
    extra: whatever else has to be kept; JSON.
    """

    name: str
    parent: str | None = None
    forked_at: int | None = None
    status: Status | None = None
    boundary: int = 0
    step: int = -2
    started: bool = False
    ran: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()
    rewards: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()
    outcome: float | None = None
    usage: Usage = field(default_factory=Usage)
    model_nodes: frozenset[str] = frozenset()
    error: str | None = None
    output: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def to_row(
    run: int,
    record: ParticleRecord,
    shares: int,
    saver: bytes | None,
    serde: SerializerProtocol,
    held: Mapping[str, int],
) -> tuple[Any, ...]:
    """A row of the table of particles.

    ``shares``: how many segments it has in common with its parent. ``held``: see `plain_lists`.
    """
    usage = record.usage
    body = {
        "shares": shares,
        "segments": len(record.segments),
        "started": record.started,
        "ran": record.ran,
        "rewards": record.rewards,
        "values": record.values,
        "outcome": record.outcome,
        "usage": (usage.calls, usage.input_tokens, usage.output_tokens, usage.cost),
        "model_nodes": sorted(record.model_nodes),
        "error": record.error,
        "extra": record.extra,
    }
    output: Typed | tuple[None, None] = (None, None)
    if record.status not in (None, "pruned") and record.output is not None:
        output = dump_output(serde, record.output, f"the output of particle {record.name}", held)
    return (
        run,
        record.name,
        record.parent,
        record.forked_at,
        record.status,
        record.boundary,
        record.step,
        to_json(body, f"particle {record.name}"),
        saver,
        *output,
    )


_LISTS = "lists+"
"""Before the form of an output whose lists of messages are stored in parts, or with the checkpoints."""


def dump_output(serde: SerializerProtocol, output: Any, what: str, held: Mapping[str, int]) -> Typed:
    """What a particle has ended with, as it is stored."""
    parts = plain_lists(output, held)
    if parts is None:
        return dump(serde, output, what)
    kind, data = dump(serde, parts, what)
    return _LISTS + kind, data


def load_output(serde: SerializerProtocol, kind: str, data: bytes, value: Callable[[int], Any]) -> Any:
    """The output that `dump_output` stored; ``value`` gives what is stored with the checkpoints by its number."""
    loaded = serde.loads_typed((kind.removeprefix(_LISTS), data))
    return from_plain_lists(loaded, value) if kind.startswith(_LISTS) else loaded


def from_row(row: Any, segments: Sequence[str] = (), output: Any = None) -> ParticleRecord:
    """The record of a row, with what is stored elsewhere."""
    body = json.loads(row.body)
    return ParticleRecord(
        name=row.name,
        parent=row.parent,
        forked_at=row.forked_at,
        status=row.status,
        boundary=row.boundary,
        step=row.step,
        started=body["started"],
        ran=tuple(body["ran"]),
        segments=tuple(segments),
        rewards=tuple(body["rewards"]),
        values=tuple(body["values"]),
        outcome=body["outcome"],
        usage=Usage(*body["usage"]),
        model_nodes=frozenset(body["model_nodes"]),
        error=body["error"],
        output=output,
        extra=body["extra"],
    )


class Transcripts:
    """Which segments are stored: each once, a clone's from where it left its parent."""

    def __init__(self) -> None:
        self._stored: dict[str, tuple[str, ...]] = {}
        self._shares: dict[str, int] = {}

    def add(self, run: int, record: ParticleRecord) -> tuple[int, list[tuple[str, tuple[Any, ...]]]]:
        """How many segments are the parent's, and the changes that store what is new."""
        name, segments = record.name, record.segments
        changes: list[tuple[str, tuple[Any, ...]]] = []
        if name not in self._stored:
            shares = known = common(self._stored.get(record.parent or "", ()), segments)
        else:
            shares, stored = self._shares[name], self._stored[name]
            known = common(stored, segments)
            if known < len(stored):  # it was gone on with from an earlier point
                shares = min(shares, known)
                changes.append(("forget steps", (run, name, known)))
        changes += [("step", (run, name, t, segments[t].encode(*_TEXT))) for t in range(known, len(segments))]
        self._stored[name], self._shares[name] = segments, shares
        return shares, changes

    def load(self, rows: Sequence[Any], steps: Sequence[Any]) -> dict[str, tuple[str, ...]]:
        """Segments by particle, from the rows of the particles and of the steps in order of t."""
        own: dict[str, list[str]] = {}
        for step in steps:
            own.setdefault(step.particle, []).append(bytes(step.segment).decode(*_TEXT))
        by_name = {row.name: row for row in rows}
        bodies = {row.name: json.loads(row.body) for row in rows}

        def segments(name: str) -> tuple[str, ...]:
            # not recursive: a lineage can be long
            line = [name]
            while line[-1] not in self._stored and bodies[line[-1]]["shares"]:
                line.append(by_name[line[-1]].parent)
            for member in reversed(line):
                if member not in self._stored:
                    shares = bodies[member]["shares"]
                    above = self._stored[by_name[member].parent][:shares] if shares else ()
                    self._stored[member] = (*above, *own.get(member, ()))
                    self._shares[member] = shares
            return self._stored[name]

        return {name: segments(name)[: bodies[name]["segments"]] for name in by_name}


def common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the longest common beginning; what two lines share is usually one and the same object."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
