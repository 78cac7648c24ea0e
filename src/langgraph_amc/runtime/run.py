"""One AMC run of an app, from its input to the committed winner and the stream of its events."""

from __future__ import annotations

import functools
import os
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs, var_child_runnable_config
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import ParentCommand
from langgraph.types import Command

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.runtime.commit import commit
from langgraph_amc.runtime.engine import Engine
from langgraph_amc.runtime.isolation import salted_llm_cache
from langgraph_amc.runtime.particle import MODES, Event, Launch, Particle, untracked_channels
from langgraph_amc.runtime.population import AppPopulation, Scorer, particle_identity
from langgraph_amc.runtime.recording import book, report, result
from langgraph_amc.runtime.result import AMCResult, Check, ParticleReport
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.smc import Candidate, Final, Finished, SelectionError, ess_below, particle_filter

DEFAULT_RECURSION_LIMIT = int(os.environ.get("LANGGRAPH_DEFAULT_RECURSION_LIMIT", "10007"))
"""LangGraph's own."""

TASK_KEY = "amc_task"
"""Key of ``config["configurable"]`` under which the task of a run may be passed to its reward."""


_TASK = "__pregel_task_id"
"""In the config of a call that a graph makes to run a part of itself."""


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


def call_config(app: Any, config: RunnableConfig | None) -> RunnableConfig:
    """The caller's config with what LangGraph would add to it from the graph around the call and from the app.

    As there, a config that names a thread or checkpoint of its own has nothing to do with the graph around it.
    The handlers by which that graph streams are left out: its users would get the tokens of N particles.
    """
    given: Any = config or {}
    bound: Any = app.config or {}
    around: Any = var_child_runnable_config.get() or {}
    configurable = {**(bound.get("configurable") or {}), **(given.get("configurable") or {})}
    if all(configurable.get(key) in (None, {}) for key in _ADDRESS):
        configurable = {**(around.get("configurable") or {}), **configurable}
    limits = [c["recursion_limit"] for c in (given, bound, around) if c.get("recursion_limit") is not None]
    merged: Any = {
        **{k: v for k, v in around.items() if k == "max_concurrency" and v is not None},
        **given,
        "tags": list(dict.fromkeys([*(around.get("tags") or []), *(given.get("tags") or [])])),
        "metadata": {**(around.get("metadata") or {}), **(given.get("metadata") or {})},
        "callbacks": _without_streams(_both(around.get("callbacks"), given.get("callbacks"))),
        "configurable": configurable,
    }
    if limits:
        merged["recursion_limit"] = limits[0]
    return merged


_ADDRESS = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")


def _both(around: Any, given: Any) -> Any:
    if not around or not given:
        return given or around
    return merge_configs({"callbacks": around}, {"callbacks": given})["callbacks"]


def _without_streams(callbacks: Any) -> Any:
    if not isinstance(callbacks, BaseCallbackManager):
        return callbacks
    callbacks = callbacks.copy()
    for handler in [*callbacks.handlers, *callbacks.inheritable_handlers]:
        if type(handler).__module__.startswith("langgraph.pregel."):
            callbacks.remove_handler(handler)
    return callbacks


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
                # one particle has nothing to be compared with: it is held at boundaries for streaming only
                schedule=settings.resample if settings.particles > 1 else ess_below(0.5),
                tempering=settings.tempering,
                resampler=settings.resampler,
                objective=settings.objective,
                rng=rng,
                scored=settings.value is not None and settings.particles > 1,
            ):
                if isinstance(event, Finished):
                    finals = {id(f.particle): f for f in event.result.finals}
                    log_evidence = event.result.log_evidence
                else:
                    book(checks, event)
                for settled in population.settled():
                    for out in emission.event(settled):
                        yield out
            winner, reports = _choose(population, finals, settings, rng)
        finally:
            await population.prune_all()
    await _hand_over(request, population, winner, root_id)
    note(result(population, settings, winner, reports, checks, log_evidence, time.perf_counter() - started))
    for segment in winner.lineage[population.emitted :]:
        for settled in segment:
            for out in emission.event(settled):
                yield out
    _raise_failure(request, population, winner)


def _emission(request: StreamRequest) -> Emission:
    options = request.options
    nested = _TASK in request.config["configurable"]
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
        _particle_options(request, emission),
        saver is not None and settings.particles == 1,
        frozenset(emission.modes),
        settings.boundary,
        settings.transcript,
        settings.needs_text,
        config.get("recursion_limit", DEFAULT_RECURSION_LIMIT),
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
    configurable = dict(request.config["configurable"])
    nested = _TASK in configurable
    if nested:
        # particles run as roots, not as N copies of the caller's task
        keep = {k: v for k, v in configurable.items() if not k.startswith(("__pregel_", "checkpoint_"))}
        configurable = {**keep, "thread_id": f"amc-{uuid.uuid4().hex}"}
    config["configurable"] = configurable
    if request.settings.particles > 1:
        config.pop("run_id", None)  # one id cannot name N runs
    return config, nested


def _particle_options(request: StreamRequest, emission: Emission) -> dict[str, Any]:
    dropped = ("stream_mode", "print_mode", "debug", "durability")
    kept = {k: v for k, v in request.options.items() if k not in dropped and v is not None}
    runtime = request.config["configurable"].get("__pregel_runtime")
    if runtime is not None and runtime.context is not None:
        kept.setdefault("context", runtime.context)
    return {**kept, "stream_mode": list(dict.fromkeys((*MODES, *emission.modes)))}


def _nodes(nodes: Any) -> Any:
    return "*" if nodes == "*" else frozenset([nodes] if isinstance(nodes, str) else nodes or ())


def _store(request: StreamRequest) -> Any:
    runtime = request.config["configurable"].get("__pregel_runtime")
    return request.app.store if runtime is None else runtime.store or request.app.store


def _scorer(settings: Settings) -> Scorer | None:
    value: Any = settings.value
    if value is None:
        return None
    return value.score if settings.soft_beta is None else functools.partial(value.soft_score, beta=settings.soft_beta)


def _choose(
    population: AppPopulation,
    finals: Mapping[int, Final[Particle]],
    settings: Settings,
    rng: np.random.Generator,
) -> tuple[Particle, dict[str, ParticleReport]]:
    """The winner, and the reports of all particles by name."""
    reports = {p.name: report(p, finals.get(id(p))) for p in population.born}
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


async def _hand_over(request: StreamRequest, population: AppPopulation, winner: Particle, root_id: str | None) -> None:
    nested = _TASK in request.config["configurable"]
    if nested and winner.status == "interrupted":
        raise NestedInterruptError(
            "the winning particle interrupts inside a node of another graph, where its interrupt cannot be "
            "resumed: wrap the outer graph instead, or ask for input outside the wrapped part"
        )
    if not population.launch.alone:
        await commit(winner, population.root.base, root_id)


def _raise_failure(request: StreamRequest, population: AppPopulation, winner: Particle) -> None:
    if winner.command is not None:
        # a particle is a root, whose parent LangGraph calls ""; in truth it is the graph around
        around = request.config["configurable"].get("checkpoint_ns", "")
        raise ParentCommand(replace(winner.command, graph=around))
    if winner.error is None:
        return
    errors = [p.error for p in population.born if p.error is not None]
    if len({type(e) for e in errors}) == 1:
        # what a plain run would have raised, so that the caller's handlers still match
        winner.error.add_note(f"all {len(errors)} particles of this run failed like this")
        raise winner.error
    raise AllParticlesFailedError(errors) from winner.error
