"""A particle: the app with a private copy-on-write saver and a held stream.

LangGraph's stream generators are lazy: one that is not pulled has not begun its next super-step. Pulling a
particle to its next ``"checkpoints"`` event therefore runs exactly one super-step, the edge where it is
held can be forked, and nothing runs in a particle that is not pulled.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.errors import ParentCommand
from langgraph.types import All, Command

from langgraph_amc.context import ParticleContext, current_boundary, current_particle
from langgraph_amc.runtime.boundaries import Boundary, Edge, ModelCalls, before_model
from langgraph_amc.runtime.engine import Engine
from langgraph_amc.runtime.isolation import OverlayStore
from langgraph_amc.runtime.record import Record
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.trajectories.transcript import Transcript, TranscriptBuilder
from langgraph_amc.trajectories.types import Status

MODES = ("checkpoints", "updates", "values")
"""Stream modes the runtime itself needs."""

Event = tuple[tuple[str, ...], str, Any, Any]
"""(namespace, mode, payload, the event as LangGraph emitted it)"""


@dataclass(frozen=True, slots=True)
class Launch:
    """What all particles of one run have in common."""

    app: Any
    engine: Engine
    config: RunnableConfig
    thread_id: str
    options: Mapping[str, Any]
    """Keyword arguments of ``stream``/``astream``, stream modes included."""
    alone: bool
    """A single particle of an app that has a saver is a plain run: it needs no copy of anything."""
    kept_modes: frozenset[str]
    boundary: Boundary
    transcript: Transcript | None
    needs_text: bool
    recursion_limit: int
    start_id: str | None
    base_step: int
    """Id and super-step number of the checkpoint the run starts from; None and -2 on a fresh thread."""
    interrupt_before: All | frozenset[str]
    interrupt_after: All | frozenset[str]
    untracked: frozenset[str]
    seed: int
    identity: Callable[[str], ParticleContext]

    def first_record(self, state: Any) -> Record:
        """The record of a run that has only its first state."""
        builder = None if self.transcript is None else TranscriptBuilder(self.transcript)
        return Record(builder, needed=self.needs_text).extend(state)

    def stops_at(self, edge: Edge) -> bool:
        """Whether a static breakpoint ends the run at this edge."""
        before, after = self.interrupt_before, self.interrupt_after
        return bool(
            (edge.next if before == "*" else not frozenset(before).isdisjoint(edge.next))
            or (edge.ran if after == "*" else not frozenset(after).isdisjoint(edge.ran))
        )


class StepsLeft(int):
    """A recursion limit for a clone, which enters in the middle of a run.

    LangGraph finds the last step as ``step + limit + 1``, where ``step`` is the one it enters at, and hands
    the limit on to subgraphs, which count from their own beginning. So the first to add, the clone itself,
    gets what is left of the limit, and everybody else the limit.
    """

    _used: int

    def __new__(cls, limit: int, used: int) -> StepsLeft:
        left = super().__new__(cls, limit)
        left._used = used
        return left

    def __radd__(self, step: int) -> int:
        used, self._used = self._used, 0
        return step + int(self) - used


def untracked_channels(app: Any) -> frozenset[str]:
    """Channels that no checkpoint holds, so that a clone must be handed them."""
    return frozenset(name for name, channel in app.channels.items() if isinstance(channel, UntrackedValue))


@dataclass(slots=True, eq=False)
class Particle:
    """One run of the app among N; see the module docstring."""

    launch: Launch
    name: str
    saver: ParticleSaver
    store: OverlayStore | None
    input: Any
    parent: Particle | None = None
    forked_at: int | None = None

    status: Status | None = None
    """``None`` while it can still run."""
    error: BaseException | None = None
    command: Command | None = None
    """A ``Command(graph=Command.PARENT)`` the run ended with."""
    boundary: int = 0
    step: int = -2
    state: Any = None
    output: Any = None
    interrupts: tuple[Any, ...] = ()
    record: Record = field(default_factory=lambda: Record())
    values: tuple[float | None, ...] = ()
    outcome: float | None = None
    lineage: tuple[tuple[Event, ...], ...] = ()
    """Stream events by segment; segments are shared with clones."""

    calls: ModelCalls = field(default_factory=ModelCalls)
    _run: Any = None
    _entry: str | None = None
    """Checkpoint id a clone re-enters at; its events up to there repeat what the parent emitted."""
    _started: bool = False
    """Whether boundary 0 has been passed."""
    _ran: tuple[str, ...] = ()
    _next: tuple[str, ...] = ()
    _moved: bool = False
    """Whether a super-step has ended since the last segment was closed."""
    _segment: list[Event] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.status is not None

    @property
    def observed(self) -> float:
        """Cumulative reward observed so far, the outcome included once it is known."""
        return math.fsum(self.record.rewards) + (self.outcome or 0.0)

    def fork(self, name: str) -> Particle:
        """A clone that stands at the same edge; O(1) in history."""
        if self.done:
            raise RuntimeError("a particle that has ended is never forked")
        saver = self.saver.fork()
        head = saver.head(self.launch.thread_id)
        if head is None:
            raise RuntimeError("a particle is forked at a boundary, not before it has started")
        return Particle(
            self.launch,
            name,
            saver,
            None if self.store is None else self.store.fork(),
            self._reentry_input(),
            parent=self,
            forked_at=self.boundary,
            boundary=self.boundary,
            step=self.step,
            state=self.state,
            output=self.output,
            record=self.record,
            values=self.values,
            lineage=self.lineage,
            calls=ModelCalls(self.calls.nodes),
            _entry=head.id,
            _started=self._started,
            _ran=self._ran,
        )

    async def advance(self, until: int | None) -> None:
        """Run on to boundary ``until`` (``None``: to the end)."""
        token = current_particle.set(self.launch.identity(self.name))
        boundary = current_boundary.set(self.boundary)
        # what the graph around the call hands on is in the launch's config already
        around = var_child_runnable_config.set(None)
        engine = self.launch.engine
        try:
            while not self.done and not engine.stopping and (until is None or self.boundary < until):
                current_boundary.set(self.boundary)
                await self._to_next_edge()
        finally:
            current_boundary.reset(boundary)
            var_child_runnable_config.reset(around)
            current_particle.reset(token)

    async def prune(self) -> None:
        """End this particle where it stands; its trace shows a clean end."""
        if not self.done:
            self.status = "pruned"
        if self._run is not None:
            run, self._run = self._run, None
            await self.launch.engine.close(run)

    # -- inside ----------------------------------------------------------------------------------

    def _open(self) -> Any:
        launch = self.launch
        config: RunnableConfig = {**launch.config, "callbacks": _with_handler(launch.config, self.calls)}
        if launch.alone:
            return launch.engine.open(launch.app, self.input, config, launch.options)
        app = copy.copy(launch.app)
        app.checkpointer = self.saver
        app.cache = None
        if self.store is not None:
            app.store = self.store
        head = self.saver.head(launch.thread_id)
        if self._entry is not None and head is not None:
            config["recursion_limit"] = StepsLeft(launch.recursion_limit, head.metadata["step"] - launch.base_step)
            configurable = {k: v for k, v in launch.config["configurable"].items() if k != "checkpoint_id"}
            if self.input is None:
                # a clone goes on, it does not resume: a subgraph with a memory of its own would otherwise
                # ignore the input it is about to get
                configurable["__pregel_resuming"] = False
            config["configurable"] = configurable
        return launch.engine.open(app, self.input, config, launch.options)

    def _reentry_input(self) -> Any:
        if not self.launch.untracked or not isinstance(self.state, Mapping):
            return None
        carried = {k: self.state[k] for k in self.launch.untracked if k in self.state}
        return Command(update=carried) if carried else None

    async def _to_next_edge(self) -> None:
        engine = self.launch.engine
        try:
            if self._run is None:
                self._run = self._open()
            while True:
                raw = await engine.next(self._run)
                ns, mode, payload = _parse(raw)
                if mode == "checkpoints" and not ns:
                    if self._entry is not None:
                        if payload["config"]["configurable"]["checkpoint_id"] != self._entry:
                            continue
                        self._entry = None
                        continue
                    self._keep((ns, mode, payload, raw))
                    if await self._at_edge(payload):
                        return
                elif self._entry is None:
                    self._see(ns, mode, payload)
                    self._keep((ns, mode, payload, raw))
        except StopAsyncIteration:
            self._end("interrupted" if self.interrupts or self._next else "finished")
        except ParentCommand as bubble:
            self.command = bubble.args[0]
            self._end("finished")
        except Exception as error:
            self.error = error
            self._end("failed")

    def _keep(self, event: Event) -> None:
        """Events the caller asked for; the others would only hold every past state in memory."""
        if event[1] in self.launch.kept_modes:
            self._segment.append(event)

    def _see(self, ns: tuple[str, ...], mode: str, payload: Any) -> None:
        if ns:
            return
        if mode == "values":
            self.output = payload
        elif mode == "updates" and isinstance(payload, Mapping):
            if "__interrupt__" in payload:
                self.interrupts = (*self.interrupts, *payload["__interrupt__"])
            else:
                self._ran = (*self._ran, *payload)

    async def _at_edge(self, payload: Any) -> bool:
        """Book the super-step that just ended; ``True`` where the particle has to be held."""
        launch = self.launch
        self.state, self.step, self._moved = payload["values"], payload["metadata"]["step"], True
        edge = Edge(self.step, tuple(payload["next"]), self._ran, self.calls.nodes, self.state)
        self._ran, self._next = (), edge.next
        checkpoint_id = payload["config"]["configurable"]["checkpoint_id"]
        if checkpoint_id != launch.start_id and not launch.alone:
            # LangGraph saves in the background: hold the run until it has, or nodes edit what is being saved
            await launch.engine.saved(self.saver, launch.thread_id, checkpoint_id)
        if not edge.next or launch.stops_at(edge):
            return False
        at_boundary = launch.boundary(edge)
        if not self._started:
            # boundary 0: the last edge before the first model call, or the first the predicate names
            if launch.boundary is not before_model:
                self._first(self.state)
                self._started = at_boundary
                return False
            if not self.calls.nodes:
                self._first(self.state)
                return False
            self._started = True
        if not at_boundary:
            return False
        self._cut()
        self.boundary += 1
        return True

    def _first(self, state: Any) -> None:
        self.record, self._moved = self.launch.first_record(state), False

    def _cut(self) -> None:
        """Close the current segment: stream events, transcript and step reward."""
        self.lineage = (*self.lineage, tuple(self._segment))
        self._segment = []
        if self.record.empty:
            if self.state is not None:  # None: it failed before its first state
                self._first(self.state)
        elif self._moved:
            self.record, self._moved = self.record.extend(self.state), False

    def _end(self, status: Status) -> None:
        self._cut()
        self.status, self._run = status, None


def _with_handler(config: RunnableConfig, handler: BaseCallbackHandler) -> Any:
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        manager.add_handler(handler, inherit=True)
        return manager
    return [*(callbacks or ()), handler]


def _parse(raw: Any) -> tuple[tuple[str, ...], str, Any]:
    """Namespace, mode and payload of an event in either of LangGraph's stream formats."""
    if isinstance(raw, dict):
        return tuple(raw["ns"]), raw["type"], raw["data"]
    if len(raw) == 3:
        return tuple(raw[0]), raw[1], raw[2]
    return (), raw[0], raw[1]
