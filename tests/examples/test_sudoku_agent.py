"""The Sudoku agent and its shipped policy: a plain app that plays by the rules, and branches under AMC."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sudoku.board import Puzzle, candidates, cell_name, place
from sudoku.env import SudokuEnv
from sudoku.puzzles import LOOKAHEAD_MASK, MASKS, make_puzzle

import langgraph_amc as amc
from langgraph_amc.tasks import FinishedRun, TaskSet
from langgraph_amc.tasks.loading import load_app, load_object, load_reward, load_tasks

transformers = pytest.importorskip("transformers")

EXAMPLE = Path(__file__).parents[2] / "examples" / "sudoku"
AGENT = str(EXAMPLE / "agent.py")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(EXAMPLE / "policy")


def pieces(tokenizer: Any, messages: list[dict[str, str]]) -> list[list[int]]:
    texts = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(MASKS), st.randoms(use_true_random=False))
def test_every_word_is_known_and_messages_concatenate(tokenizer: Any, index: int, mask_count: int, rng) -> None:
    env = SudokuEnv()
    puzzle, _ = make_puzzle("test", index, mask_count)
    messages = [{"role": "user", "content": env.reset(puzzle)}]
    while not env.done and len(messages) < 12:
        moves = [f"set {cell_name(rng.randrange(81))} {rng.randint(1, 9)}" for _ in range(4)]
        messages.append({"role": "assistant", "content": rng.choice(moves)})
        feedback, *_ = env.step(rng.choice([messages[-1]["content"], "pass", "set 10 10 10"]))
        messages += [{"role": "user", "content": feedback}, {"role": "user", "content": env.prompt}]
    parts = pieces(tokenizer, messages)
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    assert tokenizer(whole, add_special_tokens=False)["input_ids"] == [token for part in parts for token in part]
    assert tokenizer.unk_token_id not in [token for part in parts for token in part]
    assert all(part[-1] == tokenizer.eos_token_id for part in parts)
    assert len(parts[0]) <= 90 + mask_count  # a board is 81 tokens


def test_the_policy_is_small_and_comes_as_safetensors() -> None:
    assert not list((EXAMPLE / "policy").glob("*.bin"))
    assert (EXAMPLE / "policy" / "model.safetensors").stat().st_size < 2_000_000
    model = transformers.AutoModelForCausalLM.from_pretrained(EXAMPLE / "policy")
    assert sum(p.numel() for p in model.parameters()) < 1_000_000


async def play(app: Any, tasks: TaskSet) -> list[dict[str, Any]]:
    return await asyncio.gather(*(app.ainvoke(task.input, {"recursion_limit": 200}) for task in tasks))


async def test_the_policy_is_good_but_not_perfect_and_the_reward_is_the_rules() -> None:
    app, solved = load_app(f"{AGENT}:graph"), load_reward(f"{AGENT}:solved")
    tasks = load_tasks(f"{AGENT}:tasks_5", train=0, validation=0, test=24)
    outputs = await play(app, tasks)
    rewards = []
    for task, output in zip(tasks, outputs, strict=True):
        reward = solved(FinishedRun(task, output))
        board = task.input["puzzle"]["givens"]
        for cell, digit in output["world"]["filled"]:
            board = place(board, cell, digit)
        assert reward == float(board == task.reference["solution"])  # the solution is unique
        assert output["world"]["done"]
        assert len(output["messages"]) == 1 + 2 * output["world"]["turn"]
        json.dumps(output["world"])
        rewards.append(reward)
    assert 7 <= sum(rewards) <= 23


def breaks_no_rule(transcript: tuple[str, ...]) -> float:
    """A judge by the rules: 0 while every digit written fits the board before it, less for each that does not."""
    text = "".join(transcript)
    cells = re.findall(r"r\dc\d=([1-9.])", text)[:81]
    board, wrong = "".join(cells), 0
    for row, column, digit in re.findall(r"Filled r(\d)c(\d) with (\d)", text):
        cell = (int(row) - 1) * 9 + int(column) - 1
        wrong += digit not in candidates(board, cell)
        board = place(board, cell, digit)
    return -float(wrong)


async def test_particles_branch_and_a_judge_of_the_rules_helps() -> None:
    app, solved = load_app(f"{AGENT}:graph"), load_reward(f"{AGENT}:solved")
    tasks = load_tasks(f"{AGENT}:tasks", train=0, validation=0, test=4, masks=(15,))
    better = amc.wrap(
        app,
        particles=6,
        value=lambda transcripts: [breaks_no_rule(t) for t in transcripts],
        resample=amc.every(1),
        seed=1,
    )
    plain = await play(app, tasks)
    guided = await play(better, tasks)
    for output in guided:
        world = SudokuEnv()
        world.reset(Puzzle.from_dict(output["puzzle"]))
        said = [m.content for m in output["messages"]]
        # the world of the answer is what the answer's own messages made of it: nothing of other particles
        for reply, feedback in zip(said[1::2], said[2::2], strict=True):
            assert world.step(reply)[0] == feedback
        assert world.snapshot() == output["world"]
        assert output.amc.particles
    rewards = [sum(solved(FinishedRun(None, output)) for output in outputs) for outputs in (plain, guided)]
    assert rewards[1] >= 2
    assert rewards[1] >= rewards[0]


def test_task_sets_are_disjoint_and_of_the_kind_asked_for() -> None:
    small = {"train": 4, "validation": 4, "test": 4}
    for name, masks in (("tasks", {5, 10, 15}), ("tasks_5", {5}), ("tasks_10", {10}), ("tasks_15", {15})):
        tasks = load_tasks(f"{AGENT}:{name}", **small)
        assert tasks.splits == ("train", "validation", "test")
        assert {task.metadata["mask_count"] for task in tasks} == masks
        assert len({task.reference["solution"] for task in tasks}) == 12
        assert all(task.reference["solution"] not in json.dumps(task.input) for task in tasks)
    ahead = load_tasks(f"{AGENT}:tasks_lookahead", train=1, validation=0, test=1)
    assert {task.metadata["mask_count"] for task in ahead} == {LOOKAHEAD_MASK}
    policy = load_object(f"{AGENT}:POLICY")
    assert (policy / "config.json").exists()
