"""Puzzles from seeds, in splits that share no solution.

A full board is made by shuffling one valid pattern: bands, rows within bands, stacks, columns within stacks, and
the digits. Then cells are emptied.

* ``singles``: ``mask_count`` cells anywhere. At 5, 10 or 15 of them nearly every empty cell is forced at once, so
  what a puzzle asks for is the same easy step ``mask_count`` times, none of them wrong: a pure horizon.
* ``lookahead``: cells of three digits only, chosen so that not one empty cell is forced at the start, by naked or
  hidden singles, though the solution is unique. Each move has two or three digits that look right, and the wrong
  ones show many moves later, when a cell has none left.

A board belongs to the split that a hash of its solution says; other boards are drawn again.
"""

from __future__ import annotations

import hashlib
import random
from typing import Literal, get_args

from sudoku.board import BOX, CELLS, DIGITS, EMPTY, SIZE, Puzzle, SudokuError
from sudoku.solver import has_single, solutions

Kind = Literal["singles", "lookahead"]
Split = Literal["policy", "train", "validation", "test"]
_SHARES: dict[Split, range] = {
    "policy": range(0, 8),  # what the small model imitates; nothing else may use it
    "train": range(8, 12),
    "validation": range(12, 14),
    "test": range(14, 16),
}
MASKS = (5, 10, 15)
LOOKAHEAD_MASK = 24
"""Of the 27 cells of three digits. With fewer of them empty there are next to no unique puzzles without a single,
with more there are next to no unique ones."""
_SINGLES_AT_MOST = 40  # more random empty cells are seldom a unique puzzle
_DRAWS, _DRAWS_A_BOARD = 100_000, 20


def split_of(solution: str) -> Split:
    """The split that owns a full board."""
    share = hashlib.blake2b(solution.encode(), digest_size=8).digest()[0] % 16
    return next(split for split, shares in _SHARES.items() if share in shares)


def make_puzzle(split: Split, index: int, mask_count: int, kind: Kind = "singles") -> tuple[Puzzle, str]:
    """The puzzle of a split, a number and a kind, with its only solution: the same on every machine.

    Raises `SudokuError` for an unknown split or kind, a negative index, or a mask count that the kind cannot have
    (``singles``: 1 to 40, ``lookahead``: 24). A lookahead puzzle takes some tenths of a second to find.
    """
    _check(split, index, mask_count, kind)
    name = f"{kind}-{mask_count}-{split}-{index}"
    rng = random.Random(name)
    for draw in range(_DRAWS):
        if draw % _DRAWS_A_BOARD == 0:
            solution = _full_board(rng, split)
        board = _emptied(rng, solution, mask_count, kind)
        if (kind == "singles" or not has_single(board)) and len(solutions(board)) == 1:
            return Puzzle(name, board), solution
    raise SudokuError(f"found no {kind} puzzle with {mask_count} empty cells; ask for another number of them")


def practice_puzzle(rng: random.Random, *, lookahead: float = 0.2) -> tuple[Puzzle, str]:
    """A board of the policy split with 3 to 24 empty cells, and a solution; not checked for other solutions.

    A share ``lookahead`` of them looks like puzzles of that kind, only that most are not as hard.
    """
    solution = _full_board(rng, "policy")
    if rng.random() < lookahead:
        return Puzzle("practice", _emptied(rng, solution, LOOKAHEAD_MASK, "lookahead")), solution
    return Puzzle("practice", _emptied(rng, solution, rng.choice((3, 5, 8, 10, 12, 15, 15, 16)), "singles")), solution


def _check(split: str, index: int, mask_count: int, kind: str) -> None:
    if kind not in get_args(Kind):
        raise SudokuError(f"unknown kind {kind!r}; use one of {', '.join(get_args(Kind))}")
    if split not in _SHARES:
        raise SudokuError(f"unknown split {split!r}; use one of {', '.join(_SHARES)}")
    if not isinstance(index, int) or index < 0:
        raise SudokuError(f"a puzzle's index is a whole number from 0, got {index!r}")
    allowed = range(1, _SINGLES_AT_MOST + 1) if kind == "singles" else range(LOOKAHEAD_MASK, LOOKAHEAD_MASK + 1)
    if mask_count not in allowed:
        raise SudokuError(f"{kind} puzzles have {allowed[0]} to {allowed[-1]} empty cells, got {mask_count!r}")


def _full_board(rng: random.Random, split: Split) -> str:
    """A valid full board that belongs to ``split``."""
    while True:
        rows, columns, digits = _lines(rng), _lines(rng), rng.sample(DIGITS, SIZE)
        board = "".join(digits[(BOX * (r % BOX) + r // BOX + c) % SIZE] for r in rows for c in columns)
        if split_of(board) == split:
            return board


def _lines(rng: random.Random) -> list[int]:
    """Rows (or columns) in an order that keeps bands (or stacks) together."""
    return [band * BOX + line for band in rng.sample(range(BOX), BOX) for line in rng.sample(range(BOX), BOX)]


def _emptied(rng: random.Random, solution: str, mask_count: int, kind: Kind) -> str:
    """The board without ``mask_count`` of its cells, or of the cells of three digits."""
    three = rng.sample(DIGITS, 3) if kind == "lookahead" else DIGITS
    gone = set(rng.sample([cell for cell in range(CELLS) if solution[cell] in three], mask_count))
    return "".join(EMPTY if cell in gone else digit for cell, digit in enumerate(solution))
