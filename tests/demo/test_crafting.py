"""The crafting world keeps its books: stock, items, snapshots, splits, seeds."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_amc.demo.crafting import CraftingEnv, CraftingError, CraftingTask, Recipe, parse_action
from langgraph_amc.demo.planner import Slips, demonstrate, plan
from langgraph_amc.demo.taskgen import SPLITS, Shape, make_task, make_tasks, split_of

seeds = st.integers(0, 4_000_000_000 - 1)
stocks = st.sampled_from(["finite", "unlimited"])


def some_actions(task: CraftingTask, rng: random.Random, n: int) -> list[str]:
    """Legal, wasteful, wrong and garbled actions."""
    names = [item for item, _ in task.supply] + [r.output for r in task.recipes] + ["nothing"]
    expert = plan(task, {}, dict(task.supply)) or []
    pool = [*expert, *(r.text for r in task.recipes), "inventory", "sing", "get two oak", "craft 1 x using y"]
    pool += [f"get {rng.randint(0, 3)} {rng.choice(names)}" for _ in range(n)]
    return [rng.choice(pool) for _ in range(n)]


@settings(max_examples=150, deadline=None)
@given(seeds, stocks)
def test_planner_solves_every_task_within_stock_and_steps(seed: int, stock: str) -> None:
    task = make_task(seed, stock=stock)
    env = CraftingEnv()
    env.reset(task)
    actions = plan(task, env.held, env.left)
    assert actions is not None
    rewards = []
    for action in actions:
        _, reward, done, info = env.step(action)
        assert info["valid"]
        rewards.append(reward)
    assert done
    assert info["success"]
    assert env.steps_left >= 0
    assert rewards == [0.0] * (len(actions) - 1) + [1.0]


@settings(max_examples=100, deadline=None)
@given(seeds, stocks, st.integers(0, 2**32))
def test_items_are_conserved_and_the_stock_is_never_exceeded(seed: int, stock: str, noise: int) -> None:
    task = make_task(seed, stock=stock)
    env, tags = CraftingEnv(), dict(task.tags)
    env.reset(task)
    for action in some_actions(task, random.Random(noise), 40):
        if env.done:
            break
        held, left = env.held, env.left
        _, _, _, info = env.step(action)
        gained = {i: env.held[i] - held[i] for i in {*held, *env.held} if env.held[i] != held[i]}
        taken = {i: left[i] - env.left[i] for i in left if left[i] != env.left[i]}
        assert min(env.held.values(), default=0) >= 0
        assert min(env.left.values()) >= 0
        if not info["valid"] or action == "inventory":
            assert gained == taken == {}
        elif action.startswith("get"):
            assert [n > 0 for n in gained.values()] == [True]
            assert taken == (gained if stock == "finite" else {})
        else:
            assert not taken
            made = {i: n for i, n in gained.items() if n > 0}
            recipe = next(r for r in task.recipes if {r.output: r.count} == made)
            spent = Counter(-n for n in gained.values() if n < 0)
            assert spent == Counter(n for n, _ in recipe.parts)
            for item in (i for i, n in gained.items() if n < 0):
                assert any(item == name or item in tags.get(name, ()) for _, name in recipe.parts)
    if stock == "finite":
        taken_in_all = {item: n - env.left[item] for item, n in task.supply}
        assert all(0 <= taken_in_all[item] <= n for item, n in task.supply)


@settings(max_examples=60, deadline=None)
@given(seeds, stocks, st.integers(0, 2**32))
def test_restore_is_exact(seed: int, stock: str, noise: int) -> None:
    task, rng = make_task(seed, stock=stock), random.Random(noise)
    env, other = CraftingEnv(), CraftingEnv()
    env.reset(task)
    actions = some_actions(task, rng, 30)
    cut = rng.randint(0, 12)
    for action in actions[:cut]:
        if not env.done:
            env.step(action)
    token = env.snapshot()
    wire = json.loads(json.dumps(token))
    first = [env.step(a) if not env.done else None for a in actions[cut:]]
    assert token == wire  # going on does not change what was saved
    other.reset(task)
    other.restore(wire)
    assert other.snapshot() == token
    assert [other.step(a) if not other.done else None for a in actions[cut:]] == first
    env.restore(token)
    assert env.snapshot() == token


@settings(max_examples=60, deadline=None)
@given(seeds, stocks)
def test_a_task_survives_json(seed: int, stock: str) -> None:
    task = make_task(seed, stock=stock)
    assert CraftingTask.from_dict(json.loads(json.dumps(task.to_dict()))) == task


@settings(max_examples=60, deadline=None)
@given(seeds)
def test_recipes_are_listed_dependents_first_and_distractors_are_useless(seed: int) -> None:
    task = make_task(seed)
    needed = {recipe.output for recipe in task.needed}
    seen: set[str] = {task.goal}
    for recipe in task.recipes:
        assert (recipe.output in seen) == (recipe.output in needed)
        seen.update(name for _, name in recipe.parts)
    assert len({recipe.output for recipe in task.recipes}) == len(task.recipes)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(0, 2**32))
def test_demonstrations_without_slips_follow_the_plan(seed: int, noise: int) -> None:
    task = make_task(seed)
    steps = demonstrate(task, random.Random(noise), Slips())
    assert [step.action for step in steps] == plan(task, {}, dict(task.supply))
    slipping = demonstrate(task, random.Random(noise), Slips(wasteful=1.0))
    assert any(step.slip for step in slipping) or len(slipping) == len(steps)


def test_the_same_seed_gives_the_same_text_whatever_the_hash_seed() -> None:
    code = (
        "import hashlib; from langgraph_amc.demo.taskgen import make_tasks;"
        "print(hashlib.sha256(repr(make_tasks('test', 200)).encode()).hexdigest())"
    )
    prints = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("0", "1", "4711")
    }
    assert prints == {hashlib.sha256(repr(make_tasks("test", 200)).encode()).hexdigest()}


def test_splits_are_disjoint_and_cover_their_seeds() -> None:
    ranges = list(SPLITS.values())
    assert all(a.stop <= b.start for a, b in itertools.pairwise(ranges))
    prompts = {name: {task.prompt for task in make_tasks(name, 300)} for name in SPLITS}
    assert sum(map(len, prompts.values())) == len(set().union(*prompts.values())) == 1200
    assert all(split_of(task.seed) == name for name in SPLITS for task in make_tasks(name, 3, start=5))
    with pytest.raises(CraftingError, match="no split"):
        split_of(-1)
    with pytest.raises(CraftingError, match="unknown split"):
        make_tasks("all", 1)


def test_finite_and_unlimited_are_the_same_task() -> None:
    for finite, unlimited in zip(make_tasks("test", 50), make_tasks("test", 50, stock="unlimited"), strict=True):
        assert (finite.recipes, finite.supply, finite.step_limit) == (
            unlimited.recipes,
            unlimited.supply,
            unlimited.step_limit,
        )
        assert finite.task_id != unlimited.task_id


def test_a_wasteful_craft_is_final_with_finite_stock_only() -> None:
    recipes = (
        Recipe.shaped("cart", 1, ("A A", "B B"), {"A": "plank", "B": "rod"}),
        Recipe("plank", 2, ((2, "wood"),)),
        Recipe("flute", 1, ((2, "oak"),)),
        Recipe("rod", 2, ((1, "iron"),)),
    )
    assert recipes[0].text == "craft 1 cart using 2 plank , 2 rod"
    for stock, feasible in (("finite", False), ("unlimited", True)):
        task = CraftingTask(
            "t",
            0,
            "cart",
            recipes,
            (("wood", ("oak", "pine")),),
            (("oak", 2), ("iron", 1), ("pine", 1)),
            stock,
            20,
        )
        env = CraftingEnv()
        env.reset(task)
        assert plan(task, env.held, env.left) is not None
        env.step("get 2 oak")
        observation, *_ = env.step("craft 1 flute using 2 oak")
        assert observation == "Crafted 1 flute"
        assert (plan(task, env.held, env.left) is not None) == feasible


def test_observations_say_what_happened() -> None:
    recipes = (Recipe("cart", 1, ((2, "wood"), (1, "iron"))),)
    task = CraftingTask("t", 0, "cart", recipes, (("wood", ("oak", "pine")),), (("oak", 3), ("iron", 1)), "finite", 9)
    env = CraftingEnv()
    assert env.reset(task) == (
        "Goal: cart\nRecipes:\nr1 : craft 1 cart using 2 wood , 1 iron\nOther:\n"
        "any wood : oak or pine\nStock: 3 oak , 1 iron"
    )
    said = [
        ("Action: inventory", "Inventory: empty"),
        ("Thought: r1 cart\nAction: get 2 oak\nObservation: made up", "Got 2 oak , 1 left"),
        ("get 2 oak", "Not enough oak , 1 left"),
        ("get 1 gold", "Cannot get gold"),
        ("craft 1 cart using 2 oak, 1 iron", "Missing 1 iron"),
        ("craft 1 cart using 1 oak , 1 iron", "No recipe for cart using that"),
        ("dance", "Unknown action"),
        ("get 1 iron", "Got 1 iron , 0 left"),
    ]
    for action, observation in said:
        assert env.step(action)[0] == observation
    assert env.step("craft 1 cart using 1 iron , 2 oak") == (
        "Crafted 1 cart",
        1.0,
        True,
        {"success": True, "valid": True, "steps_left": 0},
    )
    with pytest.raises(CraftingError, match="over"):
        env.step("inventory")


def test_the_step_limit_ends_the_episode_without_reward() -> None:
    task = make_task(7)
    env = CraftingEnv()
    env.reset(task)
    results = [env.step("inventory") for _ in range(task.step_limit)]
    assert [done for _, _, done, _ in results] == [False] * (task.step_limit - 1) + [True]
    assert sum(reward for _, reward, _, _ in results) == 0.0
    assert not env.success


def test_misuse_is_named() -> None:
    env = CraftingEnv()
    with pytest.raises(CraftingError, match="reset"):
        env.step("inventory")
    env.reset(make_task(1))
    token = env.snapshot()
    env.reset(make_task(2))
    with pytest.raises(CraftingError, match="snapshot is of task"):
        env.restore(token)
    with pytest.raises(CraftingError, match="not a crafting task"):
        CraftingTask.from_dict({"task_id": "x"})
    with pytest.raises(CraftingError, match="no task fits"):
        make_task(3, shape=Shape(plan_steps=(100, 100)))


def test_unlimited_stock_never_runs_out() -> None:
    env = CraftingEnv()
    env.reset(make_task(11, stock="unlimited"))
    assert set(env.left.values()) == {math.inf}
    item = env.task.supply[0][0]
    assert env.step(f"get 99 {item}")[0] == f"Got 99 {item}"
    assert env.step(f"get 99 {item}")[3]["valid"]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("", ""),
        ("Action:", ""),
        ("action : get 1 oak", "get 1 oak"),
        ("Action: get 1 oak\n\nAction: craft 1 rod using 2 oak,1 tin", "craft 1 rod using 2 oak , 1 tin"),
    ],
)
def test_parse_action(text: str, command: str) -> None:
    assert parse_action(text) == command
