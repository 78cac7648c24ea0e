"""Puzzles: valid, unique, of the promised difficulty, and never in two splits."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sudoku.board import CELLS, DIGITS, EMPTY, PEERS, UNITS, Puzzle, SudokuError, candidates, is_solved, place
from sudoku.puzzles import LOOKAHEAD_MASK, MASKS, make_puzzle, practice_puzzle, split_of
from sudoku.solver import empty_cells, fill_singles, has_single, naked_singles, singles, solutions

SPLITS = ("policy", "train", "validation", "test")
splits, indices = st.sampled_from(SPLITS), st.integers(0, 10**9)


def all_solutions(board: str) -> list[str]:
    """By trying every digit in every cell in order, with the rules taken from `UNITS` alone."""
    if EMPTY not in board:
        return [board] if is_solved(board) else []
    cell = board.index(EMPTY)
    seen = {board[other] for unit in UNITS if cell in unit for other in unit}
    return [full for digit in DIGITS if digit not in seen for full in all_solutions(place(board, cell, digit))]


def test_units_and_peers() -> None:
    assert len(UNITS) == 27
    assert all(len(set(unit)) == 9 for unit in UNITS)
    assert all(sum(cell in unit for unit in UNITS) == 3 for cell in range(CELLS))
    assert {len(peers) for peers in PEERS} == {20}


@settings(max_examples=60, deadline=None)
@given(splits, indices, st.sampled_from((1, *MASKS, 20)))
def test_a_puzzle_has_one_solution_and_belongs_to_its_split(split: str, index: int, mask_count: int) -> None:
    puzzle, solution = make_puzzle(split, index, mask_count)
    assert puzzle.mask_count == mask_count
    assert is_solved(solution)
    assert all(given in (EMPTY, digit) for given, digit in zip(puzzle.givens, solution, strict=True))
    assert all_solutions(puzzle.givens) == [solution]
    assert split_of(solution) == split
    assert make_puzzle(split, index, mask_count) == (puzzle, solution)
    assert Puzzle.from_dict(puzzle.to_dict()) == puzzle


def test_few_empty_cells_ask_for_singles_only() -> None:
    for mask_count, least in ((5, 0.95), (10, 0.9), (15, 0.8)):
        boards = [make_puzzle("test", index, mask_count)[0].givens for index in range(100)]
        assert all(is_solved(fill_singles(board)) for board in boards)
        assert sum(len(naked_singles(board)) for board in boards) / (100 * mask_count) > least


@settings(max_examples=6, deadline=None)
@given(splits, st.integers(0, 10**6))
def test_a_lookahead_puzzle_gives_nothing_away(split: str, index: int) -> None:
    puzzle, solution = make_puzzle(split, index, LOOKAHEAD_MASK, "lookahead")
    board = puzzle.givens
    assert puzzle.mask_count == LOOKAHEAD_MASK
    assert all_solutions(board) == [solution]
    assert not has_single(board)
    assert not singles(board)
    assert fill_singles(board) == board
    tempting = 0
    for cell in empty_cells(board):
        fitting = candidates(board, cell)
        assert solution[cell] in fitting
        assert len(fitting) >= 2
        tempting += len(fitting) - 1
        for wrong in set(fitting) - {solution[cell]}:  # breaks no rule now, and yet nothing can be made of it
            assert not solutions(place(board, cell, wrong))
    assert tempting >= LOOKAHEAD_MASK


def test_splits_share_no_board_and_no_solution() -> None:
    seen: dict[str, str] = {}
    for split, mask_count, index in itertools.product(SPLITS, MASKS, range(150)):
        _, solution = make_puzzle(split, index, mask_count)
        assert seen.setdefault(solution, split) == split
    rng = random.Random(3)
    for _ in range(200):
        puzzle, solution = practice_puzzle(rng)
        assert is_solved(solution)
        assert split_of(solution) == "policy"
        assert 3 <= puzzle.mask_count <= LOOKAHEAD_MASK
    assert len({make_puzzle("train", index, 5)[0].givens for index in range(300)}) == 300


def test_the_same_puzzles_in_another_process() -> None:
    code = "from sudoku.puzzles import make_puzzle; print([make_puzzle('test', i, 15) for i in range(5)])"
    env = {**os.environ, "PYTHONHASHSEED": "77"}
    folder = Path(__file__).parents[2] / "examples" / "sudoku"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str([make_puzzle("test", i, 15) for i in range(5)])


@settings(max_examples=30, deadline=None)
@given(indices, st.integers(1, 25), st.randoms(use_true_random=False))
def test_the_solver_finds_what_trying_everything_finds(index: int, holes: int, rng: random.Random) -> None:
    board = make_puzzle("train", index, 5)[1]
    for cell in rng.sample(range(CELLS), holes):
        board = place(board, cell, EMPTY)
    if rng.random() < 0.3:  # a wrong digit: most often no solution is left
        cell = rng.choice([c for c in range(CELLS) if board[c] != EMPTY])
        board = place(board, cell, rng.choice(DIGITS))
    expected = all_solutions(board)
    assert sorted(solutions(board, limit=10**6)) == sorted(expected) or not _consistent(board)
    assert len(solutions(board, limit=1)) <= 1
    if len(expected) == 1:
        assert all(expected[0][cell] == digit for cell, digit in singles(board).items())
    assert has_single(board) == bool(singles(board))


def _consistent(board: str) -> bool:
    """Whether no two of the digits there contradict each other; the solver looks at empty cells only."""
    return all(board[cell] == EMPTY or board[cell] in candidates(board, cell) for cell in range(CELLS))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (("tune", 0, 5), "unknown split"),
        (("test", -1, 5), "index"),
        (("test", 1.5, 5), "index"),
        (("test", 0, 0), "empty cells"),
        (("test", 0, 41), "empty cells"),
        (("test", 0, 15, "lookahead"), "empty cells"),
        (("test", 0, 15, "hard"), "unknown kind"),
    ],
)
def test_what_cannot_be_had_is_named(how: tuple, says: str) -> None:
    with pytest.raises(SudokuError, match=says):
        make_puzzle(*how)


@pytest.mark.parametrize("board", ["", "1" * 81, "." * 80, "0" * 81, "." * 81 + "\n", None, 5])
def test_a_puzzle_is_a_board_with_empty_cells(board: object) -> None:
    with pytest.raises(SudokuError):
        Puzzle("p", board)
    with pytest.raises(SudokuError, match="not a puzzle"):
        Puzzle.from_dict({"board": "." * 81})
