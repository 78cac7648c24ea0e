"""Who watches a run, and what the filter's events are to them: the same with names in the place of particles."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace

from langgraph_amc.context import current_member
from langgraph_amc.evolution.members import Member
from langgraph_amc.evolution.tracing import member_id
from langgraph_amc.runtime import watching
from langgraph_amc.runtime.measuring import RunMetrics
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.runtime.request import TASK_KEY, StreamRequest
from langgraph_amc.runtime.trace_guard import Guarded, tracing_broke
from langgraph_amc.runtime.trace_opening import open_trace
from langgraph_amc.runtime.tracing import RunTrace
from langgraph_amc.runtime.watching import Callback, RunStarted, Spans, Watch
from langgraph_amc.smc import (
    Archived,
    Collapsed,
    Event,
    Grown,
    Resampled,
    Stopped,
    Weighted,
    Withheld,
)
from langgraph_amc.tasks.task import Task
from langgraph_amc.telemetry import instruments, names
from langgraph_amc.value.callables import Batched, CheckedValue, OneByOne


def listen(request: StreamRequest, *, run_id: str, thread_id: str, seed: int, restored: bool) -> Watch | None:
    """Open the run's trace, if anybody traces, and tell everybody that it starts; ``None`` where nobody watches."""
    settings, task = request.settings, request.config["configurable"].get(TASK_KEY)
    task_id = task.id if isinstance(task, Task) else None
    facts = {
        names.SESSION: thread_id,
        names.CONVERSATION: thread_id,
        names.RUN_ID: run_id,
        names.TASK: task_id,
        names.OBJECTIVE: settings.objective,
        names.PARTICLES: settings.particles,
        names.SCHEDULE: str(settings.search or settings.resample),
        names.SCHEME: _name(settings.resampler),
        names.SEED: seed,
        names.RESTORED: restored,
        names.VALUE_FUNCTION: _name(settings.value),
        names.ES_MEMBER_ID: member_id(member) if isinstance(member := current_member.get(), Member) else None,
    }
    try:
        traced = open_trace(settings.telemetry, request.app.get_name(), request.input, facts)
    except Exception as error:  # of a sampler or span processor of the user's
        traced = None
        tracing_broke(error)
    measures = instruments(settings.telemetry.meter_provider)
    listeners: list[Callback] = list(settings.callbacks)
    spans: Spans | None = None if traced is None else Guarded(traced)
    if measures is not None:
        context = None if traced is None else trace.set_span_in_context(traced.root)  # exemplars name the run
        listeners.insert(0, RunMetrics(measures, context))
    if isinstance(traced, RunTrace):
        listeners.insert(0, traced)
    if not listeners and spans is None:
        return None
    watch = Watch(run_id, listeners, spans)
    watch.tell(
        RunStarted,
        app=request.app.get_name(),
        thread_id=thread_id,
        task=task_id,
        seed=seed,
        particles=settings.particles,
        objective=settings.objective,
        schedule=str(settings.search or settings.resample),
        resampler=_name(settings.resampler),
        value=_name(settings.value),
        reward=_name(settings.reward),
        restored=restored,
    )
    return watch


def _name(given: Any) -> str | None:
    """What a user's function or object is called."""
    given = given.inner if isinstance(given, CheckedValue) else given
    given = given.function if isinstance(given, Batched | OneByOne) else given
    return None if given is None else str(getattr(given, "__name__", type(given).__name__))


def tell(watch: Watch, event: Event[Particle]) -> None:
    """Tell what the filter has decided; births, prunings and scores are told by the population as they happen."""
    match event:
        case Weighted():
            watch.tell(
                watching.Weighed,
                boundary=event.boundary,
                particles=_names(event.particles),
                log_weights=event.log_weights,
                live=sum(not p.done for p in event.particles),
                ess=event.ess,
                sharpness=event.sharpness,
            )
        case Archived():
            _tell_end(watch, event)
        case Resampled():
            watch.tell(
                watching.Resampled,
                boundary=event.boundary,
                particles=_names(event.particles),
                ancestors=event.ancestors,
                log_weights=event.log_weights_before,
                log_weight=event.log_weight_after,
                ess=event.ess,
                past=event.past,
            )
        case Withheld():
            watch.tell(
                watching.Withheld, boundary=event.boundary, particles=_names(event.particles), reason=event.reason
            )
        case Collapsed():
            why = "no live particle has a weight above 0"
            watch.tell(watching.Withheld, boundary=event.boundary, particles=_names(event.particles), reason=why)
        case Stopped():
            watch.tell(watching.Enough, reason=event.reason)
        case Grown():
            watch.tell(watching.PopulationGrown, started=event.started, added=event.added)
        case _:
            pass


def _tell_end(watch: Watch, event: Archived[Particle]) -> None:
    particle = event.final.particle
    watch.tell(
        watching.ParticleEnded,
        particle=particle.name,
        boundary=particle.boundary,
        status=particle.status or "pruned",
        log_weight=event.final.log_weight,
        reward=None if particle.outcome is None else particle.observed,
        value=particle.values[-1] if particle.values else None,
        error=None if particle.error is None else f"{type(particle.error).__name__}: {particle.error}",
        usage=particle.calls.usage,
    )


def _names(particles: tuple[Particle, ...]) -> tuple[str, ...]:
    return tuple(p.name for p in particles)
