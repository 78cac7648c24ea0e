"""Procedural crafting tasks: one integer seed, one recipe graph, one stock, one goal.

Names come from a fixed vocabulary (so that a tiny model needs few embeddings); who is made from what is drawn
anew for every task, so an agent has to read the recipes. Splits are disjoint ranges of seeds.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

from langgraph_amc.demo.crafting import CraftingError, CraftingTask, Recipe, Stock
from langgraph_amc.demo.planner import plan


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TAGS: dict[str, tuple[str, ...]] = {
    "wood": ("oak", "pine", "birch", "cedar"),
    "metal": ("iron", "copper", "tin", "zinc"),
    "rock": ("granite", "basalt", "slate", "flint"),
    "cloth": ("wool", "linen", "silk", "cotton"),
}
BASE: tuple[str, ...] = tuple(item for members in TAGS.values() for item in members) + _words(
    "clay sand coal salt wax resin reed bone shell amber quartz chalk leather feather straw bark moss honey "
    "oil dye ash pearl ruby jade"
)
CRAFTED: tuple[str, ...] = _words(
    "plank rod gear wheel axle frame panel hinge latch bolt nail spring chain hook ring wire pipe valve "
    "pump gauge lens mirror lamp lantern candle torch kettle pot bowl cup jar bottle barrel crate chest "
    "basket bag rope net sail mast rudder oar raft cart sled ladder stool table shelf door gate fence bell "
    "drum flute harp lute whistle clock compass map scale loom spindle anvil hammer saw chisel drill wrench "
    "shovel rake sickle bucket"
)
_SPLIT_SIZE = 1_000_000_000
SPLITS: dict[str, range] = {
    name: range(k * _SPLIT_SIZE, (k + 1) * _SPLIT_SIZE) for k, name in enumerate(("policy", "train", "tune", "test"))
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What tasks look like: how many needed recipes and plan steps, how scarce the stock is."""

    recipes: tuple[int, int] = (4, 6)
    plan_steps: tuple[int, int] = (7, 12)
    slack: tuple[float, float, float] = (0.65, 0.25, 0.1)  # chances of 0, 1, 2 spare pieces of a base item
    tag_rate: float = 0.4
    extra_steps: int = 5


DEFAULT_SHAPE = Shape()


def split_of(seed: int) -> str:
    """The split that owns ``seed``."""
    for name, seeds in SPLITS.items():
        if seed in seeds:
            return name
    raise CraftingError(f"seed {seed} belongs to no split; use 0 <= seed < {len(SPLITS) * _SPLIT_SIZE}")


def make_tasks(
    split: str, n: int, *, start: int = 0, stock: Stock = "finite", shape: Shape = DEFAULT_SHAPE
) -> list[CraftingTask]:
    """Tasks ``start`` to ``start + n`` of a split ("policy", "train", "tune" or "test")."""
    if split not in SPLITS:
        raise CraftingError(f"unknown split {split!r}; use one of {', '.join(SPLITS)}")
    return [make_task(seed, stock=stock, shape=shape) for seed in SPLITS[split][start : start + n]]


def make_task(seed: int, *, stock: Stock = "finite", shape: Shape = DEFAULT_SHAPE) -> CraftingTask:
    """The task of ``seed``: the same text on every machine and in every process."""
    split = split_of(seed)
    rng = random.Random(seed)
    for _ in range(1000):
        task = _draw(rng, seed, f"{split}-{seed - SPLITS[split].start}-{stock}", stock, shape)
        if task is not None:
            return task
    raise CraftingError(f"no task fits {shape}; widen plan_steps or recipes")


def _draw(rng: random.Random, seed: int, task_id: str, stock: Stock, shape: Shape) -> CraftingTask | None:
    """One attempt; ``None`` if the plan has the wrong length. Draws do not depend on ``stock``."""
    names = rng.sample(CRAFTED, 16)
    base = rng.sample(BASE, rng.randint(3, 5))
    needed, names, tag = _needed(rng, names, base, shape)
    tags, need = _tag_members(rng, tag), _base_need(needed)
    if tag is not None:
        # the first member covers the tag's need, a second one may or may not
        need.update({tags[0][1][0]: need.pop(tag)})
        for other in tags[0][1][1:]:
            need.setdefault(other, 0)
    recipes = (*needed, *_rivals(rng, needed, names, dict(tags)))
    supply = [(item, max(1, n + rng.choices((0, 1, 2), shape.slack)[0])) for item, n in need.items()]
    rng.shuffle(supply)
    task = CraftingTask(task_id, seed, needed[0].output, recipes, tags, tuple(supply), stock, 0)
    actions = plan(task, {}, dict(supply))
    if actions is None or not shape.plan_steps[0] <= len(actions) <= shape.plan_steps[1]:
        return None
    return replace(task, step_limit=len(actions) + shape.extra_steps)


def _needed(
    rng: random.Random, names: list[str], base: list[str], shape: Shape
) -> tuple[list[Recipe], list[str], str | None]:
    """Recipes below ``names[0]``, dependents first, depth at most 4; the unused names; the tag used."""
    total = rng.randint(*shape.recipes)
    tag = rng.choice(sorted(TAGS)) if rng.random() < shape.tag_rate else None
    if tag is not None:
        base = [item for item in base if item not in TAGS[tag]] or ["clay"]
    queue = [(names[0], 1, 1)]  # item, pieces needed, depth
    made, recipes, tagged = 1, [], False
    while queue:
        item, pieces, depth = queue.pop(0)
        children = 0
        if depth < 4 and made < total:
            children = min(total - made, rng.choice((1, 1, 2)))
            if not queue:
                children = max(1, children)
        parts: list[tuple[int, str]] = []
        for _ in range(children):
            amount = rng.choice((1, 1, 2))
            parts.append((amount, names[made]))
            made += 1
        leaves = rng.choice((1, 1, 2)) if children == 0 else rng.choice((0, 1, 1)) if children == 1 else 0
        for k, leaf in enumerate(rng.sample(base, min(leaves, len(base)))):
            if tag is not None and not tagged and k == 0 and rng.random() < 0.5:
                leaf, tagged = tag, True
            parts.append((rng.choice((1, 2, 2, 3)), leaf))
        rng.shuffle(parts)
        count = pieces if rng.random() < 0.8 else rng.choice((1, pieces + 1)) if depth > 1 else 1
        runs = -(-pieces // count)
        queue += [(name, amount * runs, depth + 1) for amount, name in parts if name in names]
        recipes.append(_recipe(rng, item, count, parts))
    return recipes, names[made:], tag if tagged else None


def _recipe(rng: random.Random, output: str, count: int, parts: list[tuple[int, str]]) -> Recipe:
    """Shapeless or, if it fits a 3x3 grid and the coin says so, shaped."""
    if sum(n for n, _ in parts) > 9 or rng.random() < 0.5:
        return Recipe(output, count, tuple(parts))
    key = {"ABC"[k]: item for k, (_, item) in enumerate(parts)}
    cells = "".join(symbol * n for symbol, (n, _) in zip(key, parts, strict=True))
    width = 1 if len(cells) == 1 else 2 if len(cells) <= 4 else 3
    pattern = tuple(cells[i : i + width].ljust(width) for i in range(0, len(cells), width))
    return Recipe.shaped(output, count, pattern, key)


def _tag_members(rng: random.Random, tag: str | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The tag with one or two members that this task offers."""
    return () if tag is None else ((tag, tuple(rng.sample(TAGS[tag], rng.choice((1, 2))))),)


def _base_need(needed: list[Recipe]) -> Counter[str]:
    """Pieces of each base item (and tag) that making the goal once takes."""
    need: Counter[str] = Counter({needed[0].output: 1})
    for recipe in needed:
        runs = -(-need.pop(recipe.output) // recipe.count)
        for amount, name in recipe.parts:
            need[name] += amount * runs
    return need


def _rivals(
    rng: random.Random, needed: list[Recipe], names: list[str], tags: dict[str, tuple[str, ...]]
) -> list[Recipe]:
    """For each needed recipe one that nobody needs and that eats some of the same parts."""
    rivals = []
    for victim, output in zip(needed, names, strict=False):
        parts = rng.sample(victim.parts, min(len(victim.parts), rng.choice((1, 1, 1, 2))))
        eaten = [(rng.randint(1, n), tags[name][0] if name in tags else name) for n, name in parts]
        rivals.append(_recipe(rng, output, rng.choice((1, 1, 2)), eaten))
    return rivals
