"""One AMC run of an app, from its input to the committed winner and the stream of its events."""

from __future__ import annotations

import functools
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import ParentCommand
from langgraph.types import Command

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.runtime.commit import commit
from langgraph_amc.runtime.engine import Engine, Owned
from langgraph_amc.runtime.isolation import salted_llm_cache
from langgraph_amc.runtime.particle import Launch, Particle, untracked_channels
from langgraph_amc.runtime.population import AppPopulation, Scorer, particle_identity
from langgraph_amc.runtime.recording import book, report, result
from langgraph_amc.runtime.request import (
    DEFAULT_RECURSION_LIMIT,
    TASK_KEY,
    Emission,
    StreamRequest,
    breakpoints,
    emission_of,
    particle_config,
    particle_options,
    store_of,
)
from langgraph_amc.runtime.result import AMCResult, Check, ParticleReport
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.smc import Candidate, Final, Finished, SelectionError, ess_below, never, particle_filter
from langgraph_amc.smc import Event as FilterEvent


class AllParticlesFailedError(AMCError):
    """Every particle of a run failed; ``.errors`` holds the cause of each."""

    def __init__(self, errors: Sequence[BaseException]) -> None:
        self.errors = tuple(errors)
        kinds = sorted({f"{type(e).__name__}: {e}" for e in errors})
        super().__init__(f"all {len(self.errors)} particles failed: " + "; ".join(kinds[:5]))


class NestedInterruptError(AMCError):
    """An app that runs as particles inside a node of another graph asked to be interrupted."""


async def run_stream(
    request: StreamRequest, engine: Engine, note: Callable[[AMCResult], None]
) -> AsyncGenerator[Any, None]:
    """Run the particles, yield the winner's stream events, commit the winner; ``note`` gets the record.

    Events that all particles share are yielded as soon as they do; the rest when the winner is known.
    """
    started = time.perf_counter()
    emission = emission_of(request)
    population, root_id = await _population(request, engine, emission)
    settings = request.settings
    # not the seed itself: particles' seeds are drawn from it under other names
    rng = np.random.default_rng(population.launch.identity("resampling").seed)
    checks: list[Check] = []
    finals: dict[int, Final[Particle]] = {}
    log_evidence: float | None = None
    with salted_llm_cache():
        try:
            async with aclosing(_filter(population, request, rng)) as events:
                async for event in Owned(events):
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


def _filter(
    population: AppPopulation, request: StreamRequest, rng: np.random.Generator
) -> AsyncGenerator[FilterEvent[Particle], None]:
    settings = request.settings
    alone = settings.particles == 1
    schedule = settings.resample
    if alone:
        # nothing to compare with: held at boundaries only where somebody watches the stream
        schedule = ess_below(0.5) if request.watched else never()
    return particle_filter(
        population,
        particles=settings.particles,
        schedule=schedule,
        tempering=settings.tempering,
        resampler=settings.resampler,
        objective=settings.objective,
        rng=rng,
        scored=settings.value is not None and not alone,
    )


async def _population(request: StreamRequest, engine: Engine, emission: Emission) -> tuple[AppPopulation, str | None]:
    """A population at the start of the run, and the id of the checkpoint it starts from."""
    app, settings = request.app, request.settings
    config = particle_config(request)
    configurable = config["configurable"]
    saver = app.checkpointer if isinstance(app.checkpointer, BaseCheckpointSaver) and not request.nested else None
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
        app=app,
        engine=engine,
        config=config,
        thread_id=thread_id,
        options=particle_options(request, emission),
        alone=saver is not None and settings.particles == 1,
        kept_modes=frozenset(emission.modes),
        boundary=settings.boundary,
        transcript=settings.transcript,
        needs_text=settings.needs_text,
        recursion_limit=config.get("recursion_limit", DEFAULT_RECURSION_LIMIT),
        start_id=None if start is None else start.checkpoint["id"],
        base_step=-2 if start is None else start.metadata["step"],
        interrupt_before=breakpoints(request, "interrupt_before"),
        interrupt_after=breakpoints(request, "interrupt_after"),
        untracked=untracked_channels(app),
        seed=seed,
        identity=particle_identity(uuid.uuid4().hex, seed),
    )
    population = AppPopulation(
        launch,
        root,
        request.input,
        store_of(request),
        _scorer(settings),
        settings.reward,
        configurable.get(TASK_KEY),
    )
    return population, None if head is None else head.checkpoint["id"]


def _scorer(settings: Settings) -> Scorer | None:
    value: Any = settings.value
    if value is None or settings.particles == 1:  # one particle is neither weighed nor chosen
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
    if not alive or len(ended) == 1:
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
    try:
        return ended[_index(settings.select(rng, candidates), len(ended))], reports
    except SelectionError as error:
        if not population.unrewarded:
            raise
        raise SelectionError(f"{error} Rewards are missing, the first because {population.unrewarded[0]}") from error


def _index(chosen: Any, n: int) -> int:
    if not isinstance(chosen, int | np.integer) or not 0 <= chosen < n:
        raise SelectionError(f"select has to return the index of one of {n} candidates, got {chosen!r}")
    return int(chosen)


async def _hand_over(request: StreamRequest, population: AppPopulation, winner: Particle, root_id: str | None) -> None:
    if request.nested and winner.status == "interrupted":
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
