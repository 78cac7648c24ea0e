"""The world: the original's words, exact snapshots, and plans that reach every goal."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph_amc_textcraft import TextCraft, TextCraftError, TextCraftTask, load_book, plan, tasks
from langgraph_amc_textcraft.world import commands

from langgraph_amc.tasks import Environment

BOOK = load_book()
GOALS = sorted(BOOK.recipes)


def play(world: TextCraft, actions: list[str]) -> list[str]:
    return [world.step(action)[0] for action in actions]


def test_an_episode_in_the_words_of_the_original() -> None:
    world = TextCraft()
    assert isinstance(world, Environment)
    text = world.reset({"goal": "oak_sign"})
    first, *lines = text.split("\n")
    assert first == "Crafting commands:"
    assert lines[-2:] == ["", "Goal: craft oak sign."]
    assert {"craft 4 oak planks using 1 oak logs", "craft 3 oak sign using 6 oak planks, 1 stick"} <= set(lines)
    assert play(
        world,
        [
            "inventory",
            "get 2 oak logs",
            "craft 4 oak planks using 1 oak logs",
            "craft oak planks using 1 oak logs",
            "craft 4 stick using 2 oak planks",
            "inventory",
        ],
    ) == [
        "Inventory: You are not carrying anything.",
        "Got 2 oak logs",
        "Crafted 4 minecraft:oak_planks",
        "Crafted 4 minecraft:oak_planks",
        "Crafted 4 minecraft:stick",
        "Inventory: [oak planks] (6) [stick] (4) ",
    ]
    assert not world.done
    observation, reward, done, info = world.step("craft 3 oak sign using 1 stick, 6 oak planks")
    assert (observation, reward, done) == ("Crafted 3 minecraft:oak_sign", 1.0, True)
    assert info == {"solved": True, "valid": True}
    with pytest.raises(TextCraftError, match="reset"):
        world.step("inventory")


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        ("get 1 oak planks", "Could not find oak planks"),  # crafted, not fetched
        ("get 1 planks", "Could not find planks"),  # a tag
        ("get 1 unobtainium", "Could not find unobtainium"),
        ("get oak logs", "Could not execute get oak logs"),
        ("get 9999999999 oak logs", "Could not execute get 9999999999 oak logs"),
        ("", "Could not execute "),
        ("dance", "Could not execute dance"),
        ("craft 1 oak boat using oak planks", "Wrong item format: oak planks"),
        ("craft 1 oak boat using 5 oak planks", "Could not find enough items to craft minecraft:oak_boat"),
        ("craft 1 chest using 8 planks", "Could not find enough items to craft minecraft:chest"),
        ("craft 4 planks using 1 oak logs", "Could not find a valid recipe for planks"),
        ("craft 4 oak planks using 2 oak logs", "Could not find a valid recipe for oak planks"),
        ("craft 4 oak planks using 1 oak logs, 1 coal", "Could not find a valid recipe for oak planks"),
        (
            "craft 4 oak planks using 2 oak logs, 2 oak logs",
            "Could not find enough items to craft minecraft:oak_planks",
        ),
        ("craft 4 birch planks using 1 oak logs", "Could not find a valid recipe for birch planks"),
    ],
)
def test_a_refused_action_costs_a_step_and_nothing_else(action: str, observation: str) -> None:
    world = TextCraft()
    world.reset(TextCraftTask("oak_boat"))
    play(world, ["get 3 oak logs", "get 1 coal"])
    before = world.snapshot()
    assert world.step(action) == (observation, 0.0, False, {"solved": False, "valid": False})
    assert world.snapshot() == before | {"steps": 3}


def test_a_tag_takes_one_kind() -> None:
    world = TextCraft()
    world.reset({"goal": "chest"})
    play(world, ["get 2 oak logs", "get 2 birch logs"])
    play(world, [f"craft 4 {wood} planks using 1 {wood} logs" for wood in ("oak", "birch", "oak", "birch")])
    refused, accepted = play(
        world, ["craft 1 chest using 4 oak planks, 4 birch planks", "craft 1 chest using 8 birch planks"]
    )
    assert refused == "Could not find a valid recipe for chest"
    assert accepted == "Crafted 1 minecraft:chest"


def test_every_task_is_solved_by_its_plan() -> None:
    world = TextCraft()
    for task in tasks(infeasible=True):
        goal = task.input["task"]["goal"]
        actions = plan(BOOK, goal)
        world.reset(TextCraftTask(goal, step_limit=len(actions)))
        results = [world.step(action) for action in actions]
        assert all(info["valid"] for *_, info in results), goal
        assert [reward for _, reward, _, _ in results] == [0.0] * (len(actions) - 1) + [1.0]
        assert len(actions) == task.metadata["plan_steps"]


def test_the_step_limit_ends_an_episode_unsolved() -> None:
    world = TextCraft()
    world.reset({"goal": "oak_boat"})
    dones = [world.step("inventory")[2] for _ in range(20)]
    assert dones == [False] * 19 + [True]
    assert world.done
    assert not world.solved


def test_the_text_shows_all_ways_to_the_goal_and_ten_others() -> None:
    for goal in GOALS[::25]:
        needed, shown = set(BOOK.below(goal)), commands(BOOK, goal)
        assert needed <= set(shown)
        assert len(shown) == len(set(shown)) <= len(needed) + 10
        assert commands(BOOK, goal) == shown


@st.composite
def episodes(draw: st.DrawFn) -> tuple[str, list[str], list[str]]:
    goal = draw(st.sampled_from(GOALS))
    moves = [*plan(BOOK, goal), "inventory", "dance", *(recipe.text for recipe in commands(BOOK, goal))]
    some = st.lists(st.sampled_from(moves), max_size=12)
    return goal, plan(BOOK, goal)[: draw(st.integers(0, 6))] + draw(some), draw(some)


@settings(max_examples=150, deadline=None)
@given(episodes())
def test_a_restored_snapshot_goes_on_as_the_original_did(episode: tuple[str, list[str], list[str]]) -> None:
    goal, before, after = episode

    def go(world: TextCraft, actions: list[str]) -> list[Any]:
        return [world.step(action) for action in actions if not world.done]

    world, other = TextCraft(), TextCraft()
    world.reset(TextCraftTask(goal))
    go(world, before)
    token = world.snapshot()
    written = json.dumps(token, sort_keys=True)
    expected, end = go(world, after), world.snapshot()
    assert json.dumps(token, sort_keys=True) == written  # later steps do not change a token
    other.restore(json.loads(written))
    assert (go(other, after), other.snapshot()) == (expected, end)
    world.restore(token)
    assert (go(world, after), world.snapshot()) == (expected, end)


@pytest.mark.parametrize("token", [{}, {"task": {"goal": "stick"}, "held": 3, "steps": 0}, {"task": {"aim": "stick"}}])
def test_what_is_no_snapshot_is_refused_and_changes_nothing(token: dict[str, Any]) -> None:
    world = TextCraft()
    world.reset({"goal": "stick"})
    with pytest.raises(TextCraftError):
        world.restore(token)
    assert world.snapshot() == {"task": {"goal": "stick", "step_limit": 20}, "held": [], "steps": 0}


@pytest.mark.parametrize(
    "task", [{"goal": "diamond"}, {"goal": "oak boat"}, {}, {"goal": "stick", "step_limit": 0}, {"id": 3}]
)
def test_what_is_no_task_is_refused(task: dict[str, Any]) -> None:
    with pytest.raises(TextCraftError):
        TextCraft().reset(task)


def test_a_world_without_a_task_says_so() -> None:
    with pytest.raises(TextCraftError, match="reset"):
        TextCraft().step("inventory")


def digest() -> str:
    import hashlib

    from langgraph_amc_textcraft import TextCraft, tasks

    world, found = TextCraft(), hashlib.sha256()
    for task in tasks(infeasible=True):
        text = world.reset(task.input["task"])
        found.update(f"{task.id} {task.split} {dict(task.metadata)} {text}".encode())
    return found.hexdigest()


def test_ids_splits_and_texts_are_the_same_in_every_process() -> None:
    program = f"{inspect.getsource(digest)}print(digest())"
    # Another than this process has: its sets are in another order.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == digest()
