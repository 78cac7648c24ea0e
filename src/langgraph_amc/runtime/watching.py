"""What a run tells those who watch it: frozen events with names and numbers, never the run's own objects.

A callback is any function of one event. It sees every event of its run in order, one at a time, though in whichever
thread or task it happened; events of other runs may come between. One that raises is warned of once and told nothing
more: who watches cannot change a run. Where nobody watches, no event is made.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from langgraph_amc.telemetry.spans import RunSpans
from langgraph_amc.trajectories.types import Status, Usage

if TYPE_CHECKING:
    from langgraph_amc.runtime.effects.records import EffectRecord
    from langgraph_amc.runtime.result import AMCResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """What all events have.

    Attributes
    ----------
    run_id: unique per run; the same in a run that a journal lets go on.
    seconds: since the run began, or went on, in this process.
    """

    run_id: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(RunEvent):
    """The first event.

    Attributes
    ----------
    app, thread_id, task: names; no task where the run is not part of an evaluation.
    particles: at most so many at once. restored: what a journal brings back goes on.
    value, reward: names of V and of the reward that is observed, ``None`` without one.
    """

    app: str
    thread_id: str
    task: str | None
    seed: int
    particles: int
    objective: str
    schedule: str
    resampler: str
    value: str | None
    reward: str | None
    restored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticleStarted(RunEvent):
    """A particle was born: a founder, or a clone of ``parent`` (``"p3@2"``: of p3's state at boundary 2)."""

    particle: str
    parent: str | None
    boundary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStarted(RunEvent):
    """These particles run on to their next check; ``boundary`` is where the last one was, 0 before the first."""

    generation: int
    boundary: int
    particles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticleStepped(RunEvent):
    """A particle has reached a boundary: it has made one agent step more.

    Attributes
    ----------
    boundary: agent steps so far. step: LangGraph's super-step.
    nodes: that have run since the last boundary.
    action: what the agent did last, in a line: tool calls with their arguments, else the end of its text; empty where
        the state has no messages.
    reward: cumulative observed reward so far. usage: of this particle since it was born.
    """

    particle: str
    boundary: int
    step: int
    nodes: tuple[str, ...]
    action: str
    reward: float
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCalled(RunEvent):
    """A model call of a particle has ended; ``usage`` is this call's."""

    particle: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored(RunEvent):
    """The value function was asked: ``values`` of live particles at ``boundary``, NaN where missing.

    ``boundary`` is ``None`` where it stood in for the unknown outcomes of particles that have ended. ``usage``: of the
    models that judged.
    """

    boundary: int | None
    particles: tuple[str, ...]
    values: tuple[float, ...]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed(RunEvent):
    """Everybody who arrived has a log-weight (nats, unnormalised).

    ``live``: how many of them can still run. ``ess``: of those, as a fraction.
    """

    boundary: int | None
    particles: tuple[str, ...]
    log_weights: tuple[float, ...]
    live: int
    ess: float
    sharpness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampled(RunEvent):
    """Slot k goes on from ``particles[ancestors[k]]``; the first offspring of a particle is the particle itself.

    Attributes
    ----------
    particles: those compared; earlier states, as ``"p3@2"``, come after the live ones. past: how many those are.
    log_weights: of ``particles``, as they were compared. log_weight: of every slot from now on.
    """

    boundary: int
    particles: tuple[str, ...]
    ancestors: tuple[int, ...]
    log_weights: tuple[float, ...]
    log_weight: float
    ess: float
    past: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld(RunEvent):
    """Nothing was resampled although the schedule asked for it; ``reason`` says why."""

    boundary: int
    particles: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticlePruned(RunEvent):
    """Nobody goes on from this particle, or others made it needless: it is dropped."""

    particle: str
    boundary: int
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticleEnded(RunEvent):
    """A particle has ended by itself, failed, paused or was stopped by a budget (see `Status`).

    Attributes
    ----------
    reward: observed return, ``None`` where it is not known. value: V's last word.
    error: type and message where it failed or was stopped.
    """

    particle: str
    boundary: int
    status: Status
    log_weight: float
    reward: float | None
    value: float | None
    error: str | None
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectSettled(RunEvent):
    """An effect of a tool is held, or was committed, dropped, denied, or failed: ``record.state``."""

    record: EffectRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationGrown(RunEvent):
    """The answers of ``started`` particles were not enough: so many are ``added``."""

    started: int
    added: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough(RunEvent):
    """No more particles are needed, and ``reason`` says why: those that still run are dropped."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticleChosen(RunEvent):
    """This particle answers, or goes on alone behind the effects it is about to let happen (``effects``: tools)."""

    particle: str
    effects: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(RunEvent):
    """The last event: the record, or without one ``error``, type and message of what ended the run.

    ``broken_off``: it was given up from outside: cancelled, or its stream was closed.
    """

    result: AMCResult | None
    error: str | None
    broken_off: bool


Callback: TypeAlias = Callable[[RunEvent], Any]


class Spans(Protocol):
    """What makes spans current while things happen, so that those of others find their parents."""

    def stepping(self, particle: str) -> AbstractContextManager[None]:
        """A particle runs on."""
        ...

    def closing(self, particle: str) -> AbstractContextManager[None]:
        """A particle's run is ended where it stands."""
        ...

    def judging(self, particles: Sequence[str]) -> AbstractContextManager[None]:
        """The value function is asked about these."""
        ...

    def rewarding(self, particle: str) -> AbstractContextManager[None]:
        """The reward of a particle that has ended is asked for."""
        ...

    def effect(self, particle: str, tool: str, key: str) -> AbstractContextManager[None]:
        """A held effect of the chosen particle happens."""
        ...

    def where(self) -> RunSpans | None:
        """The spans of the run so far, for what is found out later; ``None`` where none are kept."""
        ...


class Watch:
    """Tells those who watch one run.

    Parameters
    ----------
    run_id: of the run.
    callbacks: in order; one that raises drops out.
    spans: ``None`` where the run is not traced.
    """

    def __init__(self, run_id: str, callbacks: Sequence[Callback], spans: Spans | None = None) -> None:
        self._run_id = run_id
        self._callbacks = list(callbacks)
        self._spans = spans
        self._began = time.perf_counter()
        self._lock = threading.RLock()

    def tell(self, kind: type[RunEvent], **facts: Any) -> None:
        """Make an event of these facts and give it to everybody."""
        if not self._callbacks:
            return
        with self._lock:
            event = kind(run_id=self._run_id, seconds=time.perf_counter() - self._began, **facts)
            for callback in list(self._callbacks):
                try:
                    callback(event)
                except Exception as error:
                    self._callbacks.remove(callback)
                    warnings.warn(
                        f"callback {callback!r} raised {type(error).__name__}: {error}; the run goes on without it",
                        RuntimeWarning,
                        stacklevel=2,
                    )

    def where(self) -> RunSpans | None:
        """See `Spans`."""
        return None if self._spans is None else self._spans.where()

    def stepping(self, particle: str) -> AbstractContextManager[None]:
        """See `Spans`."""
        return _NOTHING if self._spans is None else self._spans.stepping(particle)

    def closing(self, particle: str) -> AbstractContextManager[None]:
        """See `Spans`."""
        return _NOTHING if self._spans is None else self._spans.closing(particle)

    def judging(self, particles: Sequence[str]) -> AbstractContextManager[None]:
        """See `Spans`."""
        return _NOTHING if self._spans is None else self._spans.judging(particles)

    def rewarding(self, particle: str) -> AbstractContextManager[None]:
        """See `Spans`."""
        return _NOTHING if self._spans is None else self._spans.rewarding(particle)

    def effect(self, particle: str, tool: str, key: str) -> AbstractContextManager[None]:
        """See `Spans`."""
        return _NOTHING if self._spans is None else self._spans.effect(particle, tool, key)


_NOTHING: AbstractContextManager[None] = nullcontext()
