"""``amc train-value``: a value function from everything in a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from langgraph_amc.cli.options import (
    AsJson,
    Base,
    Epochs,
    LossName,
    Quiet,
    Seed,
    Split,
    StoreOfRuns,
    check_stored,
    check_writable,
    in_value,
    panel,
)
from langgraph_amc.cli.progress import bar

_held_out = panel("Held-out tasks")


def train_value(
    store: StoreOfRuns,
    base: Base,
    out: Annotated[Path, typer.Option(help="Folder for the value model")] = Path("value"),
    loss: LossName = "bce",
    epochs: Epochs = 3,
    lr: Annotated[
        float | None,
        in_value(help="Learning rate; by default 5e-4, or 2e-4 where adapters are trained", show_default=False),
    ] = None,
    td_lambda: Annotated[
        float, in_value(help="1 learns from outcomes; less leans on the stored values of later states")
    ] = 1.0,
    validation: Annotated[float, _held_out(help="Part of the tasks that is held out; 0 holds none out")] = 0.2,
    calibrate: Annotated[
        bool, _held_out(help="Fit a calibration to the held-out tasks, and keep it where it helps")
    ] = True,
    split: Split = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train the value function on everything in a store, failures included."""
    from langgraph_amc.trajectories.store import TrajectoryStore
    from langgraph_amc.value import train_value as train

    check_stored(store)
    with TrajectoryStore(store) as opened:
        trajectories = list(opened.trajectories(split=split))
    check_writable(out)
    with bar("training the value function", quiet or as_json) as progress:
        report = train(
            trajectories,
            base,
            out=out,
            loss=loss,  # type: ignore[arg-type]  # checked there
            epochs=epochs,
            lr=lr,
            td_lambda=td_lambda,
            validation=validation,
            calibrate="auto" if calibrate else "none",
            seed=seed,
            progress=lambda p: progress(min(p.step, p.steps), p.steps),
        )
    typer.echo(json.dumps(report.to_dict()) if as_json else report.to_text())
