"""Searches beside best-of-N and AMC on the crafting demo agent, with a trained V and honest selection.

    python benchmarks/searches.py --out DIR [--quick] [--tasks 20] [--seeds 3] [--value DIR] [--methods TEXT]

Tasks are the demo's test tasks, which neither the policy nor V has seen. V chooses every answer; rewards are looked at
afterwards, so a rollout is worth V of its last state. Sizes of the searches were set on other tasks (``--split tune``)
so that each takes about as many tokens as AMC with 8 particles, where it can spend them; tokens are printed beside the
rewards. What is in ``--out`` already is used again, so that a study can be stopped and called again. Without
``--value`` V is trained first, as ``amc demo`` does. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kept
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from tune_check import World

from langgraph_amc.evaluate.compare import AMC, compare
from langgraph_amc.evaluate.statistics import Estimate, Scores, estimate, paired
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.search import parse_searches
from langgraph_amc.tasks.task import TaskSet

SIZED = (
    "bfs(4, 2, steps=3), beam(5, 2, steps=3), dfs(3, 0.3, steps=3), mcts(3, 40, steps=3), "
    "mcts(3, 40, steps=3, backup='max'), mcts(3, 20, steps=3, evaluate='rollout'), foa(6, 3)"
)
AT_A_TIME = 5
"""Tasks that are kept together."""


def parts(world: World, value: Path, given: argparse.Namespace) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Comparisons of a few tasks under one seed: (first task, seed, plain data)."""
    tasks = list(world.tasks(given.split, given.tasks))
    settings = read_settings(world.app, particles=given.particles, value=value)
    for seed in range(given.seeds):
        for first in range(0, len(tasks), AT_A_TIME):
            file = given.out / f"{given.split}-{first}-{seed}.json"
            if (found := kept.read(file)) is None:
                some = TaskSet(tasks[first : first + AT_A_TIME])
                methods = parse_searches(given.methods)
                comparison = asyncio.run(
                    compare(world.app, some, world.reward, settings, seeds=(seed,), methods=methods)
                )
                found = comparison.to_json()
                kept.write(file, found)
            yield first, seed, found


def scores(found: list[tuple[int, int, dict[str, Any]]], which: str, tasks: int, seeds: int) -> dict[str, Scores]:
    """What each method has [tasks, seeds] of ``which``, NaN where missing."""
    grids = {arm["name"]: np.full((tasks, seeds), np.nan) for arm in found[0][2]["arms"]}
    for first, seed, comparison in found:
        for i, task in enumerate(comparison["by_task"]):
            for name, grid in grids.items():
                grid[first + i, seed] = np.nan if task[which][name] is None else task[which][name]
    return grids


def table(selected: dict[str, Scores], best: dict[str, Scores], tokens: dict[str, Scores]) -> tuple[Table, Any]:
    """Rewards of the answers that V chose and of the best there was, tokens, and AMC less each method, by task."""
    drawn = Table("method", "reward, by V", "best there was", "tokens", "AMC − method, by V", box=SIMPLE_HEAD)
    plain: dict[str, Any] = {}
    for name, grid in selected.items():
        less: Estimate | None = None if name == AMC else paired(selected[AMC], grid)
        own, oracle, took = estimate(grid), estimate(best[name]), float(np.nanmean(tokens[name]))
        gap = "" if less is None else f"{less.mean:+.3f} [{less.low:+.3f}, {less.high:+.3f}]"
        drawn.add_row(name, str(own), f"{oracle.mean:.3f}", f"{took:,.0f}", gap)
        plain[name] = {"reward": own.mean, "low": own.low, "high": own.high, "tokens": took}
    return drawn, plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of what is kept")
    parser.add_argument("--quick", action="store_true", help="5 tasks, 1 seed, a V of 16 tasks: a few minutes")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--train-tasks", type=int, default=56)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--particles", type=int, default=8)
    parser.add_argument("--split", default="test")
    parser.add_argument("--methods", default=SIZED, help="as for amc compare --methods")
    parser.add_argument("--value", type=Path, default=None, help="a trained value function, instead of a new one")
    given = parser.parse_args()
    if given.quick:
        given.tasks, given.seeds, given.train_tasks = AT_A_TIME, 1, 16
    given.out.mkdir(parents=True, exist_ok=True)
    kept.same(given.out, {"particles": given.particles, "methods": given.methods, "train": given.train_tasks})
    world = World(given.out)
    found = list(parts(world, given.value or world.value(given.train_tasks), given))
    selected, best, tokens = (
        scores(found, which, given.tasks, given.seeds) for which in ("selected", "observable", "tokens")
    )
    drawn, plain = table(selected, best, tokens)
    console = Console(width=130)
    console.print(f"crafting, finite stock: {given.tasks} {given.split} tasks, {given.seeds} seed(s), per task")
    console.print(drawn)
    print(json.dumps(plain))


if __name__ == "__main__":
    main()
