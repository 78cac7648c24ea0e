"""One durable run: what its particles, its filter, its models and its effects leave in the journal."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_amc.runtime.cells import Packed, freeze
from langgraph_amc.runtime.journal.answers import JournaledAnswers
from langgraph_amc.runtime.journal.coding import to_json
from langgraph_amc.runtime.journal.effects import JournalOutbox
from langgraph_amc.runtime.journal.errors import JournalError
from langgraph_amc.runtime.journal.owner import Hold
from langgraph_amc.runtime.journal.reading import RunRows
from langgraph_amc.runtime.journal.rebuild import rebuild
from langgraph_amc.runtime.journal.records import ParticleRecord, Transcripts, from_row, load_output, to_row
from langgraph_amc.runtime.journal.schema import OF_A_RUN, STATE
from langgraph_amc.runtime.journal.tree import Tree
from langgraph_amc.runtime.journal.writer import Change
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.trajectories.types import Usage

Keep = Literal["record", "everything", "nothing"]


@dataclass(frozen=True, slots=True)
class Restored:
    """A run as it was left.

    Attributes
    ----------
    population: what `RunJournal.population` was given last; ``None`` if it never was.
    unanswered: what the calls that were on their way may have taken, by call.
    particles: every particle at its last boundary, in order of birth. One that can run on or be selected has a
        saver; nodes and values are shared between savers as they were.
    """

    population: Mapping[str, Any] | None
    particles: Mapping[str, tuple[ParticleRecord, ParticleSaver | None]]
    unanswered: Mapping[UUID, Usage]


@dataclass(frozen=True, slots=True)
class Opened:
    """The identity of a run, and what an earlier process left of it."""

    no: int
    id: str
    key: str
    seed: int
    about: Mapping[str, Any]
    input: Any
    taken_over: bool
    hold: Hold


class RunJournal:
    """The journal of one run; made by `Journal.open`, safe to use from several threads.

    What it is told is written in the order in which it is told; nothing waits for the disk but paid answers,
    effects, and `flush`. It may not be used any more after `finish` or `release`.

    Attributes
    ----------
    taken_over: whether this goes on with a run that an earlier process left; then `restore` comes first.
    answers: of `langgraph_amc.runtime.llm_cache.Answers`.
    outbox: of `langgraph_amc.runtime.outbox.Outbox`.
    """

    def __init__(
        self,
        opened: Opened,
        rows: RunRows,
        serde: SerializerProtocol,
        keep: Keep,
        closed: Callable[[RunJournal], None],
    ) -> None:
        self.no, self.id, self.key, self.seed = opened.no, opened.id, opened.key, opened.seed
        self.about, self.input, self.taken_over = opened.about, opened.input, opened.taken_over
        self.hold, writer = opened.hold, opened.hold.writer
        self.answers = JournaledAnswers(self.no, writer, serde, rows.answers() if self.taken_over else ())
        self.outbox = JournalOutbox(self.no, writer, serde, rows.effects() if self.taken_over else ())
        self.lost = False
        """Whether another process has taken this run over, because this one was not heard of for too long."""
        self._rows, self._writer, self._serde, self._keep, self._closed = rows, writer, serde, keep, closed
        self._lock = threading.Lock()
        self._tree, self._transcripts = Tree(), Transcripts()
        self._tree.input = _as_frozen(self.input)
        self._pruned: dict[str, ParticleRecord] = {}
        self._passed: dict[str, int] = {}
        self._buried: set[str] = set()
        """Particles whose pruning is to take effect, and whose has."""
        self._dead = False
        """Whether a particle that had nodes needs them no longer."""
        self._ready, self.ended = not self.taken_over, False

    def particle(self, record: ParticleRecord, saver: ParticleSaver | None) -> None:
        """Note where a particle stands; writes what is new since it, or the particles it descends from, were noted.

        Note a clone when it is born, before the population that counts on it. That a particle is pruned takes
        effect with the next `population` (or the end), so that none that was noted before can miss it.
        """
        with self._lock:
            self._check()
            if record.status == "pruned":
                if record.name not in self._buried:
                    self._pruned[record.name] = record
                return
            self._writer.put(self._particle(record, saver))

    def population(self, state: Mapping[str, Any]) -> None:
        """Note the state of the filter, in place of the last; JSON, numpy and infinite numbers allowed."""
        text = to_json(state, "the population")
        with self._lock:
            self._check()
            self._writer.put([*self._bury(), *self._forget_answers(), ("population", (text, self.no))])

    def asked(self, call: UUID, worst: Usage) -> None:
        """A model is being asked, which may take so much; written within milliseconds."""
        text = to_json([worst.calls, worst.input_tokens, worst.output_tokens, worst.cost], "a model's call")
        with self._lock:
            if not self.ended:
                self._writer.put([("asked", (self.no, call.bytes, text))], soon=True)

    def answered(self, *calls: UUID) -> None:
        """These calls are paid, or were never made."""
        with self._lock:
            if not self.ended:
                self._writer.put([("forget asked", (self.no, call.bytes)) for call in calls])

    def restore(
        self,
        base: BaseCheckpointSaver | None = None,
        serde: SerializerProtocol | None = None,
        blank: Callable[[], ParticleSaver] | None = None,
    ) -> Restored | None:
        """What an earlier process left, its savers over ``base``; ``None`` for a new run.

        Parameters
        ----------
        serde: reads the channel values; by default that of ``base``.
        blank: makes an empty saver, where particles have savers of a kind of their own.
        """
        if not self.taken_over:
            return None
        with self._lock:
            if self._ready:
                raise JournalError(f"run {self.id} was restored already")
            rows, steps = self._rows.particles(), self._rows.steps()
            states = {row.name: bytes(row.saver) for row in rows if row.saver is not None}
            made = blank or functools.partial(ParticleSaver, base)
            try:
                rebuilt = rebuild(self._rows.nodes(), states, self.input, made, serde or made().serde)
            except (LookupError, TypeError, ValueError) as error:
                raise JournalError(
                    f"the particles of run {self.id} cannot be read ({type(error).__name__}: {error}): give the app "
                    "the serialiser that it had, or delete the run with `amc prune`"
                ) from error
            self._tree = rebuilt.tree
            self._tree.input = _as_frozen(self.input)
            segments = self._transcripts.load(rows, steps)
            self._ready = True
        particles = {
            row.name: (from_row(row, segments[row.name], self._output(row, rebuilt.tree)), rebuilt.savers.get(row.name))
            for row in rows
        }
        population = self._rows.population()
        unanswered = {UUID(bytes=bytes(row.call)): Usage(*json.loads(row.worst)) for row in self._rows.asked()}
        return Restored(None if population is None else json.loads(population), particles, unanswered)

    def flush(self) -> None:
        """Block until everything noted so far is committed."""
        self._writer.wait()

    async def aflush(self) -> None:
        """`flush` on an event loop."""
        await self._writer.await_()

    def finish(self, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """The run has ended; keeps of it what the journal's ``keep`` says."""
        self._writer.wait(self._finish(status, summary))
        self._closed(self)

    async def afinish(self, status: str, summary: Mapping[str, Any] | None = None) -> None:
        """`finish` on an event loop."""
        await self._writer.await_(self._finish(status, summary))
        self._closed(self)

    def release(self) -> None:
        """Leave the run for another process (or a later call) to go on with."""
        if (ticket := self._release()) is not None:
            self._writer.wait(ticket)
            self._closed(self)

    async def arelease(self) -> None:
        """`release` on an event loop."""
        if (ticket := self._release()) is not None:
            await self._writer.await_(ticket)
            self._closed(self)

    # -- inside ----------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.ended:
            raise JournalError(f"run {self.id} has been closed")
        if self.lost:
            raise JournalError(f"run {self.id} was taken over by another process: this one must not go on with it")
        if not self._ready:
            raise JournalError(f"run {self.id} goes on with an earlier one: call restore() first")

    def _particle(self, record: ParticleRecord, saver: ParticleSaver | None) -> list[Change]:
        state: bytes | None = None
        changes: list[Change] = []
        held: Mapping[str, int] = {}
        if saver is None:
            self._dead |= self._tree.forget(record.name)
        else:
            nodes, edges, state = self._tree.write(record.name, saver)
            held = self._tree.numbers(record.output, saver)
            changes += [("node", (self.no, *row)) for row in nodes]
            changes += [("edge", (edge, self.no, no)) for no, edge in edges]
        shares, steps = self._transcripts.add(self.no, record)
        changes += steps
        changes.append(("particle", to_row(self.no, record, shares, state, self._serde, held)))
        self._passed[record.name] = record.boundary + (record.status is not None)
        return changes

    def _forget_answers(self) -> list[Change]:
        """What removes answers to questions that are never asked again."""
        passed, self._passed = self._passed, {}
        return [change for name, boundary in passed.items() for change in self.answers.passed(name, boundary)]

    def _bury(self) -> list[Change]:
        """Of particles that were pruned or given up the records stay; nodes that only they needed go."""
        changes = [change for record in self._pruned.values() for change in self._particle(record, None)]
        self._buried.update(self._pruned)
        self._pruned.clear()
        if self._dead:
            changes += [("forget node", (self.no, no)) for no in self._tree.sweep()]
            self._dead = False
        return changes

    def _finish(self, status: str, summary: Mapping[str, Any] | None) -> int:
        text = to_json(summary or {}, "the summary of the run")
        with self._lock:
            self._ready = True
            self._check()
            changes = self._bury()
            if self._keep == "nothing":
                changes += drop(self.no)
            else:
                changes.append(("end", (status, text, time.time(), self.no)))
                if self._keep == "record":
                    changes += [(f"drop {table}", (self.no,)) for table in STATE]
                    changes += [("forget savers", (self.no,)), ("forget input", (self.no,))]
            return self._end(changes)

    def _release(self) -> int | None:
        """What to wait for; ``None`` if the run is open no more."""
        with self._lock:
            if self.ended:
                return None
            if self.lost:
                return self._end(())
            changes = self._bury() if self._ready else []
            return self._end([*changes, ("owner", (None, time.time(), self.no))])

    def _end(self, changes: Sequence[Change]) -> int:
        self.ended = True  # before the writer can see that the run has no owner any more
        return self._writer.put(changes)

    def _output(self, row: Any, tree: Tree) -> Any:
        if row.output is None:
            return None
        return load_output(self._serde, row.output_type, bytes(row.output), tree.value)


def _as_frozen(input: Any) -> bytes | None:
    cell = freeze(input)
    return cell.data if isinstance(cell, Packed) else None


def drop(no: int) -> list[Change]:
    """What deletes a run."""
    return [(f"drop {table}", (no,)) for table in (*OF_A_RUN, "run")]
