"""Options that several commands have, and how they are read."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from langgraph_amc.errors import ConfigurationError


def panel(name: str) -> Callable[..., Any]:
    """Options of one panel of the help, so that each has its own columns and none is cut on 80 characters."""
    return partial(typer.Option, rich_help_panel=name)


def flowing(command: Callable[..., None]) -> str:
    r"""A command's docstring with a line per paragraph, for terminals of any width to break; ``\b`` keeps its lines."""
    parts = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(part if part.startswith("\b") else " ".join(part.split()) for part in parts)


in_tasks, in_runs, in_value, in_budget = (panel(name) for name in ("Tasks", "Runs", "Value function", "Budget"))
"""Panels that commands share."""

AppName = Annotated[str, typer.Argument(help="The app, as in langgraph.json: ./agent.py:graph", show_default=False)]
Tasks = Annotated[str, in_tasks(help="tasks.jsonl, or file.py:name of a TaskSet or a function")]
RewardName = Annotated[str, in_tasks(help="file.py:function of a finished run, or an evaluator")]
Split = Annotated[str | None, in_tasks(help="Only the tasks of this split")]
Limit = Annotated[int | None, in_tasks(help="Only the first so many tasks", min=1)]
Seed = Annotated[int, typer.Option(min=0)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else")]
Concurrency = Annotated[int, in_runs(help="Populations that run at a time", min=1)]
Particles = Annotated[int, in_runs("--particles", "-n", help="N, runs per task", min=1)]
Seeds = Annotated[int, in_runs(help="How many seeds: 0, 1, …", min=1)]
EffectsOf = Annotated[
    list[str] | None,
    in_runs(
        "--effects",
        metavar="NAME=POLICY",
        help="What a tool does to the world: pure, stateful, commit or deny; *=pure for all others. Repeatable. "
        "Tools without a policy run once per particle",
        show_default=False,
    ),
]
Boundary = Annotated[str | None, in_runs(help="auto, step, or the node before which particles are compared")]
Resample = Annotated[str | None, in_runs(help="e.g. 'every(3)', 'at(4, 12)', 'ess_below(0.5)'")]
StoreOfRuns = Annotated[str, typer.Argument(help="SQLite file or SQLAlchemy URL of collected trajectories")]
NewStore = Annotated[str, typer.Option(help="SQLite file or SQLAlchemy URL")]
Base = Annotated[str, in_value(help="Hugging Face path of the transformer to start from")]
LossName = Annotated[str, in_value(help="bce, mse, hl_gauss or two_hot")]
Epochs = Annotated[int, in_value(min=1)]


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


def check_stored(store: str) -> None:
    """Raises ConfigurationError where there is no such store."""
    from langgraph_amc.trajectories.schema import sqlite_file

    file = sqlite_file(store)
    if file is not None and not file.exists():
        raise ConfigurationError(f"there is no store {store}: make one with amc collect … --store {store}")


def check_writable(folder: Path) -> None:
    """Fail before the work, not after it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent):
            pass
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written ({error.strerror}): give another --out") from error
