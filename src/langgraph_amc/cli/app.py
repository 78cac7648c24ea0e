"""The commands. Each works on a user's own app; ``amc demo`` runs them on the embedded world."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from langgraph_amc import __version__
from langgraph_amc.checks import without_password
from langgraph_amc.cli.advise import advise
from langgraph_amc.cli.coevolve import coevolve
from langgraph_amc.cli.design import design
from langgraph_amc.cli.evolve import evolve
from langgraph_amc.cli.executor import ExecutorName, Workers, with_executor
from langgraph_amc.cli.importing import import_logs
from langgraph_amc.cli.iterate import iterate
from langgraph_amc.cli.kept import keeps_trajectories
from langgraph_amc.cli.live import watched, watching
from langgraph_amc.cli.optimize import optimize
from langgraph_amc.cli.options import (
    AppName,
    AsJson,
    Boundary,
    Concurrency,
    EffectsOf,
    Limit,
    NewStore,
    Particles,
    Quiet,
    Resample,
    RewardName,
    Seeds,
    Split,
    Tasks,
    check_writable,
    flowing,
    in_runs,
    in_value,
    panel,
    read_effects,
)
from langgraph_amc.cli.plan import MaxCalls, MaxSeconds, MaxTokens, MaxUsd, PriceOf, plan, read_budget
from langgraph_amc.cli.progress import bar, plain_warning, stderr
from langgraph_amc.cli.report import report
from langgraph_amc.cli.run import run
from langgraph_amc.cli.runs import prune, resume, runs, settle, show
from langgraph_amc.cli.serve import serve_value
from langgraph_amc.cli.train_value import train_value
from langgraph_amc.cli.tune import tune
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.files import write_whole

app = typer.Typer(help="Agentic Monte Carlo for LangGraph.", no_args_is_help=True, pretty_exceptions_enable=False)

ConfigFile = Annotated[Path | None, in_runs("--config", help="What `amc tune` wrote; other options count more")]

_compared = panel("What is compared")


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


def collect(
    app_name: AppName,
    tasks: Tasks,
    reward: RewardName,
    store: NewStore = "trajectories.sqlite",
    particles: Particles = 8,
    seeds: Seeds = 1,
    split: Split = None,
    limit: Limit = None,
    boundary: Boundary = None,
    effects: EffectsOf = None,
    concurrency: Concurrency = 8,
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
    """Run the app on tasks, several times each, and store every trajectory with its reward.

    Each run really runs: a tool without a policy acts once per particle, so give --effects for those that write.
    """
    from langgraph_amc.evaluate.collect import collect as run
    from langgraph_amc.runtime.settings import read_settings
    from langgraph_amc.tasks.loading import load_reward
    from langgraph_amc.trajectories.store import TrajectoryStore

    budget = read_budget(max_usd, max_tokens, max_calls, max_seconds, price)
    graph, taskset = _app(app_name), _tasks(tasks, split, limit)
    options: dict[str, Any] = {"particles": particles, "boundary": boundary, "effects": read_effects(effects)}
    settings = read_settings(graph, **options)
    with TrajectoryStore(store) as opened:
        if (held := opened.counts().trajectories) and not quiet:
            stderr.print(f"{without_password(store)} holds {held} trajectories already: these are added to them")
    keeps_trajectories(without_password(store))
    with TrajectoryStore(store) as opened, watching("collecting", quiet or as_json) as (callbacks, progress):

        async def collecting(where: Any) -> Any:
            return await run(
                graph,
                taskset,
                load_reward(reward),
                opened,
                watched(settings, callbacks, executor),
                seeds=range(seeds),
                concurrency=concurrency,
                progress=progress,
                budget=budget,
                executor=where,
            )

        collected = asyncio.run(with_executor(executor, workers, app_name, reward, options, settings, collecting))
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps({**asdict(collected), "store": without_password(store)}))
        return
    mean = "unknown" if collected.mean_reward is None else f"{collected.mean_reward:.3f}"
    typer.echo(
        f"{collected.runs} runs on {len(taskset)} tasks in {without_password(store)}: {collected.finished} finished, "
        f"{collected.failed} failed, {collected.unjudged} without a reward; mean reward {mean}"
    )
    if collected.first_missing:
        typer.echo(f"first missing reward: {collected.first_missing}")
    if collected.first_failure:
        typer.echo(f"first failure: {collected.first_failure}")
    if collected.exhausted:
        typer.echo(f"ended by the budget: {collected.exhausted}")


def compare(
    app_name: AppName,
    tasks: Tasks,
    reward: RewardName,
    value: Annotated[str | None, in_value(help="Folder of a value function, URL, or file.py:function")] = None,
    particles: Annotated[int | None, in_runs("--particles", "-n", help="N, runs per task (8)", min=1)] = None,
    seeds: Seeds = 1,
    split: Split = None,
    limit: Limit = None,
    config: ConfigFile = None,
    boundary: Boundary = None,
    effects: EffectsOf = None,
    resample: Resample = None,
    beta: Annotated[float | None, in_runs(help="Temperature of the target, for 0/1 rewards")] = None,
    same_tokens: Annotated[bool, _compared(help="Also run best-of-N with as many tokens as AMC used")] = True,
    methods: Annotated[
        str | None,
        _compared(help="Also run searches: 'bfs, dfs, beam, mcts(3, thoughts=90), foa'", show_default=False),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the result and its report, see amc report")] = None,
    concurrency: Concurrency = 8,
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
    """Compare one run, best-of-N and AMC on the same tasks, at the same N and with the same V.

    Each run really runs: a tool without a policy acts once per particle, so give --effects for those that write.
    """
    from langgraph_amc.evaluate.compare import compare as run
    from langgraph_amc.evaluate.report import print_comparisons
    from langgraph_amc.runtime.config import RunConfig
    from langgraph_amc.runtime.settings import read_settings
    from langgraph_amc.search import parse_searches
    from langgraph_amc.tasks.loading import load_reward

    budget = read_budget(max_usd, max_tokens, max_calls, max_seconds, price)
    searches = None if methods is None else parse_searches(methods)
    if out is not None:
        check_writable(out)
    graph, taskset = _app(app_name), _tasks(tasks, split, limit)
    read = RunConfig() if config is None else RunConfig.load(config)
    given = {
        "particles": particles,
        "boundary": boundary,
        "value": value,
        "resample": resample,
        "beta": beta,
        "effects": read_effects(effects),
    }
    options = read.arguments({k: v for k, v in given.items() if v is not None})
    settings = read_settings(graph, **options | ({} if value is None else {"value": _value(value)}))
    read.check(settings)
    with watching("comparing", quiet or as_json) as (callbacks, progress):

        async def comparing(where: Any) -> Any:
            return await run(
                graph,
                taskset,
                load_reward(reward),
                watched(settings, callbacks, executor),
                seeds=range(seeds),
                concurrency=concurrency,
                same_tokens=same_tokens,
                methods=searches,
                label=Path(app_name.partition(":")[0]).stem,
                progress=progress,
                budget=budget,
                executor=where,
            )

        comparison = asyncio.run(with_executor(executor, workers, app_name, reward, options, settings, comparing))
    if out is not None:
        _keep(comparison, out)
    if as_json:
        typer.echo(json.dumps(comparison.to_json()))
    else:
        print_comparisons([comparison])


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
    check_writable(out)
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


COMMANDS: Mapping[str, Callable[..., None]] = {
    "collect": collect,
    "compare": compare,
    "demo": demo,
    "run": run,
    "report": report,
    "train-value": train_value,
    "import": import_logs,
    "advise": advise,
    "iterate": iterate,
    "evolve": evolve,
    "optimize": optimize,
    "coevolve": coevolve,
    "design": design,
    "tune": tune,
    "plan": plan,
    "runs": runs,
    "show": show,
    "resume": resume,
    "serve-value": serve_value,
    "settle": settle,
    "prune": prune,
}
for _name, _command in COMMANDS.items():
    app.command(_name, help=flowing(_command))(_command)


def _keep(comparison: Any, out: Path) -> None:
    from langgraph_amc.report import write_report
    from langgraph_amc.report.sources import RESULT, of_folder

    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / RESULT, json.dumps({"comparisons": [comparison.to_json()]}, indent=1))
    write_report(of_folder(out), out / "report.html")


def _app(name: str) -> Any:
    from langgraph_amc.evaluate.execution.work import load_served_app

    return load_served_app(name)


def _tasks(name: str, split: str | None, limit: int | None) -> Any:
    from langgraph_amc.tasks.loading import load_tasks

    tasks = load_tasks(name)
    if split is not None:
        known = tasks.splits
        tasks = tasks.split(split)
        if not len(tasks):
            raise ConfigurationError(f"no task has the split {split!r}; the splits are {', '.join(known) or 'none'}")
    return tasks if limit is None else tasks[:limit]


def _value(name: str) -> Any:
    from langgraph_amc.evaluate.execution.work import load_value_by_name

    return load_value_by_name(name)


__all__ = ["app", "stderr"]
