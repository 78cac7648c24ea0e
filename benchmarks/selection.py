"""Answering without a reward on the crafting world: what each selection keeps of the oracle's gain.

    python benchmarks/selection.py [--tasks 20] [--particles 8] [--value DIR]

Runs best-of-N and AMC on tasks that V was not trained on; each population's true rewards are known, and shown to no
selection. Without ``--value`` V is trained first. The last line is JSON: ``kept`` by method and selection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from tune_check import World

from langgraph_amc.evaluate.runner import Job, run_jobs
from langgraph_amc.evaluate.selection_report import SELECTIONS, judged, selection_report, selection_table
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.smc import best_value, every, never, vote


def ending(output: Any) -> str:
    """The world's last word, which is all that a crafting run answers."""
    return str(output["messages"][-1].content)


async def populations(world: World, value: Path, tasks: Any, particles: int, schedule: Any) -> list[Any]:
    settings = read_settings(world.app, particles=particles, value=value, resample=schedule, select=best_value)
    jobs = [Job(task, 0, settings) for task in tasks]
    return [judged(o) async for o in run_jobs(world.app, jobs, world.reward, concurrency=8)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--train-tasks", type=int, default=24)
    parser.add_argument("--particles", type=int, default=8)
    parser.add_argument("--value", type=Path, default=None, help="a trained value function, instead of a new one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        world = World(Path(scratch))
        value = given.value or world.value(given.train_tasks)
        tasks = world.tasks("tune", given.tasks)
        kept = {}
        for method, schedule in ((f"best-of-{given.particles}", never()), ("AMC", every(3))):
            found = asyncio.run(populations(world, value, tasks, given.particles, schedule))
            report = selection_report(found, {**SELECTIONS, "vote": vote(ending)})
            Console(width=120).print(method, selection_table(report))
            kept[method] = {s.name: round(s.kept.mean, 3) for s in report.selections}
    print(json.dumps({"kept": kept, "tasks": given.tasks}))


if __name__ == "__main__":
    main()
