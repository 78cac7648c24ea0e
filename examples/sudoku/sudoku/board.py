"""Boards of nine by nine as strings of 81 characters, row by row; ``.`` is an empty cell.

A cell is a number from 0 to 80 and is written ``r<row>c<column>``, both from 1 to 9.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from langgraph_amc.errors import AMCError

SIZE, BOX = 9, 3
CELLS = SIZE * SIZE
DIGITS = "123456789"
EMPTY = "."
_BOARD = re.compile(r"[1-9.]{81}")

ROWS = tuple(tuple(range(r * SIZE, (r + 1) * SIZE)) for r in range(SIZE))
COLUMNS = tuple(tuple(range(c, CELLS, SIZE)) for c in range(SIZE))
BOXES = tuple(
    tuple((top + i) * SIZE + left + j for i in range(BOX) for j in range(BOX))
    for top in range(0, SIZE, BOX)
    for left in range(0, SIZE, BOX)
)
UNITS = ROWS + COLUMNS + BOXES
PEERS = tuple(tuple(sorted({p for unit in UNITS if cell in unit for p in unit} - {cell})) for cell in range(CELLS))
"""The 20 cells that share a row, a column or a box with each cell."""


class SudokuError(AMCError):
    """A puzzle, a snapshot or an option is malformed, or the environment was used before ``reset``."""


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A board with empty cells and a name. Raises `SudokuError` for anything but 81 digits and dots."""

    puzzle_id: str
    givens: str

    def __post_init__(self) -> None:
        if not isinstance(self.givens, str) or not _BOARD.fullmatch(self.givens):
            raise SudokuError(f"a board is 81 characters, 1 to 9 or a dot, row by row; got {self.givens!r}")
        if EMPTY not in self.givens:
            raise SudokuError("the board is full already: leave at least one cell empty")

    @property
    def mask_count(self) -> int:
        """How many cells are empty: the number of right moves that it takes."""
        return self.givens.count(EMPTY)

    def to_dict(self) -> dict[str, Any]:
        """The puzzle as JSON-able data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Puzzle:
        """Inverse of `to_dict`."""
        try:
            return cls(**data)
        except TypeError as error:
            raise SudokuError(f"not a puzzle ({error}); write it with to_dict") from error


def cell_name(cell: int) -> str:
    """``r2c7`` for row 2, column 7."""
    row, column = divmod(cell, SIZE)
    return f"r{row + 1}c{column + 1}"


def candidates(board: str, cell: int) -> str:
    """The digits that no peer of ``cell`` holds, in order."""
    taken = {board[peer] for peer in PEERS[cell]}
    return "".join(digit for digit in DIGITS if digit not in taken)


def place(board: str, cell: int, digit: str) -> str:
    """The board with ``digit`` written into ``cell``."""
    return board[:cell] + digit + board[cell + 1 :]


def is_solved(board: str) -> bool:
    """Whether every row, column and box holds each digit once."""
    return all({board[cell] for cell in unit} == set(DIGITS) for unit in UNITS)
