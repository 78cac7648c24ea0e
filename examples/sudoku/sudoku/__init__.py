"""Sudoku, one cell at a time: boards, puzzles made from seeds, solvers, and the world an agent acts on."""
