"""Learning curves of evolution with perturbations of rank 1, 4, 16 and of full rank, at equal rollouts.

    python benchmarks/es_curves.py --out curves [--generations 60] [--population 64] [--tasks 16] [--seeds 3] [--quick]
    python benchmarks/es_curves.py --out curves-sudoku --on sudoku --policy FOLDER --scope vectors --sigma 0.1
        [--horizon 5] [--measure-on 15]

Task: requests sent to desks (`routing.py`), one greedy answer each, by a policy of 23,000 weights that is made here; or
Sudoku with 5 empty cells at temperature 1, where only a smaller scope learns anything in so few rollouts.
All ranks take the same tasks in the same order with the same sampling noise, and differ in the directions only; their
entries have the same variance. *members*: mean reward of the population, which its perturbation lowers, by stretches of
generations; *weights*: the unperturbed weights on held-out tasks before, on the way and at the end; *gain*: from first
to last, then less the gain of the first rank. Intervals are 95 %: over tasks, and for weights and gains over tasks and
seeds alike (Owen 2007). Rollouts are those of all seeds.
Everything is kept in --out, a generation at a time, so it can be stopped and called again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import routing
from kept import same
from rich.console import Console
from rich.table import Table
from sudoku_arms import POLICY, World, app_of
from sudoku_direct import BATCH, Play, Run, evolve_directly, play
from sudoku_table import crossed, signed

from langgraph_amc.evaluate.statistics import Estimate, Scores, estimate
from langgraph_amc.evolution import Strategy
from langgraph_amc.evolution.layout import SCOPES
from langgraph_amc.evolution.loop import Course, Validated
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.tasks import TaskSet

RANKS = {"1": 1, "4": 4, "16": 16, "full": None}
USUAL: dict[str, dict[str, Any]] = {
    "routing": {"sigma": 0.015, "ratio": 0.5, "temperature": 0.0, "held_out": 500},
    "sudoku": {"sigma": 0.01, "ratio": 1.0, "temperature": 1.0, "held_out": 200},
}
"""What is used where the command does not say."""


@dataclass(frozen=True)
class Bench:
    """What is learned: tasks to train and to measure on, the policy, and how an episode is played."""

    train: TaskSet
    measured: TaskSet
    policy: Path
    play: Play
    batch: int

    @classmethod
    def of(cls, given: argparse.Namespace) -> Bench:
        if given.on == "routing":
            policy = routing.make_policy(Path(given.policy or given.out / "policy"), steps=80)
            tasks = routing.tasks(2000, given.held_out)
            return cls(tasks.split("train"), tasks.split("validation"), policy, routing.play, 1024)
        policy = Path(given.policy or POLICY)
        app_of(policy)  # which brings the example's modules
        worlds = [World.of(horizon, given.held_out, 1, 1) for horizon in (given.horizon, given.measure_on)]
        return cls(worlds[0].tasks.split("train"), worlds[1].tasks.split("validation"), policy, play, BATCH)


def run(given: argparse.Namespace, bench: Bench, rank: str, seed: int) -> Run:
    """One curve, from wherever it is."""
    strategy = Strategy(
        population=given.population, sigma=given.sigma, alpha_ratio=given.ratio, rank=RANKS[rank], seed=seed
    )
    return evolve_directly(
        strategy,
        Course(bench.train.ids, given.generations, given.tasks, validate_every=given.every, patience=None),
        bench.train,
        bench.policy,
        given.out / f"rank-{rank}-{seed}",
        common=True,
        scope=given.scope,
        measured=bench.measured,
        repeats=2 if given.temperature else 1,
        temperature=given.temperature,
        play=bench.play,
        batch=bench.batch,
    )


def stretches(runs: list[Run], every: int) -> list[Estimate]:
    """Mean rewards of the members over each ``every`` generations, over all seeds."""
    generations = len(runs[0].rewards)
    found = []
    for first in range(0, generations, every):
        rows = [rewards.T for run in runs for rewards in run.rewards[first : first + every]]
        found.append(estimate(np.concatenate(rows), resamples=1000))
    return found


def weights(runs: list[Run]) -> dict[int, Scores]:
    """Rewards [tasks, seeds] of the unperturbed weights, by generations done."""
    measured = [{e.done: e.rewards.mean(axis=1) for e in run.events if isinstance(e, Validated)} for run in runs]
    return {done: np.stack([m[done] for m in measured], axis=1) for done in measured[0]}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--on", choices=list(USUAL), default="routing")
    parser.add_argument("--ranks", nargs="+", default=list(RANKS), choices=list(RANKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--generations", type=int, default=60)
    parser.add_argument("--population", type=int, default=64)
    parser.add_argument("--tasks", type=int, default=16, help="tasks per generation")
    parser.add_argument("--every", type=int, default=15, help="generations between two measurements of the weights")
    parser.add_argument("--sigma", type=float)
    parser.add_argument("--ratio", type=float, help="alpha by sigma")
    parser.add_argument("--scope", choices=SCOPES, default="all", help="what is perturbed; ranks are of matrices")
    parser.add_argument("--horizon", type=int, default=5, choices=[5, 10, 15], help="Sudoku's empty cells")
    parser.add_argument("--measure-on", type=int, choices=[5, 10, 15], help="those of the held-out puzzles")
    parser.add_argument("--policy", help="folder of the model that is tuned")
    parser.add_argument("--temperature", type=float, help="of members and measurements; 0 is greedy")
    parser.add_argument("--held-out", type=int, help="tasks to measure on, two runs each unless greedy")
    parser.add_argument("--quick", action="store_true", help="whether it runs: a size that shows nothing else")
    given = parser.parse_args()
    for name, usual in USUAL[given.on].items():
        if getattr(given, name) is None:
            setattr(given, name, usual)
    given.measure_on = given.measure_on or given.horizon
    if given.quick:
        given.seeds, given.generations, given.population, given.tasks = 1, 2, 4, 4
        given.every, given.held_out = 1, 8
    return given


def main() -> None:
    """Run what is missing, and print what is there after each curve's end."""
    given = options()
    load_litellm()
    sizes = {k: v for k, v in vars(given).items() if k not in ("out", "ranks", "seeds", "quick")}
    same(given.out, sizes)
    console = Console(width=None if os.isatty(1) else 140)
    bench = Bench.of(given)
    result: dict[str, Any] = {}
    about = "Requests to desks"
    if given.on == "sudoku":
        about = f"Sudoku, trained on {given.horizon} empty cells, measured on {given.measure_on}"
    title = f"{about}; T = {given.temperature:g}, sigma {given.sigma:g}, {given.scope}"
    shown = Table("rank", "rollouts", "members", "weights", "gain", "minus the first rank's", title=title)
    first: Scores | None = None
    for rank in given.ranks:
        runs = []
        for seed in range(given.seeds):
            runs.append(run(given, bench, rank, seed))
            console.print(f"rank {rank}, seed {seed}: {runs[-1].trajectories:,} rollouts", style="dim")
        members, measured = stretches(runs, given.every), weights(runs)
        gains = measured[given.generations] - measured[0]
        first = gains if first is None else first
        gain, beside = crossed(gains), None if gains is first else crossed(gains - first)
        by_done = "\n".join(f"{done:>3}: {crossed(scores)}" for done, scores in measured.items())
        spent = sum(r.trajectories for r in runs)
        shown.add_row(
            rank,
            f"{spent:,}",
            "\n".join(map(str, members)),
            by_done,
            signed(gain),
            "" if beside is None else signed(beside),
        )
        result[rank] = {
            "rollouts": spent,
            "tokens": sum(r.tokens for r in runs),
            "members": [asdict(e) for e in members],
            "by_generation": [float(np.mean([r.rewards[g].mean() for r in runs])) for g in range(given.generations)],
            "weights": {str(done): asdict(crossed(scores)) for done, scores in measured.items()},
            "gain": asdict(gain),
            "minus_first": None if beside is None else asdict(beside),
        }
    console.print(shown)
    print(json.dumps({"curves": result, **sizes, "seeds": given.seeds, "quick": given.quick}))


if __name__ == "__main__":
    main()
