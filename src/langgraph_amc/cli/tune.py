"""``amc tune``: schedule, sharpness, N and selection from collected runs, into a file that `wrap` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from langgraph_amc.checks import without_password
from langgraph_amc.cli.options import AsJson, Quiet, Seed, check_stored, in_runs
from langgraph_amc.cli.progress import bar, print_whole, stderr
from langgraph_amc.errors import ConfigurationError

SHOWN = 12


def tune(
    store: Annotated[str, typer.Argument(help="SQLite file or SQLAlchemy URL of independent runs with rewards")],
    value: Annotated[str, typer.Option(help="Folder of a trained value function, or file.py:function")],
    n: Annotated[str, in_runs("--particles", "-n", help="Values of N to try, e.g. 4,8,16")] = "4,8",
    out: Annotated[Path, typer.Option(help="File for the chosen configuration")] = Path("amc.json"),
    split: Annotated[str | None, in_runs(help="Only the tasks of this split: one that V did not learn from")] = None,
    boundary: Annotated[
        str | None, in_runs(help="The boundary with which the runs were collected, to be kept in the file")
    ] = None,
    observable: Annotated[
        bool, in_runs("--observable", help="The reward of a finished run can be observed when serving")
    ] = False,
    replicates: Annotated[int, in_runs(help="Simulated populations per task and setting", min=1)] = 8,
    seed: Seed = 0,
    all_rows: Annotated[bool, typer.Option("--all", help="Print every setting")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Choose schedule, sharpness, N and selection from collected runs, by simulation; nothing is spent.

    The runs must be independent (amc collect) and of tasks that the value function was not trained on.
    """
    from langgraph_amc.evaluate.logged import read_runs
    from langgraph_amc.evaluate.tune import tune as run
    from langgraph_amc.tasks.loading import load_object
    from langgraph_amc.trajectories.store import TrajectoryStore
    from langgraph_amc.value.callables import as_value

    check_stored(store)
    counts = _counts(n)
    if out.is_dir():
        raise ConfigurationError(f"--out {out} is a folder: name a file, such as {out / 'amc.json'}")
    folder = Path(value).is_dir() or ":" not in value or "://" in value
    with TrajectoryStore(store) as opened:
        trajectories = list(opened.trajectories(split=split))
        splits = {task["split"] for task in opened.tasks()}
    if not trajectories and split is not None:
        known = ", ".join(sorted(str(name) for name in splits)) or "none"
        raise ConfigurationError(
            f"no run in {without_password(store)} is of a task of the split {split!r}; the splits are {known}"
        )
    if split is None and "train" in splits:
        stderr.print(
            "amc: warning: the store has tasks of the split 'train': where V learned from them it looks better than it "
            "is; give --split",
            soft_wrap=True,
        )
    fingerprint = trajectories[0].fingerprint if trajectories else None
    scorer = as_value(value if folder else load_object(value), transcript_fingerprint=fingerprint)
    with bar("scoring the logged runs", quiet or as_json) as progress:
        logged = read_runs(trajectories, scorer, progress=progress)
    with bar("simulating", quiet or as_json) as progress:
        tuning = run(
            logged, particles=counts, observable=observable, replicates=replicates, seed=seed, progress=progress
        )
    tuning.to_config(value=value if folder else None, boundary=boundary).save(out)
    if as_json:
        typer.echo(json.dumps({**tuning.to_json(), "config": str(out)}))
        return
    console = Console()
    print_whole(tuning_table(tuning, all_rows=all_rows))
    for note in (*tuning.notes, *(f"{count} {reason} left out" for reason, count in logged.left_out)):
        console.print(f"note: {note}", style="yellow", highlight=False)
    console.print(f"chosen: {tuning.chosen}", style="bold", highlight=False)
    console.print(f"{tuning.reason}; written to {out}", highlight=False)
    if not folder:
        console.print(f"the value function is no folder: wrap(app, config={str(out)!r}, value=…)", highlight=False)


def tuning_table(tuning: Any, *, all_rows: bool = False) -> Table:
    """Predicted reward and cost: of those settings that nothing cheaper beats, and of the named ones."""
    title = f"predicted from {tuning.runs} runs on {tuning.tasks} tasks; one run earns {tuning.single}"
    names = {tuning.default: "default", tuning.best: "best", tuning.picked: "1 SE"}
    shown = tuning.rows if all_rows else frontier(tuning)
    figures = [
        (
            f"{row.reward.mean:.3f}\n[{row.reward.low:.3f}, {row.reward.high:.3f}]",
            f"{row.gain.mean:+.3f}\n[{row.gain.low:+.3f}, {row.gain.high:+.3f}]",
            f"{row.spent:,.0f}",
            f"{row.resamplings:.1f}",
        )
        for row in shown
    ]
    table = Table(
        title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left", title_style="bold"
    )
    table.add_column("setting", min_width=20)
    for column, name in enumerate(("reward, 95 %", "− defaults", tuning.unit, "resampled")):
        lines = [name, *(line for row in figures for line in row[column].split("\n"))]
        table.add_column(name, justify="left" if column < 2 else "right", min_width=max(map(len, lines)))
    for row, cells in zip(shown, figures, strict=True):
        mark = f" ({names[row.setting]})" if row.setting in names else ""
        table.add_row(f"{row.setting}{mark}", *cells, style="bold" if row.setting == tuning.chosen else None)
    return table


def frontier(tuning: Any) -> list[Any]:
    """Rows that no cheaper one equals, the last `SHOWN` of them, and those of the default, best and picked settings."""
    best, kept = float("-inf"), []
    for row in tuning.rows:
        if row.reward.mean > best:
            best = row.reward.mean
            kept.append(row)
    named = (tuning.default, tuning.best, tuning.picked)
    shown = {id(row) for row in kept[-SHOWN:]}
    return [row for row in tuning.rows if id(row) in shown or row.setting in named]


def _counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(f"--particles is a list of whole numbers such as 4,8,16, got {text!r}") from None
