"""Learning curves of evolution with perturbations of rank 1, 4, 16 and of full rank, at equal rollouts.

    python benchmarks/es_curves.py --out curves [--generations 40] [--population 64] [--tasks 16] [--seeds 3]
        [--horizon 5] [--measure-on 15] [--temperature 1] [--policy FOLDER] [--quick]

Task: Sudoku with 5 empty cells and the shipped policy at temperature 1, the example's cheapest, unless told otherwise.
All ranks take the same puzzles in the same order with the same sampling noise, and differ in the directions only; their
entries have the same variance. *members*: mean reward of the population, which its perturbation lowers, by stretches of
generations; *weights*: the unperturbed weights on held-out puzzles before, on the way and at the end, and the gain from
first to last. Intervals are 95 %: over puzzles, and for weights and gains over puzzles and seeds alike (Owen 2007).
Everything is kept in --out, a generation at a time, so it can be stopped and called again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from kept import same
from rich.console import Console
from rich.table import Table
from sudoku_arms import POLICY, World, app_of
from sudoku_direct import Run, evolve_directly
from sudoku_table import crossed, signed

from langgraph_amc.evaluate.statistics import Estimate, estimate
from langgraph_amc.evolution import Strategy
from langgraph_amc.evolution.layout import SCOPES
from langgraph_amc.evolution.loop import Course, Validated
from langgraph_amc.policy.litellm_setup import load_litellm

RANKS = {"1": 1, "4": 4, "16": 16, "full": None}


def run(given: argparse.Namespace, world: World, measured: World, rank: str, seed: int) -> Run:
    """One curve, from wherever it is."""
    strategy = Strategy(
        population=given.population, sigma=given.sigma, alpha_ratio=given.ratio, rank=RANKS[rank], seed=seed
    )
    train = world.tasks.split("train")
    course = Course(train.ids, given.generations, given.tasks, validate_every=given.every, patience=None)
    folder = given.out / f"rank-{rank}-{seed}"
    return evolve_directly(
        strategy,
        course,
        train,
        Path(given.policy),
        folder,
        common=True,
        scope=given.scope,
        measured=measured.tasks.split("validation"),
        repeats=2 if given.temperature else 1,
        temperature=given.temperature,
    )


def stretches(runs: list[Run], every: int) -> list[Estimate]:
    """Mean rewards of the members over each ``every`` generations, over all seeds."""
    generations = len(runs[0].rewards)
    found = []
    for first in range(0, generations, every):
        rows = [rewards.T for run in runs for rewards in run.rewards[first : first + every]]
        found.append(estimate(np.concatenate(rows), resamples=1000))
    return found


def weights(runs: list[Run]) -> tuple[dict[int, Estimate], Estimate]:
    """The unperturbed weights by generations done, and the gain from first to last, over puzzles and seeds."""
    measured = [{e.done: e.rewards.mean(axis=1) for e in run.events if isinstance(e, Validated)} for run in runs]
    by_done = {done: np.stack([m[done] for m in measured], axis=1) for done in measured[0]}
    return {d: crossed(scores) for d, scores in by_done.items()}, crossed(by_done[max(by_done)] - by_done[0])


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", nargs="+", default=list(RANKS), choices=list(RANKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--generations", type=int, default=40)
    parser.add_argument("--population", type=int, default=64)
    parser.add_argument("--tasks", type=int, default=16, help="puzzles per generation")
    parser.add_argument("--every", type=int, default=10, help="generations between two measurements of the weights")
    parser.add_argument("--sigma", type=float, default=0.01)
    parser.add_argument("--ratio", type=float, default=1.0, help="alpha by sigma")
    parser.add_argument("--scope", choices=SCOPES, default="all", help="what is perturbed; ranks are of matrices")
    parser.add_argument("--horizon", type=int, default=5, choices=[5, 10, 15], help="empty cells")
    parser.add_argument("--measure-on", type=int, choices=[5, 10, 15], help="empty cells of the held-out puzzles")
    parser.add_argument("--policy", default=str(POLICY), help="folder of the model that is tuned")
    parser.add_argument("--temperature", type=float, default=1.0, help="of members and measurements; 0 is greedy")
    parser.add_argument("--puzzles", type=int, default=200, help="held-out ones, two runs each")
    parser.add_argument("--quick", action="store_true", help="whether it runs: a size that shows nothing else")
    given = parser.parse_args()
    given.measure_on = given.measure_on or given.horizon
    if given.quick:
        given.seeds, given.generations, given.population, given.tasks = 1, 2, 4, 4
        given.every, given.puzzles = 1, 8
    return given


def main() -> None:
    """Run what is missing, and print what is there after each curve's end."""
    given = options()
    load_litellm()
    sizes = {k: v for k, v in vars(given).items() if k not in ("out", "ranks", "seeds", "quick")}
    same(given.out, sizes)
    console = Console(width=None if os.isatty(1) else 140)
    world = World.of(given.horizon, given.puzzles, 1, 1)
    measured_world = World.of(given.measure_on, given.puzzles, 1, 1)
    app_of(given.policy)  # which brings the example's modules
    result: dict[str, Any] = {}
    shown = Table(
        "rank",
        "rollouts",
        "members",
        "weights",
        "gain",
        title=f"Sudoku, trained on {given.horizon} empty cells, measured on {given.measure_on}; "
        f"T = {given.temperature:g}, sigma {given.sigma:g}, {given.scope}",
    )
    for rank in given.ranks:
        runs = []
        for seed in range(given.seeds):
            runs.append(run(given, world, measured_world, rank, seed))
            console.print(f"rank {rank}, seed {seed}: {runs[-1].trajectories:,} rollouts", style="dim")
        members, (measured, gain) = stretches(runs, given.every), weights(runs)
        by_done = "\n".join(f"{done:>3}: {e}" for done, e in measured.items())
        spent = sum(r.trajectories for r in runs)
        shown.add_row(rank, f"{spent:,}", "\n".join(map(str, members)), by_done, signed(gain))
        result[rank] = {
            "rollouts": spent,
            "tokens": sum(r.tokens for r in runs),
            "members": [asdict(e) for e in members],
            "by_generation": [float(np.mean([r.rewards[g].mean() for r in runs])) for g in range(given.generations)],
            "weights": {str(done): asdict(e) for done, e in measured.items()},
            "gain": asdict(gain),
        }
    console.print(shown)
    print(json.dumps({"curves": result, **sizes, "seeds": given.seeds, "quick": given.quick}))


if __name__ == "__main__":
    main()
