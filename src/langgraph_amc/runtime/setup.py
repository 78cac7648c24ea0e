"""The start of a run: what its particles have in common, and where they begin."""

from __future__ import annotations

import functools
import math
import secrets
import uuid
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import Command

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.gate import current_account
from langgraph_amc.runtime.engine import Engine
from langgraph_amc.runtime.gate import GatedSaver
from langgraph_amc.runtime.keeping import JournalKeeper, open_keeper
from langgraph_amc.runtime.launch import Launch, untracked_channels
from langgraph_amc.runtime.listening import listen
from langgraph_amc.runtime.outbox import MemoryOutbox
from langgraph_amc.runtime.population import AppPopulation, Scorer, particle_identity
from langgraph_amc.runtime.request import (
    DEFAULT_RECURSION_LIMIT,
    TASK_KEY,
    Emission,
    StreamRequest,
    breakpoints,
    particle_config,
    particle_options,
    store_of,
)
from langgraph_amc.runtime.saver import ParticleSaver
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.smc import Abstain, Vote


@dataclass(frozen=True, slots=True)
class Setup:
    """A population that has not started, or that a journal brings back.

    Attributes
    ----------
    head_id: the checkpoint the user's thread stood at.
    keeper: writes the journal; ``None`` without one.
    """

    population: AppPopulation
    head_id: str | None
    keeper: JournalKeeper | None


async def set_up(request: StreamRequest, engine: Engine, emission: Emission) -> Setup:
    """Read the request; raises ConfigurationError where it cannot be run."""
    app, settings = request.app, request.settings
    _check_vote(request)
    config = particle_config(request)
    configurable = config["configurable"]
    saver = app.checkpointer if isinstance(app.checkpointer, BaseCheckpointSaver) and not request.nested else None
    if saver is not None and not configurable.get("thread_id"):
        raise ConfigurationError("this app has a checkpointer: pass config={'configurable': {'thread_id': …}}")
    thread_id = configurable.get("thread_id")
    root = _blank_saver(saver, settings, config.get("max_concurrency"), engine)
    head, start = await _adopt(root, configurable, engine)
    if isinstance(request.input, Command) and saver is None and request.input.resume is not None:
        raise RuntimeError("Cannot use Command(resume=...) without checkpointer")
    head_id = None if head is None else head.checkpoint["id"]
    seed = settings.seed if settings.seed is not None else secrets.randbits(32)
    keeper = await open_keeper(request, engine, root, thread_id, head_id, seed)
    if keeper is not None:
        seed, run_id = keeper.run.seed, keeper.run.id
    else:
        run_id = uuid.uuid4().hex
    thread_id = configurable["thread_id"] = str(thread_id or f"amc-{run_id}")
    account = settings.budget.open() if settings.budget else None
    if keeper is not None and account is not None:
        keeper.charges(account)
    launch = Launch(
        app=app,
        engine=engine,
        config=config,
        thread_id=thread_id,
        options=particle_options(request, emission),
        alone=saver is not None and settings.unopposed and keeper is None,
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
        identity=particle_identity(run_id, seed),
        keeper=keeper,
        watched=request.watched,
        account=account or current_account.get(),
        watch=listen(
            request,
            run_id=run_id,
            thread_id=thread_id,
            seed=seed,
            restored=keeper is not None and keeper.restored,
        ),
    )
    population = AppPopulation(
        launch,
        root,
        request.input,
        store_of(request),
        _scorer(settings),
        settings.reward,
        configurable.get(TASK_KEY),
        settings.effects,
        MemoryOutbox() if keeper is None else keeper.run.outbox,
        unopposed=settings.unopposed,
        threads=settings.particles,
        quorum=settings.quorum if settings.particles > 1 else None,
        best_possible=settings.best_possible if settings.particles > 1 else None,
    )
    return Setup(population, head_id, keeper)


def _check_vote(request: StreamRequest) -> None:
    """That answers can be compared, before they are paid for: a state is a dict, of which no two are one answer."""
    rule = request.settings.select
    rule = rule.by if isinstance(rule, Abstain) else rule
    outputs = request.options.get("output_keys") or request.app.output_channels
    if isinstance(rule, Vote) and rule.key is None and not (request.settings.unopposed or isinstance(outputs, str)):
        how = "vote(final_text), vote(last_number)" if "messages" in request.app.channels else "vote(lambda state: …)"
        raise ConfigurationError(
            f"this app answers with a state, and a vote has to know what in it is the answer: give select={how}"
        )


async def _adopt(
    root: ParticleSaver, configurable: dict[str, Any], engine: Engine
) -> tuple[CheckpointTuple | None, CheckpointTuple | None]:
    """The thread's head, which ``root`` takes up, and the checkpoint the run starts from."""
    saver = root.base
    if saver is None:
        return None, None
    where = {"thread_id": str(configurable["thread_id"]), "checkpoint_ns": ""}
    head = await engine.load(saver, {"configurable": where})
    if checkpoint_id := configurable.get("checkpoint_id"):
        root.bound = checkpoint_id
        return head, await engine.load(saver, {"configurable": {**where, "checkpoint_id": checkpoint_id}}) or head
    if head is not None:
        root.adopt(head)
    return head, head


def _blank_saver(
    base: BaseCheckpointSaver | None, settings: Settings, width: int | None, engine: Engine
) -> ParticleSaver:
    """The saver all founders are forked from; ``width``: how many tasks may run at once."""
    if settings.points is None:
        return ParticleSaver(base)
    return GatedSaver(base, settings.points, width=width or math.inf, is_async=engine.is_async)


def _scorer(settings: Settings) -> Scorer | None:
    value: Any = settings.value
    if value is None or settings.unopposed:  # it is neither weighed nor chosen
        return None
    return value.score if settings.soft_beta is None else functools.partial(value.soft_score, beta=settings.soft_beta)
