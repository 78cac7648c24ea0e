"""``amc evolve``: tune the local model of an app by evolution, from rewards alone; the same command goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langgraph_amc.cli.executor import ExecutorName, Workers
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
from langgraph_amc.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph_amc.evolution.schedules import Schedule
    from langgraph_amc.tasks.task import TaskSet

_PARTS = {"train": 0.6, "validation": 0.15, "held-out": 0.25}
"""Where the tasks have no splits."""


_tasks, _search, _directions = panel("Tasks"), panel("Population"), panel("Directions")
_step, _end, _rollouts = panel("Step"), panel("When it stops, what is measured"), panel("Rollouts")


def evolve(
    app_name: AppName,
    tasks: Tasks,
    reward: RewardName,
    model: Annotated[str, typer.Option(help="Folder of the model, which the app calls as amc-local/<folder>")],
    out: Annotated[Path, typer.Option(help="Folder for history, rollouts and tuned model; gone on with")] = Path(
        "evolved"
    ),
    split: Annotated[str | None, _tasks(help="Train on the tasks of this split")] = None,
    validation: Annotated[str | None, _tasks(help="Stop, and pick the best weights, by this split")] = None,
    held_out: Annotated[str | None, _tasks(help="Compare base and tuned on this split")] = None,
    limit: Annotated[int | None, _tasks(help="Only the first so many tasks of each split, for a trial", min=1)] = None,
    population: Annotated[int, _search(help="Members per generation", min=2)] = 32,
    batch: Annotated[int, _search(help="Tasks per generation; every member runs them all", min=1)] = 16,
    repeats: Annotated[int, _search(help="Runs of each task per member", min=1)] = 1,
    sigma: Annotated[float, _search(help="Standard deviation of a weight's perturbation")] = 1e-3,
    sigma_end: Annotated[float | None, _search(help="The last generation's, for linear and cosine")] = None,
    schedule: Annotated[str, _search(help="Of sigma: constant, linear, cosine, automatic")] = "constant",
    rank: Annotated[int, _directions(help="Of perturbations; 0: full, one member at a time", min=0)] = 1,
    noise: Annotated[str, _directions(help="rademacher or gaussian")] = "rademacher",
    antithetic: Annotated[bool, _directions(help="Try each direction with both signs")] = True,
    common_noise: Annotated[bool, _directions(help="Members sample with the same random numbers")] = True,
    scope: Annotated[str, _directions(help="What is perturbed: all, linear, vectors, lora")] = "all",
    racing: Annotated[
        float | None, _search(help="Stop members whose coefficient is known to this margin, e.g. 0.25")
    ] = None,
    alpha: Annotated[float | None, _step(help="A constant step size; else a share of sigma")] = None,
    alpha_ratio: Annotated[float, _step(help="Step size as a share of sigma")] = 0.5,
    shaping: Annotated[str, _step(help="Of rewards: z, ranks or none")] = "z",
    baseline: Annotated[str, _step(help="task: less the mean of each task; none")] = "task",
    trust_region: Annotated[float | None, _step(help="Largest root mean square of a step")] = None,
    decay: Annotated[float, _step(help="Share of the way back to the base, each time")] = 0.0,
    generations: Annotated[int, _end(help="The most generations", min=1)] = 50,
    validate_every: Annotated[int, _end(help="Generations between two validations", min=1)] = 5,
    patience: Annotated[int, _end(help="Validations without a new best before it stops; 0: never", min=0)] = 3,
    measured: Annotated[int, _end(help="Runs of each validation and held-out task", min=1)] = 4,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on though the app or the reward has changed")
    ] = False,
    effects: EffectsOf = None,
    rollout_seconds: Annotated[float | None, _rollouts(help="A rollout that takes longer is missing")] = None,
    seed: Seed = 0,
    concurrency: Annotated[int, _rollouts(help="Rollouts that run at a time", min=1)] = 64,
    executor: ExecutorName = "local",
    workers: Workers = 2,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_calls: MaxCalls = None,
    max_seconds: MaxSeconds = None,
    price: PriceOf = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Tune the app's local model from rewards alone, and compare it with the base on held-out tasks.

    Run the same command again to go on with what was stopped or killed.
    Each rollout really runs: give --effects for tools that write.
    """
    from langgraph_amc.evaluate.evolving import evolve as run
    from langgraph_amc.evolution.racing import Racing
    from langgraph_amc.evolution.strategy import Strategy
    from langgraph_amc.policy.budget import Budget

    check_writable(out)
    goes_on(out)
    parts = splits(tasks, split, validation, held_out, limit, seed)
    strategy: dict[str, Any] = {"shaping": shaping, "baseline": baseline, "noise": noise}
    perturbed: dict[str, Any] = {"scope": scope}
    options: dict[str, Any] = {"effects": read_effects(effects)}
    if rollout_seconds is not None:
        options["budget"] = Budget(seconds=rollout_seconds)
    with standing(quiet or as_json) as told:
        found = run(
            app_name,
            parts[0],
            reward,
            model=model,
            out=out,
            validation=parts[1],
            held_out=parts[2],
            strategy=Strategy(
                population=population,
                sigma=_schedule(schedule, sigma, sigma_end, generations),
                alpha=alpha,
                alpha_ratio=alpha_ratio,
                antithetic=antithetic,
                trust_region=trust_region,
                decay=decay,
                rank=rank or None,
                seed=seed,
                **strategy,
            ),
            generations=generations,
            batch=batch,
            repeats=repeats,
            validate_every=validate_every,
            patience=patience or None,
            measured=measured,
            racing=None if racing is None else Racing(racing),
            common_noise=common_noise,
            **perturbed,
            options=options,
            concurrency=concurrency,
            budget=read_budget(max_usd, max_tokens, max_calls, max_seconds, price),
            executor=executor,
            workers=workers,
            accept_changes=accept_changes,
            progress=told,
        )
    typer.echo(json.dumps(found.to_json()) if as_json else found.to_text())


def splits(
    name: str, split: str | None, validation: str | None, held_out: str | None, limit: int | None, seed: int
) -> tuple[TaskSet, TaskSet, TaskSet]:
    """Tasks to train on, to validate on and to hold out; where no split is named, parts of all tasks."""
    from langgraph_amc.tasks.loading import load_tasks
    from langgraph_amc.tasks.task import TaskSet

    every = load_tasks(name)
    if not len(every):
        raise ConfigurationError(f"{name} holds no tasks: give some to train on, and others to compare on")
    wanted = (split, validation, held_out)
    if wanted == (None, None, None):
        if every.splits:
            raise ConfigurationError(
                f"{name} has the splits {', '.join(every.splits)}: say which to train on (--split), and which to "
                "validate on and compare on (--validation, --held-out)"
            )
        every = every.random_split(_PARTS, seed)
        if missing := set(_PARTS) - set(every.splits):
            raise ConfigurationError(
                f"{len(every)} tasks are too few to set a part aside ({', '.join(sorted(missing))}): give more, or "
                "--split, --validation and --held-out"
            )
        wanted = tuple(_PARTS)  # type: ignore[assignment]  # three names
    if wanted[0] is None:
        raise ConfigurationError("give --split, the tasks to train on, beside --validation and --held-out")
    found = [TaskSet() if part is None else every.split(part)[:limit] for part in wanted]
    for part, chosen in zip(wanted, found, strict=True):
        if part is not None and not len(chosen):
            raise ConfigurationError(f"no task has the split {part!r}; there are {', '.join(every.splits) or 'none'}")
    return found[0], found[1], found[2]


def _schedule(kind: str, start: float, end: float | None, generations: int) -> Schedule:
    from langgraph_amc.evolution.schedules import Automatic, Constant, Cosine, Linear

    if kind in ("linear", "cosine"):
        if end is None:
            raise ConfigurationError(f"--schedule {kind} needs --sigma-end, e.g. a quarter of --sigma")
        return (Linear if kind == "linear" else Cosine)(start, end, generations)
    if end is not None:
        raise ConfigurationError(f"--sigma-end belongs to --schedule linear or cosine, not {kind}")
    if kind not in ("constant", "automatic"):
        raise ConfigurationError(f"--schedule is constant, linear, cosine or automatic, got {kind!r}")
    return Constant(start) if kind == "constant" else Automatic(start)
