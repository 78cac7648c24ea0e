"""How often a policy solves each kind of puzzle, and how far solvers without lookahead get.

    python examples/sudoku/measure.py --puzzles 300

One episode for each puzzle of the test split; shares with their 95 % interval (Wilson).
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
from collections.abc import Callable
from pathlib import Path

from sudoku.board import EMPTY, Puzzle, candidates, cell_name
from sudoku.env import SudokuEnv
from sudoku.puzzles import LOOKAHEAD_MASK, MASKS, Kind, Split, make_puzzle
from sudoku.solver import empty_cells, fill_singles, singles

from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.engines import get_engine
from langgraph_amc.policy.generation import GenerationRequest

COUNTS: dict[Kind, tuple[int, ...]] = {"singles": MASKS, "lookahead": (LOOKAHEAD_MASK,)}


async def play(engine: BatchEngine, puzzle: Puzzle, seed: int, temperature: float) -> SudokuEnv:
    """One episode of the policy."""
    env, rng = SudokuEnv(), random.Random(seed)
    env.reset(puzzle)
    while not env.done:
        request = GenerationRequest(
            messages=[{"role": "user", "content": env.prompt}],
            max_tokens=8,
            temperature=temperature,
            seed=rng.getrandbits(62),
        )
        env.step((await engine.agenerate(request))[0].text)
    return env


def careful(board: str, rng: random.Random) -> tuple[int, str] | None:
    """A single if there is one; else any digit that breaks no rule, in a cell with the fewest."""
    if found := singles(board):
        return next(iter(found.items()))
    cell = min(empty_cells(board), key=lambda c: (len(candidates(board, c)), rng.random()))
    fitting = candidates(board, cell)
    return (cell, rng.choice(fitting)) if fitting else None


def hasty(board: str, rng: random.Random) -> tuple[int, str] | None:
    """Any digit that breaks no rule in any cell that has one."""
    open_ = {cell: found for cell in empty_cells(board) if (found := candidates(board, cell))}
    cell = rng.choice(list(open_)) if open_ else None
    return None if cell is None else (cell, rng.choice(open_[cell]))


def solve(rule: Callable[[str, random.Random], tuple[int, str] | None], puzzle: Puzzle, seed: int) -> SudokuEnv:
    """One episode of a solver that only looks at the board as it is."""
    env, rng = SudokuEnv(), random.Random(seed)
    env.reset(puzzle)
    while not env.done and (move := rule(env.board, rng)):
        env.step(f"set {cell_name(move[0])} {move[1]}")
    return env


def wilson(k: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of k out of n (Wilson 1927)."""
    z = 1.96
    middle, spread = k / n + z * z / (2 * n), z * math.sqrt(k / n * (1 - k / n) / n + z * z / (4 * n * n))
    return max(0.0, middle - spread) / (1 + z * z / n), (middle + spread) / (1 + z * z / n)


def line(name: str, episodes: list[SudokuEnv]) -> str:
    """One row of the table."""
    solved, n = sum(env.success for env in episodes), len(episodes)
    low, high = wilson(solved, n)
    ends = [env.snapshot() for env in episodes]
    refused = 1 - sum(len(end["filled"]) for end in ends) / sum(end["turn"] for end in ends)
    failed = [len(end["filled"]) for end, env in zip(ends, episodes, strict=True) if not env.success]
    after = f"  failed after {sum(failed) / len(failed):.1f} cells" if failed else ""
    return f"  {name:<24} {solved / n:.3f} [{low:.3f}, {high:.3f}]  refused turns {refused:.3f}{after}"


async def measure(engine: BatchEngine, split: Split, kind: Kind, n: int, temperatures: list[float]) -> None:
    """Print the table of one kind."""
    for mask_count in COUNTS[kind]:
        puzzles = [make_puzzle(split, i, mask_count, kind)[0] for i in range(n)]
        easy = sum(EMPTY not in fill_singles(p.givens) for p in puzzles) / n
        print(f"{kind}, {mask_count} empty cells, {n} puzzles of split {split}; solved by singles alone: {easy:.2f}")
        for temperature in temperatures:
            runs = (play(engine, puzzle, seed, temperature) for seed, puzzle in enumerate(puzzles))
            print(line(f"policy, temperature {temperature}", await asyncio.gather(*runs)), flush=True)
        for rule in (careful, hasty):
            print(line(f"{rule.__name__} solver", [solve(rule, p, seed) for seed, p in enumerate(puzzles)]), flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, default=Path(__file__).resolve().parent / "policy")
    parser.add_argument("--puzzles", type=int, default=300)
    parser.add_argument("--split", default="test")
    parser.add_argument("--kinds", nargs="+", default=list(COUNTS), choices=list(COUNTS))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.7, 0.0])
    args = parser.parse_args()
    engine = get_engine(args.policy, device="cpu")
    for kind in args.kinds:
        asyncio.run(measure(engine, args.split, kind, args.puzzles, args.temperatures))


if __name__ == "__main__":
    main()
