"""Sudoku as a world: fill one empty cell a turn, no rule is checked on the way, reward 1 for a solved board, else 0.

A wrong digit is accepted and stays: there is no undo. So one slip decides the episode, though nobody says so before
its end. A turn that names no empty cell is refused and costs a turn; there are three times as many turns as empty
cells. Deterministic, JSON-able snapshots, no randomness of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sudoku.board import CELLS, DIGITS, EMPTY, SIZE, Puzzle, SudokuError, cell_name, is_solved, place
from sudoku.solver import empty_cells

TURNS_PER_CELL = 3
INSTRUCTIONS = (
    "Fill in this Sudoku so that every row, column and 3x3 box holds each of 1 to 9 once. Fill exactly one empty cell "
    "now; what is written stays. Answer with one line: set CELL VALUE, for example: set r2c7 4"
)
NO_MOVE = "No move found: answer with set CELL VALUE"
OUT_OF_RANGE = "Out of range: rows, columns and values are 1 to 9"

_NOT_RESET = "the environment has no puzzle yet; call reset(puzzle) first"
_OBJECT = re.compile(r"\{.*?\}", re.DOTALL)
_KEYS = (("row", "column", "value"), ("row", "col", "value"), ("r", "c", "v"))
_VERB = re.compile(r"\b(?:set|fill|place|action)\b(.*)", re.IGNORECASE)
_CELL = re.compile(r"\br(\d{1,3})\s*c(\d{1,3})\b\D*?\b(\d{1,3})\b", re.IGNORECASE)
_NUMBER = re.compile(r"\b\d{1,3}\b")
_DIGIT = re.compile(r"\b[1-9]\b")


@dataclass(frozen=True, slots=True)
class Move:
    """A row, a column and a value as an agent gave them; may be out of range."""

    row: int
    column: int
    value: int

    @property
    def in_range(self) -> bool:
        """Whether all three are 1 to 9."""
        return all(1 <= number <= SIZE for number in (self.row, self.column, self.value))

    @property
    def cell(self) -> int:
        """The cell's number; only for a move in range."""
        return (self.row - 1) * SIZE + self.column - 1


def parse_move(text: str) -> Move | None:
    """The first move that a reply can be read as.

    In this order: a JSON object with row, column (or col) and value, or r, c and v; a line with set, fill, place or
    action followed by ``r2c7 4`` or ``2 7 4``; ``r2c7 ... 4`` anywhere; the first three digits that stand alone.
    """
    for found in _OBJECT.finditer(text):
        if (move := _from_object(found[0])) is not None:
            return move
    for said in _VERB.finditer(text):
        numbers = _NUMBER.findall(said[1])
        if match := _CELL.search(said[1]):
            return Move(*map(int, match.groups()))
        if len(numbers) >= 3:
            return Move(*map(int, numbers[:3]))
    if match := _CELL.search(text):
        return Move(*map(int, match.groups()))
    digits = _DIGIT.findall(text)
    return Move(*map(int, digits[:3])) if len(digits) >= 3 else None


def _from_object(text: str) -> Move | None:
    try:
        data = json.loads(text)
    except ValueError:
        return None
    for keys in _KEYS:
        numbers = [str(data.get(key, "")) for key in keys]
        if all(re.fullmatch(r"\d{1,3}", number) for number in numbers):
            return Move(*map(int, numbers))
    return None


class SudokuEnv:
    """The world as an environment: ``reset``, ``step``, ``snapshot``, ``restore``, ``close``."""

    def __init__(self) -> None:
        self._puzzle: Puzzle | None = None
        self._board = ""
        self._filled: list[int] = []
        self._turn = 0
        self._feedback = ""

    @property
    def puzzle(self) -> Puzzle:
        """The puzzle of the last ``reset``."""
        if self._puzzle is None:
            raise SudokuError(_NOT_RESET)
        return self._puzzle

    @property
    def board(self) -> str:
        """The board as it is now."""
        if self._puzzle is None:
            raise SudokuError(_NOT_RESET)
        return self._board

    @property
    def turns_left(self) -> int:
        """Turns until the limit."""
        return TURNS_PER_CELL * self.puzzle.mask_count - self._turn

    @property
    def done(self) -> bool:
        """Whether the board is full or the turns are used up."""
        return EMPTY not in self.board or self.turns_left <= 0

    @property
    def success(self) -> bool:
        """Whether the board is full and breaks no rule."""
        return EMPTY not in self.board and is_solved(self.board)

    @property
    def prompt(self) -> str:
        """All that an agent needs for its next move, as one message.

        What never changes comes first and what was filled only grows, so that consecutive prompts share a prefix.
        """
        filled = " ".join(f"{cell_name(cell)}={self._board[cell]}" for cell in self._filled)
        empty = " ".join(map(cell_name, empty_cells(self.board)))
        rows = [
            " ".join(f"{cell_name(cell)}={self.puzzle.givens[cell]}" for cell in range(start, start + SIZE))
            for start in range(0, CELLS, SIZE)
        ]
        last = [f"Last turn: {self._feedback}"] if self._feedback else []
        return "\n".join([INSTRUCTIONS, *rows, f"Filled: {filled}".rstrip(), *last, f"Empty: {empty}".rstrip()])

    def reset(self, puzzle: Puzzle) -> str:
        """Start ``puzzle`` and return its first prompt."""
        self._puzzle, self._board = puzzle, puzzle.givens
        self._filled, self._turn, self._feedback = [], 0, ""
        return self.prompt

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Take one turn; returns (feedback, reward, done, info), reward 1.0 for a solved board, else 0.0."""
        if self.done:
            raise SudokuError("the episode is over; call reset(puzzle) to start another")
        self._feedback, valid = self._apply(parse_move(action))
        self._turn += 1
        info = {"success": self.success, "valid": valid, "turns_left": self.turns_left}
        return self._feedback, float(self.success), self.done, info

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON-able data (the puzzle itself excluded)."""
        return {
            "puzzle_id": self.puzzle.puzzle_id,
            "filled": [[cell, self._board[cell]] for cell in self._filled],
            "turn": self._turn,
            "feedback": self._feedback,
            "done": self.done,
        }

    def restore(self, token: Mapping[str, Any]) -> None:
        """Go back to a `snapshot` of the same puzzle."""
        if token.get("puzzle_id") != self.puzzle.puzzle_id:
            raise SudokuError(
                f"the snapshot is of puzzle {token.get('puzzle_id')!r}, the environment runs "
                f"{self.puzzle.puzzle_id!r}; reset it to the snapshot's puzzle first"
            )
        board = self.puzzle.givens
        try:
            filled = [(int(cell), str(digit)) for cell, digit in token["filled"]]
            turn, feedback = int(token["turn"]), str(token["feedback"])
        except (KeyError, TypeError, ValueError) as error:
            raise SudokuError(f"not a snapshot ({error!r}); take one with snapshot()") from error
        for cell, digit in filled:
            if cell not in range(CELLS) or board[cell] != EMPTY or digit not in tuple(DIGITS):
                raise SudokuError(f"not a snapshot of this puzzle: it writes {digit!r} into cell {cell}")
            board = place(board, cell, digit)
        self._board, self._filled = board, [cell for cell, _ in filled]
        self._turn, self._feedback = turn, feedback

    def close(self) -> None:
        """Nothing to release; present because the environment protocol asks for it."""

    def _apply(self, move: Move | None) -> tuple[str, bool]:
        if move is None:
            return NO_MOVE, False
        if not move.in_range:
            return OUT_OF_RANGE, False
        name = cell_name(move.cell)
        if self._board[move.cell] != EMPTY:
            given = self.puzzle.givens[move.cell] != EMPTY
            return (f"{name} is given" if given else f"{name} is filled already"), False
        self._board = place(self._board, move.cell, str(move.value))
        self._filled.append(move.cell)
        return f"Filled {name} with {move.value}", True
