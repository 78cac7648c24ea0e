"""``amc coevolve``: evolve an app's skills, and its local model's weights, from the same rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langgraph_amc.cli.evolve import _schedule, splits
from langgraph_amc.cli.kept import goes_on
from langgraph_amc.cli.live import standing
from langgraph_amc.cli.options import (
    AppName,
    AsJson,
    EffectsOf,
    Quiet,
    RewardName,
    Seed,
    Tasks,
    check_writable,
    panel,
    read_effects,
)
from langgraph_amc.cli.plan import MaxCalls, MaxSeconds, MaxTokens, MaxUsd, PriceOf, read_budget

if TYPE_CHECKING:
    from langgraph_amc.skills.types import Proposer


_tasks, _skills, _weights, _search = panel("Tasks"), panel("Skills"), panel("Weights"), panel("Generations")


def coevolve(
    app_name: AppName,
    tasks: Tasks,
    reward: RewardName,
    out: Annotated[Path, typer.Option(help="Folder for history, rollouts, skills and model; gone on with")] = Path(
        "coevolved"
    ),
    split: Annotated[str | None, _tasks(help="Train on the tasks of this split")] = None,
    validation: Annotated[str | None, _tasks(help="Stop, and pick the best, by this split")] = None,
    held_out: Annotated[str | None, _tasks(help="Compare start and end on this split")] = None,
    limit: Annotated[int | None, _tasks(help="Only the first so many tasks of each split", min=1)] = None,
    skills: Annotated[Path | None, _skills(help="Folder of the library to start from; it is not changed")] = None,
    proposer: Annotated[str, _skills(help="extractive, or LiteLLM's name of a model that proposes")] = "extractive",
    trial: Annotated[int, _skills(help="Generations for which a challenger is tried", min=1)] = 4,
    challengers: Annotated[int, _skills(help="Libraries tried at a time, beside the champion", min=1)] = 1,
    gate_alpha: Annotated[float, _skills(help="Of the gate's test, for a trial")] = 0.05,
    model: Annotated[str | None, _weights(help="Tune this folder's model, which the app calls as amc-local/…")] = None,
    sigma: Annotated[float, _weights(help="Standard deviation of a weight's perturbation")] = 1e-3,
    sigma_end: Annotated[float | None, _weights(help="The last generation's, for linear and cosine")] = None,
    schedule: Annotated[str, _weights(help="Of sigma: constant, linear, cosine, automatic")] = "constant",
    alpha_ratio: Annotated[float, _weights(help="Step size as a share of sigma")] = 0.5,
    rank: Annotated[int, _weights(help="Of perturbations; 0: full, one member at a time", min=0)] = 1,
    scope: Annotated[str, _weights(help="What is perturbed: all, linear, vectors, lora")] = "all",
    generations: Annotated[int, _search(help="The most generations", min=1)] = 24,
    population: Annotated[int, _search(help="Members per generation; without a model, runs of a task", min=2)] = 32,
    batch: Annotated[int, _search(help="Tasks per generation", min=1)] = 16,
    repeats: Annotated[int, _search(help="Runs of each task per member", min=1)] = 1,
    validate_every: Annotated[int, _search(help="Generations between two validations", min=1)] = 5,
    patience: Annotated[int, _search(help="Validations without a new best before it stops; 0: never", min=0)] = 3,
    measured: Annotated[int, _search(help="Runs of each validation and held-out task", min=1)] = 4,
    effects: EffectsOf = None,
    seed: Seed = 0,
    concurrency: Annotated[int, typer.Option(help="Rollouts that run at a time", min=1)] = 64,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on though the app, the reward or the effects have changed")
    ] = False,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_calls: MaxCalls = None,
    max_seconds: MaxSeconds = None,
    price: PriceOf = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evolve the skills in the app's prompt and, with --model, the weights of its local model, from the same rollouts.

    Run the same command again to go on with what was stopped or killed.
    Each rollout really runs: give --effects for tools that write.
    """
    from langgraph_amc.coevolve import Trials
    from langgraph_amc.evaluate.coevolving import coevolve as run
    from langgraph_amc.evolution.strategy import Strategy

    check_writable(out)
    goes_on(out)
    parts = splits(tasks, split, validation, held_out, limit, seed)
    perturbed: dict[str, Any] = {"scope": scope}
    with standing(quiet or as_json) as told:
        found = run(
            app_name,
            parts[0],
            reward,
            _proposer(proposer),
            out=out,
            skills=skills,
            model=model,
            trials=Trials(trial, challengers, gate_alpha),
            validation=parts[1],
            held_out=parts[2],
            strategy=Strategy(
                population=population,
                sigma=_schedule(schedule, sigma, sigma_end, generations),
                alpha_ratio=alpha_ratio,
                rank=rank or None,
                seed=seed,
            ),
            generations=generations,
            batch=batch,
            repeats=repeats,
            validate_every=validate_every,
            patience=patience or None,
            measured=measured,
            **perturbed,
            options={"effects": read_effects(effects)},
            concurrency=concurrency,
            budget=read_budget(max_usd, max_tokens, max_calls, max_seconds, price),
            accept_changes=accept_changes,
            progress=told,
        )
    typer.echo(json.dumps(found.to_json()) if as_json else found.to_text())


def _proposer(name: str) -> Proposer:
    from langgraph_amc.skills.proposers.extractive import ExtractiveProposer
    from langgraph_amc.skills.proposers.llm import LLMProposer

    return ExtractiveProposer() if name == "extractive" else LLMProposer(name)
