"""``amc optimize``: better skills for an app, from rewards alone; the same command goes on."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langgraph_amc.cli.evolve import splits
from langgraph_amc.cli.kept import goes_on
from langgraph_amc.cli.live import searching
from langgraph_amc.cli.options import (
    AppName,
    AsJson,
    EffectsOf,
    Quiet,
    RewardName,
    Seed,
    Tasks,
    check_stored,
    check_writable,
    panel,
    read_effects,
)
from langgraph_amc.cli.plan import MaxCalls, MaxSeconds, MaxTokens, MaxUsd, PriceOf, read_budget
from langgraph_amc.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph_amc.skills.types import Proposer

EXTRACTIVE = "extractive"
_tasks, _skills, _search, _gate, _rollouts = (
    panel(name) for name in ("Tasks", "Skills", "Rounds", "Whether a candidate is taken", "Rollouts")
)


def optimize(
    app_name: AppName,
    tasks: Tasks,
    reward: RewardName,
    skills: Annotated[
        Path | None, _skills(help="Folder of skills to start from, which is only read; none: start from none")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the new skills and all else; gone on with")] = Path("optimized"),
    proposer: Annotated[
        str, _skills(help="Who proposes edits: extractive (no model), or LiteLLM's name of a model")
    ] = EXTRACTIVE,
    split: Annotated[str | None, _tasks(help="Propose from runs of this split")] = None,
    validation: Annotated[str | None, _tasks(help="Compare candidates on this split")] = None,
    held_out: Annotated[str | None, _tasks(help="Compare old and new skills on this split, at the end")] = None,
    limit: Annotated[int | None, _tasks(help="Only the first so many tasks of each split", min=1)] = None,
    rounds: Annotated[int, _search(help="The most rounds of collecting, proposing and trying", min=1)] = 4,
    candidates: Annotated[int, _search(help="Proposals that are tried in a round", min=1)] = 4,
    batch: Annotated[int, _search(help="Training tasks of a round", min=1)] = 16,
    repeats: Annotated[int, _search(help="Runs of each training task; a contrast needs two", min=1)] = 2,
    measured: Annotated[int, _gate(help="Runs of each validation and held-out task", min=1)] = 2,
    alpha: Annotated[float, _gate(help="Chance that any useless candidate of the run is taken")] = 0.1,
    patience: Annotated[int, _search(help="Rounds without a better library before it stops; 0: never", min=0)] = 2,
    success: Annotated[float | None, _gate(help="Return that cannot be bettered; 1 where all are 0 to 1")] = None,
    evidence: Annotated[
        str | None, _tasks(help="Store with more runs of the training tasks, as of amc collect")
    ] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on though the app or the reward has changed")
    ] = False,
    effects: EffectsOf = None,
    rollout_seconds: Annotated[float | None, _rollouts(help="A rollout that takes longer is missing")] = None,
    seed: Seed = 0,
    concurrency: Annotated[int, _rollouts(help="Rollouts that run at a time", min=1)] = 16,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_calls: MaxCalls = None,
    max_seconds: MaxSeconds = None,
    price: PriceOf = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Find better skills for an app, and compare them with the old ones on held-out tasks.

    Run the same command again to go on with what was stopped or killed;
    nothing is paid twice. Each rollout really runs: give --effects for
    tools that write.
    """
    from langgraph_amc.evaluate.optimizing import optimize as run
    from langgraph_amc.policy.budget import Budget
    from langgraph_amc.trajectories.store import TrajectoryStore

    check_writable(out)
    goes_on(out)
    parts = splits(tasks, split, validation, held_out, limit, seed)
    if not len(parts[1]):
        raise ConfigurationError("give --validation, the tasks on which candidates are compared, beside --split")
    options: dict[str, Any] = {"effects": read_effects(effects)}
    if rollout_seconds is not None:
        options["budget"] = Budget(seconds=rollout_seconds)
    with ExitStack() as stack:
        more: Any = ()
        if evidence is not None:
            check_stored(evidence)
            more = stack.enter_context(TrajectoryStore(evidence)).trajectories(task_ids=parts[0].ids)
        told = stack.enter_context(searching(quiet or as_json))
        found = run(
            app_name,
            parts[0],
            reward,
            validation=parts[1],
            held_out=parts[2],
            skills=skills,
            out=out,
            proposer=_proposer(proposer),
            rounds=rounds,
            candidates=candidates,
            batch=batch,
            repeats=repeats,
            measured=measured,
            alpha=alpha,
            patience=patience or None,
            success=success,
            evidence=more,
            seed=seed,
            accept_changes=accept_changes,
            options=options,
            concurrency=concurrency,
            budget=read_budget(max_usd, max_tokens, max_calls, max_seconds, price),
            progress=told,
        )
    typer.echo(json.dumps(found.to_json()) if as_json else found.to_text())


def _proposer(name: str) -> Proposer:
    from langgraph_amc.skills import ExtractiveProposer, LLMProposer

    return ExtractiveProposer() if name == EXTRACTIVE else LLMProposer(name)
