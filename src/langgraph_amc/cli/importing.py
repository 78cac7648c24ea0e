"""``amc import``: what production logged becomes trajectories to train V on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langgraph_amc.checks import without_password
from langgraph_amc.cli.options import AsJson, NewStore
from langgraph_amc.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph_amc.trajectories.importers import System


def import_logs(
    files: Annotated[
        list[Path], typer.Argument(help="Exported traces: .json, .jsonl, .gz, .parquet", show_default=False)
    ],
    format: Annotated[str, typer.Option(help="auto, otlp, langsmith, phoenix, langfuse or checkpoints")] = "auto",
    feedback: Annotated[str | None, typer.Option(help="The score that is the reward, by its name")] = None,
    read_feedback: Annotated[
        str | None, typer.Option(help="file.py:function that makes a score or label a reward")
    ] = None,
    rewards: Annotated[Path | None, typer.Option(help="JSON object of rewards by trace, thread or session id")] = None,
    store: NewStore = "trajectories.sqlite",
    split: Annotated[str | None, typer.Option(help="Split of the imported tasks")] = None,
    system: Annotated[str, typer.Option(help="System prompts that only model calls show: auto, keep or drop")] = "auto",
    max_tool_chars: Annotated[int | None, typer.Option(help="As in the app's Transcript", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Import traces of an app that ran without this library: every invocation becomes a trajectory.

    A bad record is counted and never ends the import. Importing the same again adds only what is new.
    """
    from langgraph_amc.evaluate.importing import import_logs as run
    from langgraph_amc.tasks.loading import load_object
    from langgraph_amc.trajectories.store import TrajectoryStore
    from langgraph_amc.trajectories.transcript import Transcript

    options: dict[str, Any] = {
        "format": format,
        "feedback": feedback,
        "read_feedback": None if read_feedback is None else load_object(read_feedback),
        "rewards": None if rewards is None else _rewards(rewards),
        "transcript": Transcript(max_tool_chars=max_tool_chars),
        "system": _system(system),
        "split": split,
    }
    with TrajectoryStore(store) as opened:
        report = run(opened, files, **options)
    typer.echo(json.dumps({**report.to_json(), "store": without_password(store)}) if as_json else report.to_text())


def _rewards(path: Path) -> dict[str, float]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"--rewards {path} is no JSON file: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(v, int | float) for v in found.values()):
        raise ConfigurationError(f"--rewards {path} is an object of numbers by trace, thread or session id")
    return found


def _system(text: str) -> System:
    if text not in ("auto", "keep", "drop"):
        raise ConfigurationError(f"--system is auto, keep or drop, got {text!r}")
    return text  # type: ignore[return-value]  # mypy does not narrow by membership
