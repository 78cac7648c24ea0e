"""``amc plan``: what a run will take, printed before anything is spent; and the options that cap it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Annotated, Any

import typer

from langgraph_amc.checks import without_password
from langgraph_amc.cli.options import AppName, AsJson, Particles, check_stored, in_budget, in_runs, in_tasks
from langgraph_amc.errors import ConfigurationError

MaxUsd = Annotated[float | None, in_budget(help="Stop before more US dollars are spent")]
MaxTokens = Annotated[int | None, in_budget(help="Stop before more tokens are used")]
MaxCalls = Annotated[int | None, in_budget(help="Stop before more model calls are made")]
MaxSeconds = Annotated[float | None, in_budget(help="Start no model call after so long")]
PriceOf = Annotated[
    str | None, in_budget("--price", help="US dollars per million tokens, input/output, of a model no table knows")
]


def read_budget(
    usd: float | None, tokens: int | None, calls: int | None, seconds: float | None, price: str | None
) -> Any:
    """The budget that the command line asks for, or ``None``."""
    from langgraph_amc.policy.budget import ANY_MODEL, Budget

    given = _price(price)
    budget = Budget(usd, tokens, calls, seconds, {} if given is None else {ANY_MODEL: given})
    return budget or None


def plan(
    app_name: AppName,
    particles: Particles = 8,
    tasks: Annotated[str | None, in_tasks(help="tasks.jsonl, or file.py:name; else one task")] = None,
    store: Annotated[str | None, in_runs(help="Trajectories of past runs, to estimate from")] = None,
    model: Annotated[str | None, in_runs(help="LiteLLM's name of the model, for its price")] = None,
    calls: Annotated[str, in_runs(help="Without past runs: model calls per run, LOW-HIGH")] = "3-12",
    output_tokens: Annotated[int, in_runs(help="Without past runs: tokens per answer", min=1)] = 300,
    max_usd: Annotated[float | None, in_budget(help="A cap: say how many particles fit")] = None,
    price: PriceOf = None,
    as_json: AsJson = False,
) -> None:
    """Estimate runs, calls, tokens and dollars of one task and of all, before anything is spent."""
    from langgraph_amc.evaluate.plan import HIGH, LOW, assumed, from_store
    from langgraph_amc.evaluate.plan import plan as estimate
    from langgraph_amc.policy.budget import UnknownPriceError
    from langgraph_amc.tasks.loading import load_app, load_tasks
    from langgraph_amc.trajectories.store import TrajectoryStore

    load_app(app_name)  # a plan for an app that does not load would be of no use
    taskset = None if tasks is None else load_tasks(tasks)
    own = _price(price)
    named, model = model, model or ("this model" if own is not None else None)
    past, place = None, without_password(store or "")
    if store is not None:
        check_stored(store)
        with TrajectoryStore(store) as opened:
            past = from_store(opened, model, own)
    if past is not None:
        source = f"past runs in {place}, from their {LOW:.0%} to their {HIGH:.0%} quantile"
    else:
        source = f"assumed, {calls} calls per run with {output_tokens} output tokens each"
        source += "" if store is None else f"; {place} holds too few runs that say what they took"
    runs = past or assumed(_range(calls), output_tokens, taskset, model, own)
    count = 1 if taskset is None else len(taskset)
    try:
        made = estimate(particles, runs, source, tasks=count, cap=max_usd)
    except UnknownPriceError:
        raise ConfigurationError(f"--max-usd needs a price: {_ask_for_price(named)}") from None
    typer.echo(json.dumps(asdict(made)) if as_json else to_text(made, named))


def to_text(made: Any, model: str | None = None) -> str:
    """A plan as lines to read."""
    lines = [f"estimate for N = {made.particles} ({made.source})"]
    rows = [("one task", made.per_task)] + ([(f"{made.tasks} tasks", made.total)] if made.tasks > 1 else [])
    for name, e in rows:
        tokens = tuple(a + b for a, b in zip(e.input_tokens, e.output_tokens, strict=True))
        parts = [_span(e.runs, "runs"), _span(e.calls, "calls"), _span(tokens, "tokens")]
        parts.append(_dollars(e.usd) if e.usd is not None else f"price unknown ({_ask_for_price(model)})")
        lines.append(f"  {name}: " + ", ".join(parts))
    if made.cap is not None:
        fits = f"N = {made.fits}" if made.fits else "not even N = 1 fits"
        lines.append(f"N = {made.particles}: {_dollars(made.total.usd)}; cap {_usd(made.cap)}: {fits}")
    return "\n".join(lines)


def _span(span: tuple[int, int], unit: str) -> str:
    return f"{span[0]:,} {unit}" if span[0] == span[1] else f"{span[0]:,}–{span[1]:,} {unit}"


def _dollars(span: tuple[float, float]) -> str:
    return f"{_usd(span[0])}–{_usd(span[1]).removeprefix('$')}"


def _ask_for_price(model: str | None) -> str:
    if model is None:
        return "give --model, or --price IN/OUT"
    return f"no table knows {model}, give --price IN/OUT in US dollars per million tokens"


def _usd(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 0.1 else f"${amount:.4f}"


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:\s*[-–]\s*(\d+))?", text.strip())
    if found is None:
        raise ConfigurationError(f"--calls is a range such as 3-12, got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def _price(text: str | None) -> Any:
    from langgraph_amc.policy.budget import Price

    if text is None:
        return None
    try:
        dear, new = (float(part) for part in text.split("/"))
    except ValueError:
        raise ConfigurationError(
            f"--price is input/output in US dollars per million, such as 0.15/0.60, got {text!r}"
        ) from None
    return Price(dear, new)
