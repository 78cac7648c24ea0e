"""What a learning curve of `es_curves.py` has brought on test puzzles of every horizon, beside where it began.

    python benchmarks/es_transfer.py --curve curves/rank-1-0 --policy FOLDER --generations 60 [--puzzles 300] [--runs 3]

Both policies play the same puzzles of the test split, which nothing was trained or chosen on, with the same sampling
noise at temperature 1. Differences are paired; intervals are 95 %, over puzzles and runs (Owen 2007), for this one
training run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sudoku_arms import World, app_of
from sudoku_direct import BATCH, exported, measured_directly
from sudoku_table import crossed, signed

from langgraph_amc.evaluate.statistics import Scores
from langgraph_amc.policy.engines import get_engine
from langgraph_amc.policy.litellm_setup import load_litellm


def rewards(policy: Path, world: World, runs: int) -> Scores:
    """[puzzles, runs] of a policy."""
    engine, tasks = get_engine(policy, max_batch=BATCH), list(world.tasks.split("test"))
    played = [asyncio.run(measured_directly(engine, tasks, seed, 1.0)) for seed in range(runs)]
    return np.array([[episode.reward for episode in run] for run in played]).T


def main() -> None:
    """Measure both policies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curve", type=Path, required=True, help="folder with the history.jsonl")
    parser.add_argument("--policy", type=Path, required=True, help="what the curve began from")
    parser.add_argument("--generations", type=int, required=True, help="weights after so many")
    parser.add_argument("--puzzles", type=int, default=300)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    load_litellm()
    app_of(given.policy)  # which brings the example's modules
    tuned = exported(given.curve, given.policy, given.generations)
    shown, result = Table("empty cells", "base", "tuned", "difference"), dict[str, Any]()
    for horizon in (5, 10, 15):
        world = World.of(horizon, 1, given.puzzles, 1)
        base, after = (rewards(path, world, given.runs) for path in (given.policy, tuned))
        columns = {"base": crossed(base), "tuned": crossed(after), "difference": crossed(after - base)}
        shown.add_row(str(horizon), str(columns["base"]), str(columns["tuned"]), signed(columns["difference"]))
        result[str(horizon)] = {name: asdict(e) for name, e in columns.items()}
    Console().print(shown)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
