"""One AMC run of an app, from its input to the committed winner and the stream of its events."""

from __future__ import annotations

import functools
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from langchain_core.globals import get_llm_cache
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import ParentCommand
from langgraph.types import Command

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.runtime.commit import commit
from langgraph_amc.runtime.engine import Engine
from langgraph_amc.runtime.isolation import salted_llm_cache
from langgraph_amc.runtime.particle import MODES, Event, Launch, Particle, untracked_channels
from langgraph_amc.runtime.population import AppPopulation, Scorer, particle_identity
from langgraph_amc.runtime.result import AMCResult, Check, ParticleReport, collapse_warning
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.smc import (
    Candidate,
    Final,
    Finished,
    Resampled,
    Scored,
    SelectionError,
    Weighted,
    never,
    particle_filter,
)
from langgraph_amc.smc import Event as FilterEvent
from langgraph_amc.tasks.task import Task
from langgraph_amc.trajectories.types import Trajectory, Usage

TASK_KEY = "amc_task"
"""Key of ``config["configurable"]`` under which the task of a run may be passed to its reward."""


class AllParticlesFailedError(AMCError):
    """Every particle of a run failed; ``.errors`` holds the cause of each."""

    def __init__(self, errors: Sequence[BaseException]) -> None:
        self.errors = tuple(errors)
        kinds = sorted({f"{type(e).__name__}: {e}" for e in errors})
        super().__init__(f"all {len(self.errors)} particles failed: " + "; ".join(kinds[:5]))


class NestedInterruptError(AMCError):
    """An app that runs as particles inside a node of another graph asked to be interrupted."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A call of ``stream``/``astream``."""

    app: Any
    settings: Settings
    input: Any
    config: RunnableConfig
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Emission:
    """Which of a particle's stream events the caller asked for, and in which form."""

    modes: tuple[str, ...]
    single: bool
    subgraphs: bool
    version: str

    def event(self, event: Event) -> tuple[Any, ...]:
        """The event as the caller gets it, as a one-tuple; empty if it was not asked for."""
        ns, mode, payload, raw = event
        if mode not in self.modes or (ns and not self.subgraphs):
            return ()
        if self.version == "v2" or not self.single:
            return (raw,)
        return ((ns, payload),) if self.subgraphs else (payload,)


async def run_stream(
    request: StreamRequest, engine: Engine, note: Callable[[AMCResult], None]
) -> AsyncGenerator[Any, None]:
    """Run the particles, yield the winner's stream events, commit the winner; ``note`` gets the record.

    Events that all particles share are yielded as soon as they do; the rest when the winner is known.
    """
    started = time.perf_counter()
    emission = _emission(request)
    population, root_id = await _population(request, engine, emission)
    settings = request.settings
    # not the seed itself: particles' seeds are drawn from it under other names
    rng = np.random.default_rng(population.launch.identity("resampling").seed)
    checks: list[Check] = []
    finals: dict[int, Final[Particle]] = {}
    log_evidence: float | None = None
    with salted_llm_cache():
        try:
            async for event in particle_filter(
                population,
                particles=settings.particles,
                schedule=settings.resample,
                tempering=settings.tempering,
                resampler=settings.resampler,
                objective=settings.objective,
                rng=rng,
                scored=settings.value is not None,
            ):
                if isinstance(event, Finished):
                    finals = {id(f.particle): f for f in event.result.finals}
                    log_evidence = event.result.log_evidence
                else:
                    _book(checks, event)
                for settled in population.settled():
                    for out in emission.event(settled):
                        yield out
            winner, reports = _choose(population, finals, settings, rng)
        finally:
            await population.prune_all()
    await _hand_over(request, population, winner, root_id)
    note(_result(population, settings, winner, reports, checks, log_evidence, time.perf_counter() - started))
    for segment in winner.lineage[population.emitted :]:
        for settled in segment:
            for out in emission.event(settled):
                yield out
    _raise_failure(population, winner)


def _emission(request: StreamRequest) -> Emission:
    options = request.options
    nested = "__pregel_task_id" in (request.config.get("configurable") or {})
    modes = options.get("stream_mode") or ("values" if nested else request.app.stream_mode)
    single = isinstance(modes, str)
    names: tuple[str, ...] = (modes,) if isinstance(modes, str) else tuple(modes)
    return Emission(names, single, bool(options.get("subgraphs")), options.get("version", "v1"))


async def _population(request: StreamRequest, engine: Engine, emission: Emission) -> tuple[AppPopulation, str | None]:
    """A population at the start of the run, and the id of the checkpoint it starts from."""
    app, settings = request.app, request.settings
    config, nested = _particle_config(request)
    configurable = config["configurable"]
    saver = app.checkpointer if isinstance(app.checkpointer, BaseCheckpointSaver) and not nested else None
    if saver is not None and not configurable.get("thread_id"):
        raise ConfigurationError("this app has a checkpointer: pass config={'configurable': {'thread_id': …}}")
    thread_id = str(configurable.setdefault("thread_id", f"amc-{uuid.uuid4().hex}"))
    root = ParticleSaver(saver)
    head = addressed = None
    if saver is not None:
        where = {"thread_id": thread_id, "checkpoint_ns": ""}
        head = await engine.load(saver, {"configurable": where})
        if checkpoint_id := configurable.get("checkpoint_id"):
            addressed = await engine.load(saver, {"configurable": {**where, "checkpoint_id": checkpoint_id}})
            root.bound = checkpoint_id
        elif head is not None:
            root.adopt(head)
    if isinstance(request.input, Command) and saver is None and request.input.resume is not None:
        raise RuntimeError("Cannot use Command(resume=...) without checkpointer")
    start = addressed or head
    seed = settings.seed if settings.seed is not None else secrets.randbits(32)
    launch = Launch(
        app,
        engine,
        config,
        thread_id,
        _particle_options(request.options, emission),
        saver is not None and settings.particles == 1,
        frozenset(emission.modes),
        settings.boundary,
        settings.transcript,
        config.get("recursion_limit", (app.config or {}).get("recursion_limit", 10007)),
        None if start is None else start.checkpoint["id"],
        -2 if start is None else start.metadata["step"],
        _nodes(request.options.get("interrupt_before") or app.interrupt_before_nodes),
        _nodes(request.options.get("interrupt_after") or app.interrupt_after_nodes),
        untracked_channels(app),
        seed,
        particle_identity(uuid.uuid4().hex, seed),
    )
    population = AppPopulation(
        launch,
        root,
        request.input,
        _store(request),
        _scorer(settings),
        settings.reward,
        configurable.get(TASK_KEY),
    )
    return population, None if head is None else head.checkpoint["id"]


def _particle_config(request: StreamRequest) -> tuple[RunnableConfig, bool]:
    """The caller's config as particles may have it, and whether the call comes from inside another graph."""
    config: RunnableConfig = {**request.config}
    configurable = dict(config.get("configurable") or {})
    nested = "__pregel_task_id" in configurable
    if nested:
        # particles run as roots, not as N copies of the caller's task
        keep = {k: v for k, v in configurable.items() if not k.startswith(("__pregel_", "checkpoint_"))}
        configurable = {**keep, "thread_id": f"amc-{uuid.uuid4().hex}"}
        config["tags"] = [*(config.get("tags") or []), "nostream"]
    config["configurable"] = configurable
    config.pop("run_id", None)  # one id cannot name N runs
    return config, nested


def _particle_options(options: Mapping[str, Any], emission: Emission) -> dict[str, Any]:
    dropped = ("stream_mode", "print_mode", "debug", "durability")
    kept = {k: v for k, v in options.items() if k not in dropped and v is not None}
    return {**kept, "stream_mode": list(dict.fromkeys((*MODES, *emission.modes)))}


def _nodes(nodes: Any) -> Any:
    return "*" if nodes == "*" else frozenset([nodes] if isinstance(nodes, str) else nodes or ())


def _store(request: StreamRequest) -> Any:
    runtime = (request.config.get("configurable") or {}).get("__pregel_runtime")
    return request.app.store if runtime is None else runtime.store or request.app.store


def _scorer(settings: Settings) -> Scorer | None:
    value: Any = settings.value
    if value is None:
        return None
    return value.score if settings.soft_beta is None else functools.partial(value.soft_score, beta=settings.soft_beta)


def _book(checks: list[Check], event: FilterEvent[Particle]) -> None:
    if isinstance(event, Scored):
        names = tuple(p.name for p in event.particles)
        checks.append(Check(event.boundary, names, event.values, (), 0.0, 1.0))
    elif isinstance(event, Weighted) and event.boundary is not None:
        live = [i for i, p in enumerate(event.particles) if not p.done]
        if not live:
            return
        names = tuple(event.particles[i].name for i in live)
        values = checks.pop().values if checks and not checks[-1].log_weights else ()
        weights = tuple(event.log_weights[i] for i in live)
        checks.append(Check(event.boundary, names, values, weights, event.ess * len(live), event.sharpness))
    elif isinstance(event, Resampled):
        last = checks[-1]
        checks[-1] = Check(
            last.boundary,
            last.particles,
            last.values,
            last.log_weights,
            last.ess,
            last.sharpness,
            event.ancestors,
        )


def _choose(
    population: AppPopulation,
    finals: Mapping[int, Final[Particle]],
    settings: Settings,
    rng: np.random.Generator,
) -> tuple[Particle, dict[str, ParticleReport]]:
    """The winner, and the reports of all particles by name."""
    reports = {p.name: _report(p, finals.get(id(p))) for p in population.born}
    ended = [p for p in population.born if id(p) in finals]
    alive = [p for p in ended if p.status != "failed"]
    if not alive:
        return ended[0], reports
    candidates = [
        Candidate(
            reports[p.name].log_weight,
            reports[p.name].value,
            reports[p.name].reward,
            p.output,
            done=p.status == "finished" or p.status == "interrupted",
            failed=p.status == "failed",
        )
        for p in ended
    ]
    return ended[_index(settings.select(rng, candidates), len(ended))], reports


def _index(chosen: Any, n: int) -> int:
    if not isinstance(chosen, int | np.integer) or not 0 <= chosen < n:
        raise SelectionError(f"select has to return the index of one of {n} candidates, got {chosen!r}")
    return int(chosen)


def _report(particle: Particle, final: Final[Particle] | None) -> ParticleReport:
    log_weight = -np.inf if final is None else final.log_weight
    record = particle.record
    run_id = particle.launch.identity(particle.name).run_id
    trajectory = Trajectory(
        run_id=run_id,
        particle=particle.name,
        segments=record.segments or ("",),
        rewards=record.rewards,
        outcome=particle.outcome,
        status=particle.status or "pruned",
        parent=None if particle.parent is None else particle.parent.name,
        forked_at=particle.forked_at,
        log_weight=None if final is None else float(log_weight),
        values=particle.values if len(particle.values) == len(record.segments) else (),
        usage=particle.calls.usage,
        fingerprint="" if particle.launch.transcript is None else particle.launch.transcript.fingerprint,
        error=None if particle.error is None else f"{type(particle.error).__name__}: {particle.error}",
    )
    reward = None if particle.outcome is None else particle.observed
    value = particle.values[-1] if particle.values else None
    return ParticleReport(trajectory, particle.output, float(log_weight), reward, value)


async def _hand_over(request: StreamRequest, population: AppPopulation, winner: Particle, root_id: str | None) -> None:
    nested = "__pregel_task_id" in (request.config.get("configurable") or {})
    if nested and winner.status == "interrupted":
        raise NestedInterruptError(
            "the winning particle interrupts inside a node of another graph, where its interrupt cannot be "
            "resumed: wrap the outer graph instead, or ask for input outside the wrapped part"
        )
    if not population.launch.alone:
        await commit(winner, population.root.base, root_id)


def _result(
    population: AppPopulation,
    settings: Settings,
    winner: Particle,
    reports: Mapping[str, ParticleReport],
    checks: Sequence[Check],
    log_evidence: float | None,
    seconds: float,
) -> AMCResult:
    kept = [p for p in population.born if p.status != "pruned"]
    usage = sum((p.calls.usage for p in population.born), Usage())
    return AMCResult(
        reports[winner.name].trajectory.run_id,
        population.launch.seed,
        reports[winner.name],
        tuple(reports[p.name] for p in kept),
        tuple(reports[p.name] for p in population.born if p.status == "pruned"),
        tuple(checks),
        log_evidence,
        usage,
        seconds,
        tuple(_warnings(population, settings, checks)),
    )


def _warnings(population: AppPopulation, settings: Settings, checks: Sequence[Check]) -> list[str]:
    founders = [p for p in population.born if p.parent is None]
    found: list[str] = []
    # the global cache is salted; an answer from a cache although there is none came from the model's own
    cached = get_llm_cache() is None and any(p.calls.cached for p in founders)
    collapse = collapse_warning(
        [p.record.segments for p in founders],
        [p.calls.parameters for p in founders],
        cached,
    )
    if collapse:
        found.append(collapse)
    if shared := set().union(*(p.saver.shared_channels() for p in founders)):
        found.append(
            f"the values of {', '.join(sorted(shared))} cannot be copied, so particles share them: keep such "
            "objects out of the graph's state"
        )
    compared = settings.value is not None and settings.particles > 1 and settings.resample != never()
    if compared and not checks:
        found.append(
            "no boundary was reached, so nothing was resampled (best-of-N): runs may be too short for the "
            "schedule, or the model is not called through LangChain; then name the node: boundary='…'"
        )
    if population.unrewarded:
        found.append(
            f"{len(population.unrewarded)} reward(s) are missing, the first because {population.unrewarded[0]}"
        )
    if failed := [p for p in population.born if p.status == "failed"]:
        found.append(f"{len(failed)} particle(s) failed, the first with {type(failed[0].error).__name__}")
    return found


def _raise_failure(population: AppPopulation, winner: Particle) -> None:
    if winner.command is not None:
        raise ParentCommand(winner.command)
    if winner.error is None:
        return
    errors = [p.error for p in population.born if p.error is not None]
    if len({type(e) for e in errors}) == 1:
        # what a plain run would have raised, so that the caller's handlers still match
        winner.error.add_note(f"all {len(errors)} particles of this run failed like this")
        raise winner.error
    raise AllParticlesFailedError(errors) from winner.error
