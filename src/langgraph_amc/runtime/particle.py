"""A particle: the app with a private copy-on-write saver and a held stream.

LangGraph's stream generators are lazy: one that is not pulled has not begun its next super-step. Pulling a
particle to its next ``"checkpoints"`` event therefore runs exactly one super-step, the edge where it is
held can be forked, and nothing runs in a particle that is not pulled.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import ParentCommand
from langgraph.types import Command

from langgraph_amc.context import current_boundary, current_particle
from langgraph_amc.errors import RunStoppedError
from langgraph_amc.policy.budget import BudgetExceededError
from langgraph_amc.runtime.boundaries import Edge, ModelCalls, before_model
from langgraph_amc.runtime.cells import freeze
from langgraph_amc.runtime.effects import EffectScope, HeldEffect, current_effects
from langgraph_amc.runtime.gate import KNOCK, GatedSaver, gated_call
from langgraph_amc.runtime.inside import Reentry, leave, state_inside, steps_used
from langgraph_amc.runtime.isolation import OverlayStore
from langgraph_amc.runtime.launch import Event, Launch, StepsLeft, as_emitted, charged, parse_event
from langgraph_amc.runtime.record import Record
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.runtime.showing import last_action
from langgraph_amc.runtime.streaming import kept_event
from langgraph_amc.runtime.watching import ParticleStepped
from langgraph_amc.trajectories.types import Status


@dataclass(slots=True, eq=False)
class Particle:
    """One run of the app among N; see the module docstring."""

    launch: Launch
    name: str
    saver: ParticleSaver
    store: OverlayStore | None
    input: Any
    effects: EffectScope | None = None
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
    judged: bool = False
    """Whether it has ended and its outcome and value have been asked for."""
    halted: bool = False
    """Whether it is given up, and begins no other super-step."""
    lineage: tuple[tuple[Event, ...], ...] = ()
    """Stream events by segment; segments are shared with clones."""

    calls: ModelCalls = field(default_factory=ModelCalls)
    """Made by `Launch.calls`."""
    _run: Any = None
    _entry: str | None = None
    """Checkpoint id a clone re-enters at; its events up to there repeat what the parent emitted."""
    _entered: str | None = None
    """Checkpoint id this clone has entered at."""
    _started: bool = False
    """Whether boundary 0 has been passed."""
    _ran: tuple[str, ...] = ()
    _next: tuple[str, ...] = ()
    _trail: tuple[str, ...] = ()
    """Nodes that have run since the last boundary."""
    _moved: bool = False
    """Whether a super-step has ended since the last segment was closed."""
    _resumes: bool = False
    """Whether a re-entry has to finish a super-step that was interrupted, subgraphs included."""
    _segment: list[Event] = field(default_factory=list)
    _reentry: Reentry | None = None
    """Set while a clone finishes a super-step that its parent has shown a part of."""
    _edge: int = 0
    """Where in the segment the super-step under way begins."""

    @property
    def done(self) -> bool:
        return self.status is not None

    @property
    def observed(self) -> float:
        """Cumulative reward observed so far, the outcome included once it is known."""
        return math.fsum(self.record.rewards) + (self.outcome or 0.0)

    @property
    def held(self) -> tuple[HeldEffect, ...]:
        """Effects this particle has paused before."""
        return self.effects.held if self.effects is not None and self.status == "interrupted" else ()

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
            None if self.effects is None else self.effects.fork(name),
            parent=self,
            forked_at=self.boundary,
            boundary=self.boundary,
            step=self.step,
            state=self.state,
            output=self.output,
            record=self.record,
            values=self.values,
            lineage=self.lineage,
            calls=self.launch.calls(name, self.calls.nodes),
            _entry=head.id,
            _started=self._started,
            _ran=self._ran,
        )

    def release(self) -> None:
        """Go on from a pause before effects, which may happen now."""
        assert self.effects is not None
        head = self.saver.head(self.launch.thread_id)
        assert head is not None
        self.effects.release()
        self.status, self.judged, self.interrupts, self._next, self._ran = None, False, (), (), ()
        self.input, self._entry, self._resumes = self._reentry_input(), head.id, True

    @property
    def started(self) -> bool:
        """Whether it has passed boundary 0."""
        return self._started

    @property
    def ran(self) -> tuple[str, ...]:
        """Nodes that have run since the last edge."""
        return self._ran

    def restore(self, state: Any, output: Any, *, started: bool, ran: tuple[str, ...]) -> None:
        """Take up a run that a journal brings back, at its last boundary or its end."""
        head = self.saver.head(self.launch.thread_id)
        self.state, self.output, self._started, self._ran = state, output, started, ran
        if self.done:
            event = ((), "values", output, as_emitted("values", output, self.launch.options))
            self.lineage = ((event,),) if output is not None else ()
        elif head is not None and self.boundary > 0:
            self.output = state
            self.lineage = ((((), "values", state, as_emitted("values", state, self.launch.options)),),)
            self.input, self._entry = self._reentry_input(), head.id

    async def advance(self, until: int | None) -> None:
        """Run on to boundary ``until`` (``None``: to the end)."""
        engine = self.launch.engine
        with self._identified():
            while not (self.done or self.halted or engine.stopping) and (until is None or self.boundary < until):
                current_boundary.set(self.boundary)
                await self._to_next_edge()

    async def prune(self) -> None:
        """End this particle where it stands; its trace shows a clean end."""
        if not self.done:
            self.status = "pruned"
        if self._run is not None:
            run, self._run = self._run, None
            await self._close(run)

    async def stop(self, error: BudgetExceededError) -> None:
        """End this particle where it stands, because there is nothing left to go on with."""
        run, self.error = self._run, error
        self._segment = self._segment[: self._edge]
        self._end("truncated")
        if run is not None:
            await self._close(run)

    # -- inside ----------------------------------------------------------------------------------

    @contextmanager
    def _identified(self) -> Iterator[None]:
        """Nodes, tools and models can tell in which particle they run."""
        token = current_particle.set(self.launch.identity(self.name))
        boundary = current_boundary.set(self.boundary)
        effects = current_effects.set(self.effects)
        # what the graph around the call hands on is in the launch's config already
        around = var_child_runnable_config.set(None)
        try:
            watch = self.launch.watch
            with charged(self.launch.account), nullcontext() if watch is None else watch.stepping(self.name):
                yield
        finally:
            var_child_runnable_config.reset(around)
            current_effects.reset(effects)
            current_boundary.reset(boundary)
            current_particle.reset(token)

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
        options = launch.options
        inside = {}
        if (gated := self._gated) is not None:
            config["callbacks"] = _with_handler(config, gated.gate.departures)
            config, options = gated_call(config, options, launch.engine.is_async)
            inside = gated.inside(launch.thread_id)
        head = self.saver.head(launch.thread_id)
        if self._entry is not None and head is not None:
            used = head.metadata["step"] - launch.base_step
            config["recursion_limit"] = StepsLeft(launch.recursion_limit, used, steps_used(inside))
            self._reentry = Reentry(head, inside, self._ran) if inside and not self._resumes else None
            self._resumes |= bool(inside)
            configurable = {k: v for k, v in launch.config["configurable"].items() if k != "checkpoint_id"}
            if self.input is None and not self._resumes:
                # a clone goes on, it does not resume: a subgraph with a memory of its own would otherwise
                # ignore the input it is about to get
                configurable["__pregel_resuming"] = False
            config["configurable"] = configurable
        return launch.engine.open(app, self.input, config, options)

    @property
    def _gated(self) -> GatedSaver | None:
        return self.saver if isinstance(self.saver, GatedSaver) else None

    async def _close(self, run: Any) -> None:
        watch = self.launch.watch
        with nullcontext() if watch is None else watch.closing(self.name):
            if (gated := self._gated) is not None and gated.gate.held:
                await leave(gated, self.launch.engine, run)
            await self.launch.engine.close(run)

    def _reentry_input(self) -> Any:
        if not self.launch.untracked or not isinstance(self.state, Mapping):
            return None
        carried = {k: freeze(self.state[k]).thaw() for k in self.launch.untracked if k in self.state}
        return Command(update=carried) if carried else None

    async def _to_next_edge(self) -> None:
        engine, gated = self.launch.engine, self._gated
        try:
            if self._run is None:
                self._run = self._open()
            elif gated is not None:
                gated.gate.open()
            while True:
                raw = await engine.next(self._run)
                event = parse_event(raw)
                ns, mode, payload, _ = event
                if payload is KNOCK:
                    if gated is not None and self._at_gate(gated):
                        return
                elif mode == "checkpoints" and not ns:
                    if self._entry is not None:
                        if payload["config"]["configurable"]["checkpoint_id"] != self._entry:
                            continue
                        self._entered, self._entry = self._entry, None
                        self.state = payload["values"]
                        continue
                    self._keep(event)
                    if await self._at_edge(payload):
                        return
                elif self._entry is None and (self._reentry is None or not self._reentry.repeats(event)):
                    self._see(ns, mode, payload)
                    self._keep(event)
        except StopAsyncIteration:
            self._end("interrupted" if self.interrupts or self._next else "finished")
        except ParentCommand as bubble:
            self.command = bubble.args[0]
            self._end("finished")
        except BudgetExceededError as error:
            self.error = error
            self._end("truncated")
        except RunStoppedError:
            raise
        except Exception as error:
            self.error = error
            self._end("failed")

    def _keep(self, event: Event) -> None:
        """Events the caller asked for; the others would only hold every past state in memory."""
        if event[1] in self.launch.kept_modes:
            self._segment.append(kept_event(event, self._entered, self.launch.watched))

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
        self._edge, self._resumes, self._reentry = len(self._segment), False, None
        if self.effects is not None:
            self.effects.at_step(self.step)
        edge = Edge(self.step, tuple(payload["next"]), self._ran, self.calls.nodes, self.state)
        self._ran, self._next, self._trail = (), edge.next, (*self._trail, *edge.ran)
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
        self._tell()
        return True

    def _at_gate(self, gated: GatedSaver) -> bool:
        """Book that something inside a subgraph is held; ``True`` where everything is and the particle stays so."""
        launch = self.launch
        if not gated.gate.heard() or not gated.is_quiet(launch.thread_id):
            return False
        state = state_inside(gated, launch.thread_id, self.state, self.record, launch.transcript)
        if not self._started:
            self._first(state)
            self._started = True
            gated.gate.open()
            return False
        self._cut(state)
        self.boundary += 1
        self._tell()
        return True

    def _first(self, state: Any) -> None:
        self.record, self._moved = self.launch.first_record(state), False

    def _cut(self, inside: Any = None) -> None:
        """Close the current segment: stream events, transcript and step reward.

        ``inside``: the state where the particle stands inside subgraphs.
        """
        self.lineage = (*self.lineage, tuple(self._segment))
        self._segment, self._edge = [], 0
        if inside is not None:
            self.record, self._moved = self.record.extend(inside), False
        elif self.record.empty:
            if self.state is not None:  # None: it failed before its first state
                self._first(self.state)
        elif self._moved:
            self.record, self._moved = self.record.extend(self.state), False

    def _end(self, status: Status) -> None:
        segments = len(self.record.segments)
        self.status, self._run = status, None
        if self.held:
            # finished tasks of the super-step show their results again on re-entry, and the pause is our own business
            shown = [e for e in self._segment[self._edge :] if e[1] in ("messages", "custom")]
            self._segment[self._edge :] = shown
        self._cut()
        if self.held and len(self.record.segments) > segments:
            self.boundary += 1  # a pause is a point of comparison of its own

    def _tell(self) -> None:
        if self.launch.keeper is not None:
            self.launch.keeper.boundary(self)
        trail, self._trail = self._trail, ()
        if self.launch.watch is not None:
            self.launch.watch.tell(
                ParticleStepped,
                particle=self.name,
                boundary=self.boundary,
                step=self.step,
                nodes=trail,
                action=last_action(self.state),
                reward=self.observed,
                usage=self.calls.usage,
            )


def _with_handler(config: RunnableConfig, handler: BaseCallbackHandler) -> Any:
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        manager.add_handler(handler, inherit=True)
        return manager
    return [*(callbacks or ()), handler]
