"""The Sudoku world: what it accepts, what it refuses, when it ends and what it pays; snapshots in any order."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sudoku.board import EMPTY, SudokuError, cell_name, is_solved
from sudoku.env import NO_MOVE, OUT_OF_RANGE, Move, SudokuEnv, parse_move
from sudoku.puzzles import make_puzzle
from sudoku.solver import empty_cells

from langgraph_amc.tasks import Environment

replies = st.one_of(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)).map(lambda m: f"set r{m[0]}c{m[1]} {m[2]}"),
    st.tuples(*[st.integers(0, 12)] * 3).map(lambda m: f"set {m[0]} {m[1]} {m[2]}"),
    st.text(max_size=30),
)


def started(index: int = 0, mask_count: int = 5) -> tuple[SudokuEnv, str]:
    env = SudokuEnv()
    puzzle, solution = make_puzzle("test", index, mask_count)
    env.reset(puzzle)
    return env, solution


@pytest.mark.parametrize(
    ("text", "move"),
    [
        ("set r2c7 4", (2, 7, 4)),
        ("set 2 7 4", (2, 7, 4)),
        ("SET R2C7 = 4.", (2, 7, 4)),
        ("I think.\nAction: fill r2c7 with 4\nset r1c1 1", (2, 7, 4)),
        ('{"row": 2, "col": 7, "value": 4}', (2, 7, 4)),
        ('so: {"row": "2", "column": 7, "value": 4} set r1c1 1', (2, 7, 4)),
        ('{"r": 2, "c": 7, "v": 4}', (2, 7, 4)),
        ('{"x": 1} and {"r": 2, "c": 7, "v": 4}', (2, 7, 4)),
        ("{broken} set r2c7 4", (2, 7, 4)),
        ("set the cell\nthen set 2 7 4", (2, 7, 4)),
        ("r2c7 must be 4", (2, 7, 4)),
        ("2, 7, 4", (2, 7, 4)),
        ("set r12c7 4", (12, 7, 4)),
        ("set 2 7 0", (2, 7, 0)),
        ("", None),
        ("set r2c7", None),
        ("two seven four", None),
        ('{"row": 2, "col": 7}', None),
        ('{"row": null, "col": true, "value": 4}', None),
        ("12 34 56", None),
    ],
)
def test_replies_are_read_leniently(text: str, move: tuple[int, int, int] | None) -> None:
    assert parse_move(text) == (move and Move(*move))


@given(st.text())
def test_no_reply_breaks_the_world(text: str) -> None:
    env, _ = started()
    env.step(text)
    parse_move(text.replace("a", "{").replace("e", "}"))


def test_refusals_say_why_and_cost_a_turn() -> None:
    env, solution = started()
    cell = empty_cells(env.board)[0]
    given = next(c for c in range(81) if env.board[c] != EMPTY)
    said = [
        ("hello", NO_MOVE, False),
        ("set r1c10 3", OUT_OF_RANGE, False),
        (f"set {cell_name(given)} 3", f"{cell_name(given)} is given", False),
        (f"set {cell_name(cell)} {solution[cell]}", f"Filled {cell_name(cell)} with {solution[cell]}", True),
        (f"set {cell_name(cell)} {solution[cell]}", f"{cell_name(cell)} is filled already", False),
    ]
    for turn, (reply, feedback, valid) in enumerate(said, 1):
        board = env.board
        assert env.step(reply) == (feedback, 0.0, False, {"success": False, "valid": valid, "turns_left": 15 - turn})
        assert (env.board != board) == valid
        assert f"Last turn: {feedback}" in env.prompt


def test_a_wrong_digit_is_taken_without_a_word_and_decides_the_episode() -> None:
    env, solution = started()
    first, *others = empty_cells(env.board)
    wrong = "1" if solution[first] != "1" else "2"
    assert env.step(f"set {cell_name(first)} {wrong}")[0] == f"Filled {cell_name(first)} with {wrong}"
    results = [env.step(f"set {cell_name(cell)} {solution[cell]}") for cell in others]
    assert [done for _, _, done, _ in results] == [False] * 3 + [True]
    assert results[-1][1] == 0.0
    assert not env.success
    with pytest.raises(SudokuError, match="over"):
        env.step("set r1c1 1")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 500), st.sampled_from((5, 10, 15)), st.randoms(use_true_random=False))
def test_the_reward_is_one_for_a_solved_board_in_any_order(index: int, mask_count: int, rng) -> None:
    env, solution = started(index, mask_count)
    order = empty_cells(env.board)
    rng.shuffle(order)
    for left, cell in zip(range(mask_count - 1, -1, -1), order, strict=True):
        _, reward, done, info = env.step(f"set {cell_name(cell)} {solution[cell]}")
        assert (reward, done, info["success"]) == ((1.0, True, True) if left == 0 else (0.0, False, False))
        assert len(empty_cells(env.board)) == left
    assert env.board == solution
    assert is_solved(env.board)


def test_the_turns_are_three_times_the_empty_cells() -> None:
    env, _ = started(3, 10)
    results = [env.step("pass") for _ in range(30)]
    assert [done for _, _, done, _ in results] == [False] * 29 + [True]
    assert sum(reward for _, reward, _, _ in results) == 0.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200), st.lists(replies, max_size=12), st.lists(replies, max_size=8))
def test_a_snapshot_is_a_place_to_go_back_to(index: int, before: list[str], after: list[str]) -> None:
    env, _ = started(index)
    assert isinstance(env, Environment)
    for reply in before:
        if not env.done:
            env.step(reply)
    token = json.loads(json.dumps(env.snapshot()))
    prompt, board = env.prompt, env.board

    def play(env: SudokuEnv) -> list[object]:
        return [(env.step(reply), env.prompt) for reply in after if not env.done]

    first = play(env)
    assert env.snapshot() == token or first
    other = SudokuEnv()
    other.reset(env.puzzle)
    other.restore(token)
    assert (other.prompt, other.board, other.snapshot()) == (prompt, board, token)
    assert play(other) == first
    env.restore(token)
    assert play(env) == first


def test_prompts_share_what_does_not_change() -> None:
    env, solution = started(1, 15)
    prompts = [env.prompt]
    for cell in reversed(empty_cells(env.board)):
        env.step(f"set {cell_name(cell)} {solution[cell]}")
        prompts.append(env.prompt)
    fixed = prompts[0].partition("Filled:")[0]
    assert all(prompt.startswith(fixed) for prompt in prompts)
    filled = [prompt.splitlines()[10] for prompt in prompts]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(filled))


def test_misuse_is_named() -> None:
    env = SudokuEnv()
    for use in (lambda: env.step("set r1c1 1"), env.snapshot, lambda: env.restore({}), lambda: env.prompt):
        with pytest.raises(SudokuError, match="reset"):
            use()
    env, _ = started(0)
    token = env.snapshot()
    given = next(c for c in range(81) if env.board[c] != EMPTY)
    for broken in ({"filled": [[given, "1"]]}, {"filled": [[99, "1"]]}, {"filled": [[0]]}, {"turn": "x"}):
        with pytest.raises(SudokuError, match="not a snapshot"):
            env.restore({**token, **broken})
    other, _ = started(1)
    with pytest.raises(SudokuError, match="snapshot is of puzzle"):
        other.restore(token)
