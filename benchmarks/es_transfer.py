"""What learning curves of `es_curves.py` have brought on test puzzles of every horizon, beside where they began.

    python benchmarks/es_transfer.py --curves curves/rank-1-* --policy FOLDER --generations 60 [--puzzles 300]

All policies play the same puzzles of the test split, which nothing was trained or chosen on, with the same sampling
noise. Differences are paired; intervals are 95 %, over puzzles and training runs alike (Owen 2007). At temperature 1,
then greedily, where no sharpening helps. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sudoku_arms import World, app_of
from sudoku_direct import BATCH, Floats, exported, measured_directly
from sudoku_table import crossed, signed

from langgraph_amc.policy.engines import get_engine
from langgraph_amc.policy.litellm_setup import load_litellm


def rewards(policy: Path, world: World, runs: int, temperature: float) -> Floats:
    """Mean reward of each puzzle over so many runs of a policy."""
    engine, tasks = get_engine(policy, max_batch=BATCH), list(world.tasks.split("test"))
    try:
        played = [asyncio.run(measured_directly(engine, tasks, seed, temperature)) for seed in range(runs)]
    finally:
        engine.close()
    return np.array([[episode.reward for episode in run] for run in played]).mean(axis=0)


def main() -> None:
    """Measure all policies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, nargs="+", required=True, help="folders with a history.jsonl")
    parser.add_argument("--policy", type=Path, required=True, help="what the curves began from")
    parser.add_argument("--generations", type=int, required=True, help="weights after so many")
    parser.add_argument("--puzzles", type=int, default=300)
    parser.add_argument("--runs", type=int, default=3, help="of each puzzle at temperature 1")
    given = parser.parse_args()
    load_litellm()
    app_of(given.policy)  # which brings the example's modules
    tuned = [exported(curve, given.policy, given.generations) for curve in given.curves]
    shown = Table("empty cells", "temperature", "base", "tuned", "difference", "each training run")
    result: dict[str, Any] = {}
    for temperature, horizon in product((1.0, 0.0), (5, 10, 15)):
        world, runs = World.of(horizon, 1, given.puzzles, 1), given.runs if temperature else 1
        base = rewards(given.policy, world, runs, temperature)[:, None]
        after = np.stack([rewards(path, world, runs, temperature) for path in tuned], axis=1)
        columns = {"base": crossed(base), "tuned": crossed(after), "difference": crossed(after - base)}
        each = [float(mean) for mean in (after - base).mean(axis=0)]
        shown.add_row(
            str(horizon),
            f"{temperature:g}",
            str(columns["base"]),
            str(columns["tuned"]),
            signed(columns["difference"]),
            " ".join(f"{mean:+.3f}" for mean in each),
        )
        result[f"{horizon} at {temperature:g}"] = {name: asdict(e) for name, e in columns.items()} | {"each": each}
    Console(width=None if os.isatty(1) else 140).print(shown)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
