"""Solving: by singles alone (no lookahead), and by search (all of it).

A *naked single* is an empty cell with one candidate left; a *hidden single* a digit that has one place left in a
row, column or box. `singles` is everything that can be known without trying a value and looking where it leads.
"""

from __future__ import annotations

from sudoku.board import CELLS, DIGITS, EMPTY, UNITS, candidates, place


def empty_cells(board: str) -> list[int]:
    """The empty cells in order."""
    return [cell for cell in range(CELLS) if board[cell] == EMPTY]


def naked_singles(board: str) -> dict[int, str]:
    """Empty cells with one candidate, and that candidate."""
    return {cell: found for cell in empty_cells(board) if len(found := candidates(board, cell)) == 1}


def singles(board: str) -> dict[int, str]:
    """Naked and hidden singles: each cell that has one, with its digit."""
    open_ = {cell: candidates(board, cell) for cell in empty_cells(board)}
    found = {cell: digits for cell, digits in open_.items() if len(digits) == 1}
    for unit in UNITS:
        inside = [cell for cell in unit if cell in open_]
        for digit in DIGITS:
            places = [cell for cell in inside if digit in open_[cell]]
            if len(places) == 1:
                found.setdefault(places[0], digit)
    return found


def has_single(board: str) -> bool:
    """Whether something can be filled in without trying; quicker than `singles`, most of all where it can."""
    return any(len(candidates(board, cell)) == 1 for cell in empty_cells(board)) or bool(singles(board))


def fill_singles(board: str) -> str:
    """Fill singles until there are none: what a solver without lookahead reaches."""
    while found := singles(board):
        cell, digit = next(iter(found.items()))
        if digit not in candidates(board, cell):
            return board
        board = place(board, cell, digit)
    return board


def solutions(board: str, limit: int = 2) -> list[str]:
    """Up to ``limit`` full valid boards that ``board`` can be completed to, by depth-first search."""
    found: list[str] = []

    def search(board: str) -> None:
        open_ = {cell: candidates(board, cell) for cell in empty_cells(board)}
        if not open_:
            found.append(board)
            return
        cell = min(open_, key=lambda c: len(open_[c]))  # the fewest branches first
        for digit in open_[cell]:
            search(place(board, cell, digit))
            if len(found) >= limit:
                return

    search(board)
    return found
