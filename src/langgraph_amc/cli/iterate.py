"""``amc iterate``: collect with AMC, train V on everything so far, measure on held-out tasks, while it helps."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from langgraph_amc.cli.kept import kept
from langgraph_amc.cli.options import (
    AppName,
    AsJson,
    Base,
    Boundary,
    Concurrency,
    EffectsOf,
    Epochs,
    LossName,
    Particles,
    Quiet,
    Resample,
    RewardName,
    Seed,
    Tasks,
    in_runs,
    in_tasks,
    read_effects,
)
from langgraph_amc.cli.plan import MaxCalls, MaxSeconds, MaxTokens, MaxUsd, PriceOf, read_budget
from langgraph_amc.cli.progress import bar
from langgraph_amc.errors import ConfigurationError

_HELD_OUT = 0.3


def iterate(
    app_name: AppName,
    tasks: Tasks,
    reward: RewardName,
    base: Base,
    out: Annotated[Path, typer.Option(help="Folder for the trajectories and each round's value model")] = Path(
        "iterated"
    ),
    rounds: Annotated[int, in_runs(help="The most rounds", min=1)] = 3,
    particles: Particles = 8,
    seeds: Annotated[int, in_runs(help="Runs of each task as N particles, per round", min=1)] = 1,
    split: Annotated[str | None, in_tasks(help="Collect on the tasks of this split")] = None,
    held_out: Annotated[
        str | None, in_tasks(help="Measure on the tasks of this split; without splits a third is held out")
    ] = None,
    limit: Annotated[int | None, in_tasks(help="Only the first so many tasks of each split", min=1)] = None,
    boundary: Boundary = None,
    effects: EffectsOf = None,
    resample: Resample = None,
    loss: LossName = "bce",
    epochs: Epochs = 3,
    seed: Seed = 0,
    concurrency: Concurrency = 8,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_calls: MaxCalls = None,
    max_seconds: MaxSeconds = None,
    price: PriceOf = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Collect, train, measure, and again with the better value function, until a round no longer helps.

    Each run really runs: a tool without a policy acts once per particle, so give --effects for those that write.
    """
    from langgraph_amc.evaluate.iterate import iterate as run
    from langgraph_amc.tasks.loading import load_app, load_reward, load_tasks

    if (split is None) != (held_out is None):
        raise ConfigurationError("give --split and --held-out both, or neither: then a part of all tasks is held out")
    every = load_tasks(tasks)
    if split is None or held_out is None:
        split, held_out = "collect", "measure"
        every = every.random_split({split: 1 - _HELD_OUT, held_out: _HELD_OUT}, seed)
        if {split, held_out} - set(every.splits):
            raise ConfigurationError(
                f"{len(every)} tasks are too few to hold a part of them out: give more, or --split and --held-out"
            )
    chosen = {name: every.split(name) for name in (split, held_out)}
    if empty := [name for name, found in chosen.items() if not len(found)]:
        raise ConfigurationError(f"no task has the split {empty[0]!r}; there are {', '.join(every.splits) or 'none'}")
    options = {
        "particles": particles,
        "boundary": boundary,
        "effects": read_effects(effects),
        "resample": resample,
    }
    kept.set(f"the runs that have ended, and the rounds, are kept in {out}")
    with bar("iterating", quiet or as_json) as progress:
        found = asyncio.run(
            run(
                load_app(app_name),
                chosen[split][:limit],
                load_reward(reward),
                base,
                held_out=chosen[held_out][:limit],
                out=out,
                rounds=rounds,
                options=options,
                train={"loss": loss, "epochs": epochs},
                seeds=seeds,
                seed=seed,
                concurrency=concurrency,
                budget=read_budget(max_usd, max_tokens, max_calls, max_seconds, price),
                progress=progress,
            )
        )
    typer.echo(json.dumps(found.to_json()) if as_json else found.to_text())
