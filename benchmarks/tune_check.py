"""What `amc tune` predicts from logged runs against what the same settings do for real, on the crafting world.

    python benchmarks/tune_check.py [--tasks 24] [--runs 12] [--seeds 1] [--folder DIR]

Collects runs of training tasks and trains V on them; logs independent runs of other tasks and simulates each setting
from these; then runs each setting on those tasks, with fresh seeds. Three predictions: the simulator's, its
variant that takes V for all there is to know of a state (no hindsight), and "resampling changes nothing". What lies in
``--folder`` already is used again. The last line is JSON: ``error`` is the mean absolute error of predicted rewards
over the settings that resample, by prediction, ``rank`` the rank correlation of the simulator's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from langgraph_amc.demo import agent_file, policy_folder
from langgraph_amc.evaluate.collect import collect
from langgraph_amc.evaluate.logged import LoggedRuns, read_runs
from langgraph_amc.evaluate.runner import Job, run_jobs
from langgraph_amc.evaluate.simulate import Arm, Simulator
from langgraph_amc.evaluate.statistics import estimate
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.smc import best_value, ess_target, every, fixed, never
from langgraph_amc.tasks.loading import load_app, load_reward, load_tasks
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.value import as_value, train_value

FRESH = 1000
"""Seeds of the measured runs start here: none of the logged ones is repeated."""
ARMS = {
    "best-of-N": Arm(8, never()),
    "every(1), tau = 1": Arm(8, every(1), fixed(1.0)),
    "every(1), ESS 0.5": Arm(8, every(1), ess_target(0.5)),
    "every(3), ESS 0.5": Arm(8, every(3), ess_target(0.5)),
    "every(3), ESS 0.25": Arm(8, every(3), ess_target(0.25, max_sharpness=100)),
    "best-of-4": Arm(4, never()),
    "N = 4, every(3), ESS 0.5": Arm(4, every(3), ess_target(0.5)),
}


class World:
    """The crafting app, its tasks, and what was logged of them."""

    def __init__(self, folder: Path) -> None:
        load_litellm()
        agent = str(agent_file())
        self.app, self.reward, self._tasks = (
            load_app(f"{agent}:graph"),
            load_reward(f"{agent}:solved"),
            f"{agent}:tasks",
        )
        self.folder = folder

    def tasks(self, split: str, count: int) -> Any:
        return load_tasks(self._tasks, **{split: count}).split(split)

    def logged(self, split: str, count: int, runs: int) -> list[Any]:
        """Independent runs of ``count`` tasks, collected if they have not been before."""
        file = self.folder / f"{split}.sqlite"
        with TrajectoryStore(file) as store:
            if not store.counts().trajectories:
                settings = read_settings(self.app, particles=runs)
                asyncio.run(collect(self.app, self.tasks(split, count), self.reward, store, settings))
            return list(store.trajectories())

    def value(self, tasks: int) -> Path:
        """The folder of V, trained on training tasks if it has not been before."""
        if not (out := self.folder / "value").exists():
            train_value(self.logged("train", tasks, 8), policy_folder(), out=out)
        return out

    async def measure(self, arm: Arm, value: Path, tasks: Any, seeds: int) -> tuple[Any, Any]:
        """Rewards [tasks, seeds] of the answers that V chooses, and mean tokens."""
        settings = read_settings(
            self.app, particles=arm.particles, value=value, resample=arm.schedule, tau=arm.tempering, select=best_value
        )
        jobs = [Job(task, FRESH + seed, settings) for seed in range(seeds) for task in tasks]
        found, tokens = np.full((len(tasks), seeds), np.nan), []
        row = {task.id: i for i, task in enumerate(tasks)}
        async for outcome in run_jobs(self.app, jobs, self.reward, concurrency=8):
            reports = [report.name for report in outcome.result.particles]
            won = outcome.rewards[reports.index(outcome.result.winner.name)]
            found[row[outcome.job.task.id], outcome.job.seed - FRESH] = np.nan if won is None else won
            tokens.append(outcome.result.usage.tokens)
        return found, float(np.mean(tokens))


def predictions(log: LoggedRuns, arm: Arm, replicates: int) -> tuple[Any, Any]:
    """The simulator's replay of an arm, with hindsight and without."""
    return tuple(
        Simulator(log, hindsight=hindsight).simulate(arm, {"best_value": best_value}, replicates=replicates)
        for hindsight in (True, False)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--train-tasks", type=int, default=40)
    parser.add_argument("--runs", type=int, default=12, help="logged runs of each task")
    parser.add_argument("--seeds", type=int, default=1, help="measured populations of each task and setting")
    parser.add_argument("--replicates", type=int, default=16, help="simulated populations of each task and setting")
    parser.add_argument("--folder", type=Path, default=None, help="where to keep runs and V, to use them again")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        study(World(given.folder or Path(scratch)), given)


def study(world: World, given: argparse.Namespace) -> None:
    value = world.value(given.train_tasks)
    log = read_runs(world.logged("tune", given.tasks, given.runs), as_value(value))
    tasks = world.tasks("tune", given.tasks)
    table = Table("setting", "simulated", "no hindsight", "measured, 95 %", "tokens, simulated", "measured")
    rows = []
    for name, arm in ARMS.items():
        simulated, blunt = predictions(log, arm, given.replicates)
        measured, tokens = asyncio.run(world.measure(arm, value, tasks, given.seeds))
        said, naive = (float(s.rewards["best_value"].mean()) for s in (simulated, blunt))
        truth = estimate(measured)
        rows.append((arm.schedule != never(), arm.particles, said, naive, truth.mean))
        table.add_row(
            name, f"{said:.3f}", f"{naive:.3f}", str(truth), f"{simulated.spent.mean():,.0f}", f"{tokens:,.0f}"
        )
        Console(stderr=True).print(f"{name}: simulated {said:.3f}, measured {truth}")
    Console(width=120).print(table)
    plain = {n: said for resamples, n, said, _, _ in rows if not resamples}
    steered = np.array([(said, naive, plain[n], truth) for resamples, n, said, naive, truth in rows if resamples])
    errors = np.abs(steered[:, :3] - steered[:, 3:]).mean(axis=0)
    every_rank = [np.argsort(np.argsort(column)) for column in np.array([(r[2], r[4]) for r in rows]).T]
    result = {
        "error": dict(zip(("simulator", "no hindsight", "no change"), errors.round(4).tolist(), strict=True)),
        "rank": round(float(np.corrcoef(*every_rank)[0, 1]), 3),
        "settings": len(rows),
        "tasks": given.tasks,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
