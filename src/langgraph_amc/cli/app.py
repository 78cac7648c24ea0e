"""The commands. Each works on a user's own app; ``amc demo`` runs them on the embedded world."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from langgraph_amc import __version__
from langgraph_amc.cli.advise import advise
from langgraph_amc.cli.importing import import_logs
from langgraph_amc.cli.iterate import iterate
from langgraph_amc.cli.plan import MaxCalls, MaxSeconds, MaxTokens, MaxUsd, PriceOf, plan, read_budget
from langgraph_amc.cli.progress import bar, plain_warning, stderr
from langgraph_amc.cli.runs import prune, resume, runs, settle, show
from langgraph_amc.cli.serve import serve_value
from langgraph_amc.cli.tune import tune
from langgraph_amc.errors import ConfigurationError

app = typer.Typer(help="Agentic Monte Carlo for LangGraph.", no_args_is_help=True, pretty_exceptions_enable=False)

AppName = Annotated[str, typer.Argument(help="The app, as in langgraph.json: ./agent.py:graph", show_default=False)]
Tasks = Annotated[str, typer.Option(help="tasks.jsonl, or file.py:name of a TaskSet or a function")]
RewardName = Annotated[str, typer.Option(help="file.py:function of a finished run, or an evaluator")]
Split = Annotated[str | None, typer.Option(help="Only the tasks of this split")]
Limit = Annotated[int | None, typer.Option(help="Only the first so many tasks", min=1)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else")]
Concurrency = Annotated[int, typer.Option(help="Populations that run at a time", min=1)]
Particles = Annotated[int, typer.Option("--particles", "-n", help="N, runs per task", min=1)]
Seeds = Annotated[int, typer.Option(help="How many seeds: 0, 1, …", min=1)]
EffectsOf = Annotated[
    list[str] | None,
    typer.Option(
        "--effects",
        metavar="NAME=POLICY",
        help="What a tool does to the world: pure, stateful, commit or deny; *=pure for all others. Repeatable. "
        "Tools without a policy run once per particle",
        show_default=False,
    ),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="What `amc tune` wrote; other options count more")]
Boundary = Annotated[str | None, typer.Option(help="auto, step, or the node before which particles are compared")]


def _version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it")] = False,
) -> None:
    """Agentic Monte Carlo for LangGraph."""
    warnings.showwarning = plain_warning


@app.command()
def collect(
    app_name: AppName,
    tasks: Tasks,
    reward: RewardName,
    store: Annotated[str, typer.Option(help="SQLite file or SQLAlchemy URL")] = "trajectories.sqlite",
    particles: Particles = 8,
    seeds: Seeds = 1,
    split: Split = None,
    limit: Limit = None,
    boundary: Boundary = None,
    effects: EffectsOf = None,
    concurrency: Concurrency = 8,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_calls: MaxCalls = None,
    max_seconds: MaxSeconds = None,
    price: PriceOf = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run the app on tasks, several times each, and store every trajectory with its reward.

    Each run really runs: a tool without a policy acts once per particle, so give --effects for those that write.
    """
    from langgraph_amc.evaluate.collect import collect as run
    from langgraph_amc.runtime.settings import read_settings
    from langgraph_amc.tasks.loading import load_reward
    from langgraph_amc.trajectories.store import TrajectoryStore

    budget = read_budget(max_usd, max_tokens, max_calls, max_seconds, price)
    graph, taskset = _app(app_name), _tasks(tasks, split, limit)
    settings = read_settings(graph, particles=particles, boundary=boundary, effects=read_effects(effects))
    with TrajectoryStore(store) as opened:
        if (held := opened.counts().trajectories) and not quiet:
            stderr.print(f"{store} holds {held} trajectories already: these are added to them")
    with TrajectoryStore(store) as opened, bar("collecting", quiet or as_json) as progress:
        collected = asyncio.run(
            run(
                graph,
                taskset,
                load_reward(reward),
                opened,
                settings,
                seeds=range(seeds),
                concurrency=concurrency,
                progress=progress,
                budget=budget,
            )
        )
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps({**asdict(collected), "store": store}))
        return
    mean = "unknown" if collected.mean_reward is None else f"{collected.mean_reward:.3f}"
    typer.echo(
        f"{collected.runs} runs on {len(taskset)} tasks in {store}: {collected.finished} finished, "
        f"{collected.failed} failed, {collected.unjudged} without a reward; mean reward {mean}"
    )
    if collected.first_missing:
        typer.echo(f"first missing reward: {collected.first_missing}")
    if collected.first_failure:
        typer.echo(f"first failure: {collected.first_failure}")
    if collected.exhausted:
        typer.echo(f"ended by the budget: {collected.exhausted}")


@app.command("train-value")
def train_value(
    store: Annotated[str, typer.Argument(help="SQLite file or SQLAlchemy URL of collected trajectories")],
    base: Annotated[str, typer.Option(help="Hugging Face path of the transformer to start from")],
    out: Annotated[Path, typer.Option(help="Folder for the value model")] = Path("value"),
    loss: Annotated[str, typer.Option(help="bce, mse, hl_gauss or two_hot")] = "bce",
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    split: Split = None,
    seed: int = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train the value function on everything in a store, failures included."""
    from langgraph_amc.trajectories.store import TrajectoryStore

    if "://" not in store and not Path(store).exists():
        raise ConfigurationError(f"there is no store {store}: make one with amc collect … --store {store}")
    with TrajectoryStore(store) as opened:
        trajectories = list(opened.trajectories(split=split))
    _writable(out)
    report = _train(trajectories, base, out, quiet or as_json, loss=loss, epochs=epochs, seed=seed)
    typer.echo(json.dumps(report.to_dict()) if as_json else report.to_text())


@app.command()
def compare(
    app_name: AppName,
    tasks: Tasks,
    reward: RewardName,
    value: Annotated[str | None, typer.Option(help="Folder of a value function, URL, or file.py:function")] = None,
    particles: Annotated[int | None, typer.Option("--particles", "-n", help="N, runs per task (8)", min=1)] = None,
    seeds: Seeds = 1,
    split: Split = None,
    limit: Limit = None,
    config: ConfigFile = None,
    boundary: Boundary = None,
    effects: EffectsOf = None,
    resample: Annotated[str | None, typer.Option(help="e.g. 'every(3)', 'at(4, 12)', 'ess_below(0.5)'")] = None,
    beta: Annotated[float | None, typer.Option(help="Temperature of the target, for 0/1 rewards")] = None,
    same_tokens: Annotated[bool, typer.Option(help="Also run best-of-N with as many tokens as AMC used")] = True,
    concurrency: Concurrency = 8,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_calls: MaxCalls = None,
    max_seconds: MaxSeconds = None,
    price: PriceOf = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare one run, best-of-N and AMC on the same tasks, at the same N and with the same V.

    Each run really runs: a tool without a policy acts once per particle, so give --effects for those that write.
    """
    from langgraph_amc.evaluate.compare import compare as run
    from langgraph_amc.evaluate.report import print_comparisons
    from langgraph_amc.runtime.config import RunConfig
    from langgraph_amc.runtime.settings import read_settings
    from langgraph_amc.tasks.loading import load_reward

    budget = read_budget(max_usd, max_tokens, max_calls, max_seconds, price)
    graph, taskset = _app(app_name), _tasks(tasks, split, limit)
    read = RunConfig() if config is None else RunConfig.load(config)
    given = {
        "particles": particles,
        "boundary": boundary,
        "value": None if value is None else _value(value),
        "resample": resample,
        "beta": beta,
        "effects": read_effects(effects),
    }
    settings = read_settings(graph, **read.arguments({k: v for k, v in given.items() if v is not None}))
    read.check(settings)
    with bar("comparing", quiet or as_json) as progress:
        comparison = asyncio.run(
            run(
                graph,
                taskset,
                load_reward(reward),
                settings,
                seeds=range(seeds),
                concurrency=concurrency,
                same_tokens=same_tokens,
                label=Path(app_name.partition(":")[0]).stem,
                progress=progress,
                budget=budget,
            )
        )
    if as_json:
        typer.echo(json.dumps(comparison.to_json()))
    else:
        print_comparisons([comparison])


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for its trajectories, value model and table")] = Path("amc-demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A smaller study: under 90 seconds")] = False,
    full: Annotated[bool, typer.Option("--full", help="The study of the README: 100 tasks × 3 seeds")] = False,
    seed: int = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Collect, train a value function and compare, on the embedded crafting world. No key, no network."""
    from langgraph_amc.demo.pipeline import FULL, QUICK, STANDARD, run_demo
    from langgraph_amc.evaluate.report import print_comparisons

    if quick and full:
        raise ConfigurationError("give --quick or --full, not both")
    _writable(out)
    scale = QUICK if quick else FULL if full else STANDARD
    result = run_demo(out, scale, seed=seed, bar=lambda title: bar(title, quiet or as_json))
    if as_json:
        typer.echo(json.dumps(result.to_json()))
        return
    console = Console()
    console.print(result.value_report)
    print_comparisons(result.comparisons, console)
    console.print(f"kept in {out}: {', '.join(sorted(p.name for p in out.iterdir()))}", style="dim")
    console.print(f"{result.seconds:.0f} seconds in all", style="dim")


app.command("import")(import_logs)
app.command()(advise)
app.command()(iterate)
app.command()(tune)
app.command()(plan)
app.command()(runs)
app.command()(show)
app.command()(resume)
app.command("serve-value")(serve_value)
app.command()(settle)
app.command()(prune)


def read_effects(given: list[str] | None) -> dict[str, Any] | None:
    """Policies by tool name from ``name=policy`` each, ``None`` for none; whether they are any is checked by `wrap`."""
    policies: dict[str, Any] = {}
    for text in given or ():
        name, found, policy = (part.strip() for part in text.partition("="))
        if not (name and found and policy):
            raise ConfigurationError(f"--effects is NAME=POLICY, like send_mail=commit or '*=pure', got {text!r}")
        if policies.setdefault(name, policy) != policy:
            raise ConfigurationError(f"--effects gives {name} two policies, {policies[name]} and {policy}: give one")
    return policies or None


def _app(name: str) -> Any:
    from langgraph_amc.tasks.loading import load_app

    loaded = load_app(name)
    if "litellm" in sys.modules:  # the app uses it: its models may be ours (amc-local/<path>)
        from langgraph_amc.policy.litellm_setup import load_litellm

        load_litellm()
    return loaded


def _tasks(name: str, split: str | None, limit: int | None) -> Any:
    from langgraph_amc.tasks.loading import load_tasks

    tasks = load_tasks(name)
    if split is not None:
        known = tasks.splits
        tasks = tasks.split(split)
        if not len(tasks):
            raise ConfigurationError(f"no task has the split {split!r}; the splits are {', '.join(known) or 'none'}")
    return tasks if limit is None else tasks[:limit]


def _writable(folder: Path) -> None:
    """Fail before the work, not after it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent):
            pass
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written ({error.strerror}): give another --out") from error


def _value(name: str) -> Any:
    from langgraph_amc.tasks.loading import load_object

    return name if Path(name).is_dir() or ":" not in name or "://" in name else load_object(name)


def _train(trajectories: Any, base: str, out: Path, quiet: bool, **options: Any) -> Any:
    from langgraph_amc.value import train_value

    with bar("training the value function", quiet) as progress:
        return train_value(
            trajectories, base, out=out, progress=lambda p: progress(min(p.step, p.steps), p.steps), **options
        )


__all__ = ["app", "stderr"]
