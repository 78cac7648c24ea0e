"""A solver that slips on purpose: what the small policy imitates."""

from __future__ import annotations

import random
from dataclasses import dataclass

from sudoku.board import DIGITS, Puzzle, candidates, cell_name
from sudoku.env import SudokuEnv
from sudoku.solver import empty_cells, naked_singles


@dataclass(frozen=True, slots=True)
class Turn:
    """What the solver was shown and what it answered."""

    prompt: str
    reply: str


def demonstrate(puzzle: Puzzle, solution: str, rng: random.Random, *, slip: float, refused: float) -> list[Turn]:
    """A whole episode of a solver that knows the solution.

    It fills the last cell that is forced, or else the last of those with the fewest candidates. With probability
    ``slip`` it writes a wrong digit, with probability ``refused`` it names a cell that is not empty.
    """
    env, turns = SudokuEnv(), []
    prompt = env.reset(puzzle)
    while not env.done:
        cell, digit = _move(env.board, solution, rng)
        if rng.random() < slip:
            digit = rng.choice([wrong for wrong in DIGITS if wrong != digit])
        if rng.random() < refused:
            cell = rng.choice([other for other in range(81) if env.board[other] != "."])
        reply = f"set {cell_name(cell)} {digit}"
        turns.append(Turn(prompt, reply))
        env.step(reply)
        prompt = env.prompt
    return turns


def _move(board: str, solution: str, rng: random.Random) -> tuple[int, str]:
    forced = naked_singles(board)
    cell = max(forced) if forced else min(empty_cells(board), key=lambda c: (len(candidates(board, c)), -c))
    return cell, solution[cell]
