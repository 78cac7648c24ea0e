"""``amc advise``: whether AMC will help an app, from a pilot that it runs or from runs that are stored."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from langgraph_amc.checks import without_password
from langgraph_amc.cli.kept import keeps_trajectories
from langgraph_amc.cli.options import (
    AsJson,
    Boundary,
    Concurrency,
    EffectsOf,
    Quiet,
    Resample,
    Seed,
    Split,
    check_stored,
    in_runs,
    in_tasks,
    in_value,
    read_effects,
)
from langgraph_amc.cli.plan import MaxCalls, MaxSeconds, MaxTokens, MaxUsd, PriceOf, read_budget
from langgraph_amc.cli.progress import bar
from langgraph_amc.errors import ConfigurationError

PILOT_TASKS = 24


def advise(
    app_name: Annotated[
        str | None,
        typer.Argument(
            help="The app, as in langgraph.json: ./agent.py:graph; not needed with --store", show_default=False
        ),
    ] = None,
    tasks: Annotated[str | None, in_tasks(help="Run a pilot on these: tasks.jsonl, or file.py:name")] = None,
    reward: Annotated[str | None, in_tasks(help="file.py:function of a finished run, or an evaluator")] = None,
    value: Annotated[
        str | None, in_value(help="Folder of a trained value function, or file.py:function; not of these tasks")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Stored runs to advise on; with --tasks: where the pilot's are kept")
    ] = None,
    particles: Annotated[int, in_runs("--particles", "-n", help="N, and runs per task of a pilot", min=2)] = 8,
    limit: Annotated[int, in_tasks(help="Tasks of a pilot, at most", min=1)] = PILOT_TASKS,
    split: Split = None,
    resample: Resample = None,
    observable: Annotated[
        bool, in_value("--observable", help="The reward is known when serving: best-of-N takes the best for sure")
    ] = False,
    boundary: Boundary = None,
    effects: EffectsOf = None,
    concurrency: Concurrency = 8,
    seed: Seed = 0,
    save: Annotated[Path | None, typer.Option(help="Also keep the report as an .svg file")] = None,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_calls: MaxCalls = None,
    max_seconds: MaxSeconds = None,
    price: PriceOf = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Say whether AMC will beat best-of-N, by how much, at what cost, and why: from a pilot, or from stored runs.

    A pilot really runs the app, --particles times per task: a tool without a policy acts each time. Stored runs
    are those of amc collect, several for each task, none of which the value function has learned from.
    """
    from langgraph_amc.cli.app import _app, _tasks, _value
    from langgraph_amc.evaluate.advice.advise import advise as judge
    from langgraph_amc.evaluate.advice.report import print_advice
    from langgraph_amc.runtime.effects.policy import read_effects as rules_of
    from langgraph_amc.smc import parse_schedule
    from langgraph_amc.value import as_value

    if save is not None and save.suffix != ".svg":
        raise ConfigurationError(f"--save writes an .svg file, got {save}")
    schedule = None if resample is None else parse_schedule(resample)
    policies = read_effects(effects)
    app = None if app_name is None else _app(app_name)
    if tasks is None:
        _check_stored(store)
    with _place(store) as where:
        if tasks is not None:
            if app is None or reward is None:
                raise ConfigurationError("a pilot needs the app, --tasks and --reward; without --tasks give --store")
            if store is not None:
                keeps_trajectories(without_password(store))
            budget = read_budget(max_usd, max_tokens, max_calls, max_seconds, price)
            with bar("running the pilot", quiet or as_json) as progress:
                _pilot(
                    app,
                    _tasks(tasks, split, limit),
                    reward,
                    where,
                    {"particles": particles, "boundary": boundary, "effects": policies},
                    seed=seed,
                    concurrency=concurrency,
                    progress=progress,
                    budget=budget,
                )
        trajectories = _stored(where, None if tasks is not None else split)
    with bar("scoring states", quiet or as_json) as progress:
        advice = judge(
            trajectories,
            None if value is None else as_value(_value(value), trajectories[0].fingerprint if trajectories else None),
            particles=particles,
            schedule=schedule,
            observable=observable,
            effects=None if app is None else rules_of(policies, app),
            seed=seed,
            progress=progress,
        )
    if save is not None:
        from rich.console import Console

        console = Console(record=True, width=100, file=io.StringIO())
        print_advice(advice, console)
        save.parent.mkdir(parents=True, exist_ok=True)
        console.save_svg(str(save), title="amc advise")
    if as_json:
        typer.echo(json.dumps(advice.to_json()))
    else:
        print_advice(advice)


def _check_stored(store: str | None) -> None:
    if store is None:
        raise ConfigurationError("give --tasks and --reward for a pilot, or --store with runs of amc collect")
    check_stored(store)


@contextmanager
def _place(store: str | None) -> Iterator[str]:
    """The store, or one that is thrown away."""
    if store is not None:
        yield store
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "pilot.sqlite")


def _stored(store: str, split: str | None) -> list[Any]:
    from langgraph_amc.trajectories.store import TrajectoryStore

    with TrajectoryStore(store) as opened:
        return list(opened.trajectories(split=split))


def _pilot(
    app: Any, taskset: Any, reward: str, store: str, settings: dict[str, Any], *, seed: int, **options: Any
) -> None:
    from langgraph_amc.evaluate.collect import collect
    from langgraph_amc.runtime.settings import read_settings
    from langgraph_amc.tasks.loading import load_reward
    from langgraph_amc.trajectories.store import TrajectoryStore

    with TrajectoryStore(store) as opened:
        asyncio.run(
            collect(app, taskset, load_reward(reward), opened, read_settings(app, **settings), seeds=(seed,), **options)
        )


__all__ = ["advise"]
