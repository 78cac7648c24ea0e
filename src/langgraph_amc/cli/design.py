"""``amc design``: have a model write a heuristic for a classic problem, run confined, and evolve it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langgraph_amc.cli.evolve import _schedule
from langgraph_amc.cli.kept import goes_on
from langgraph_amc.cli.options import AsJson, Quiet, Seed, check_writable, panel
from langgraph_amc.cli.plan import MaxCalls, MaxSeconds, MaxTokens, MaxUsd, PriceOf, read_budget
from langgraph_amc.cli.progress import stderr
from langgraph_amc.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph_amc.heuristics.search import Searched


_search, _scores, _weights = panel("Search"), panel("Scores"), panel("Weights")


def design(
    problem: Annotated[str, typer.Argument(help="bin-packing or tour", show_default=False)],
    model: Annotated[str, typer.Option(help="LiteLLM's name; amc-local/<folder> is tuned on the way")],
    out: Annotated[Path, typer.Option(help="Folder for history and function; gone on with")] = Path("designed"),
    generations: Annotated[int, _search(help="The most generations", min=1)] = 20,
    population: Annotated[int, _search(help="Members, each asked in every generation", min=2)] = 16,
    requests: Annotated[int, _search(help="Questions per member and generation", min=1)] = 1,
    kept: Annotated[int, _search(help="Functions that stay", min=2)] = 10,
    instances: Annotated[int, _scores(help="That a function is scored on", min=1)] = 4,
    tune: Annotated[bool, _weights(help="Tune a local model's weights")] = True,
    sigma: Annotated[float, _weights(help="Standard deviation of a weight's perturbation")] = 1e-3,
    sigma_end: Annotated[float | None, _weights(help="The last generation's, for linear and cosine")] = None,
    schedule: Annotated[str, _weights(help="Of sigma: constant, linear, cosine, automatic")] = "constant",
    scope: Annotated[str, _weights(help="What is perturbed: all, linear, vectors, lora")] = "all",
    seconds: Annotated[float, _scores(help="That a function may take on all instances")] = 10.0,
    parallel: Annotated[int, _scores(help="Functions that run at a time", min=1)] = 2,
    seed: Seed = 0,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_calls: MaxCalls = None,
    max_seconds: MaxSeconds = None,
    price: PriceOf = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Have a model write functions for a problem, keep the best, and compare it with a well-known one.

    Functions run in a sandbox without files, network and processes (Linux, with the extra sandbox of the package).
    """
    from langgraph_amc.evaluate.designing import design as run
    from langgraph_amc.evolution.strategy import Strategy
    from langgraph_amc.heuristics import PROBLEMS, Limits, Search

    if problem not in PROBLEMS:
        raise ConfigurationError(f"there is no problem {problem!r}: {', '.join(PROBLEMS)}")
    check_writable(out)
    goes_on(out)
    perturbed: dict[str, Any] = {"scope": scope}
    limits = Limits(seconds=seconds)
    found = run(
        PROBLEMS[problem],
        model,
        out=out,
        settings=Search(generations, requests, kept, instances, seed, parallel, limits),
        strategy=Strategy(population=population, sigma=_schedule(schedule, sigma, sigma_end, generations), seed=seed),
        tune=tune,
        **perturbed,
        budget=read_budget(max_usd, max_tokens, max_calls, max_seconds, price),
        progress=None if quiet or as_json else _tell,
    )
    typer.echo(json.dumps(found.to_json()) if as_json else found.to_text())


def _tell(searched: Searched) -> None:
    best = f"{searched.population[0].score:.4f}" if searched.population else "none yet"
    failed = ", ".join(f"{count} {kind}" for kind, count in searched.failures.items()) or "none"
    number = searched.record.update.generation.number + 1
    stderr.print(f"generation {number}: best {best}, failed: {failed}", highlight=False, markup=False)
