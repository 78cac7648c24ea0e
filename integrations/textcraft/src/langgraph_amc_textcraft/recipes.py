"""TextCraft's recipe graph, rebuilt from the recipes of Minecraft 1.16.2 in the package ``minecraft-data``.

TextCraft (Prasad et al. 2023, ADaPT; AgentGym; the AMC paper's crafting tasks) reads the game's own recipe
files. Those are not ours to ship, and ``minecraft-data`` (MIT) has written their item tags out: "3 planks" is
eight recipes there. So tags are put back by rule (`_choice`), and everything is sorted, so that the graph, its
depths and the tasks on it are the same on every machine.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from types import MappingProxyType
from typing import Any

from langgraph_amc.errors import AMCError

VERSION = "1.16.2"
"""The newest recipes that ``minecraft-data`` has for 1.16.5, the version TextCraft uses."""

GENERIC = ("planks", "wool")
"""Tags that any of their members satisfies. The original can fetch every other tag like a base item (``get 1
oak logs``), as none of its craftable items is of a recipe group with the tag's name."""

_WOOD = re.compile(r"(?:stripped_)?(\w+?)_(log|wood|stem|hyphae)")
_COALS = ("coal", "charcoal")
_Cells = tuple[str | None, ...]


class RecipeDataError(AMCError):
    """The recipes of ``minecraft-data`` are not as they were when the rules for tags were written."""


@dataclass(frozen=True, slots=True, order=True)
class Recipe:
    """``count`` pieces of ``output`` from ``parts``: (amount, item or tag), each name once."""

    output: str
    count: int
    parts: tuple[tuple[int, str], ...]

    @property
    def text(self) -> str:
        """The recipe as TextCraft prints it; an action as well, when no part is a tag."""
        return craft_text(self.count, self.output, self.parts)


@dataclass(frozen=True, slots=True)
class RecipeBook:
    """An acyclic recipe graph.

    Attributes
    ----------
    recipes: per craftable item, in sorted order.
    tags: members of the generic tags.
    items: all items, base items included; no tags.
    depth: least number of crafts in a row that an item (or tag) takes; 0 for base items.
    order: items and tags, each after everything that it can be made into.
    """

    recipes: Mapping[str, tuple[Recipe, ...]]
    tags: Mapping[str, tuple[str, ...]]
    items: frozenset[str]
    depth: Mapping[str, int]
    order: tuple[str, ...]

    @property
    def base(self) -> frozenset[str]:
        """The items that can be fetched: those that nothing makes."""
        return self.items - self.recipes.keys()

    def makers(self, name: str) -> tuple[Recipe, ...]:
        """The recipes that make an item, or any member of a tag; none for a base item."""
        members = self.tags.get(name, (name,))
        return tuple(recipe for member in members for recipe in self.recipes.get(member, ()))

    def below(self, goal: str) -> tuple[Recipe, ...]:
        """All recipes on any way to ``goal``, sorted."""
        found: set[Recipe] = set()
        waiting = [goal]
        while waiting:
            for recipe in self.makers(waiting.pop()):
                if recipe not in found:
                    found.add(recipe)
                    waiting += [name for _, name in recipe.parts]
        return tuple(sorted(found))

    def using(self, names: Iterable[str]) -> tuple[Recipe, ...]:
        """All recipes with one of ``names`` among their parts, sorted."""
        wanted = set(names)
        uses = (r for rs in self.recipes.values() for r in rs if any(name in wanted for _, name in r.parts))
        return tuple(sorted(uses))


def craft_text(count: int, output: str, parts: Iterable[tuple[int, str]]) -> str:
    """``craft 4 oak sign using 6 oak planks, 1 stick``."""
    return f"craft {count} {spoken(output)} using " + ", ".join(f"{n} {spoken(name)}" for n, name in parts)


def spoken(item: str) -> str:
    """An item's name as text: ``oak log`` for ``oak_log``."""
    return item.replace("_", " ")


@functools.cache
def load_book() -> RecipeBook:
    """The recipe graph, built once; raises `RecipeDataError` for data it does not know how to read."""
    book = build_book(*read_recipes())
    if not book.recipes or any(not book.tags.get(tag) for tag in GENERIC):
        raise RecipeDataError("minecraft-data has no recipes, or none for planks and wool: install version 3.20")
    return book


def build_book(recipes: Iterable[Recipe], tags: Mapping[str, tuple[str, ...]]) -> RecipeBook:
    """The graph of ``recipes`` without cycles; the order they are given in does not matter.

    Two kinds are left out, as in the original: those that unpack a block (the only part ends in ``_block``),
    and those that make something out of what it takes to make: in sorted order, the one that closes a cycle.
    """
    kept: dict[str, list[Recipe]] = {}
    known: set[str] = set()
    needs: dict[str, set[str]] = {tag: set(members) for tag, members in tags.items()}
    for recipe in sorted(set(recipes)):
        names = [name for _, name in recipe.parts]
        known.update((recipe.output, *names))
        unpacks = len(names) == 1 and names[0].endswith("_block")
        if unpacks or recipe.output in _closure(names, needs):
            continue
        kept.setdefault(recipe.output, []).append(recipe)
        needs.setdefault(recipe.output, set()).update(names)
    book = {item: tuple(rs) for item, rs in sorted(kept.items())}
    order = _order(known | tags.keys(), needs)
    depth: dict[str, int] = {}
    for name in reversed(order):
        if name in tags:
            depth[name] = min(depth[member] for member in tags[name])
        else:
            depth[name] = min((1 + max(depth[p] for _, p in r.parts) for r in book.get(name, ())), default=0)
    return RecipeBook(
        recipes=MappingProxyType(book),
        tags=MappingProxyType(dict(tags)),
        items=frozenset(known - tags.keys()),
        depth=MappingProxyType(depth),
        order=order,
    )


def _closure(names: Iterable[str], needs: Mapping[str, set[str]]) -> set[str]:
    """``names`` and all that they are made of."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += needs.get(name, ())
    return found


def _order(names: Iterable[str], needs: Mapping[str, set[str]]) -> tuple[str, ...]:
    """Every name before all that it needs; depth first over sorted names."""
    finished: dict[str, None] = {}

    def visit(name: str) -> None:
        if name not in finished:
            for part in sorted(needs.get(name, ())):
                visit(part)
            finished[name] = None

    for name in sorted(names):
        visit(name)
    return tuple(reversed(finished))


def read_recipes() -> tuple[list[Recipe], dict[str, tuple[str, ...]]]:
    """The recipes of the data with tags put back, unsorted and with cycles, and the generic tags' members."""
    names = {item["id"]: item["name"] for item in _data("items")}
    recipes: list[Recipe] = []
    tags: dict[str, tuple[str, ...]] = {}
    for output_id, variants in _data("recipes").items():
        output = names[int(output_id)]
        groups: dict[Any, list[_Cells]] = {}
        for variant in variants:
            rows = variant.get("inShape", [variant.get("ingredients", [])])
            cells = tuple(None if cell is None else names[cell] for row in rows for cell in row)
            # Variants of one recipe fill the same cells; another layout or yield is another recipe.
            layout = ("inShape" in variant, variant["result"]["count"], tuple(map(len, rows)))
            groups.setdefault((*layout, tuple(cell is None for cell in cells)), []).append(cells)
        for (shaped, count, *_), group in groups.items():
            for cells in _merge(output, group, shaped, tags):
                recipes.append(_recipe(output, count, cells))
    return recipes, dict(sorted(tags.items()))


def _merge(output: str, group: list[_Cells], shaped: bool, tags: dict[str, tuple[str, ...]]) -> Iterator[_Cells]:
    """One recipe for variants of which a cell's choices are a tag or a list, else the variants as they are."""
    choices = [tuple(dict.fromkeys(column)) for column in zip(*group, strict=True)]
    open_choices = {choice for choice in choices if len(choice) > 1}
    if not shaped and not all(choice == _COALS or _tag(choice, output) for choice in open_choices):
        yield from group
        return
    if len(set(group)) != prod(map(len, open_choices)):
        raise RecipeDataError(
            f"the variants of {output} in minecraft-data are no choice per ingredient: install version 3.20"
        )
    merged: list[str | None] = []
    for choice in choices:
        tag = _tag(choice, output) if len(choice) > 1 else None
        if tag in GENERIC:
            tags[tag] = tuple(sorted(str(member) for member in choice))
        # Where the game lists alternatives without a tag, the original takes the first.
        merged.append(tag or choice[0])
    yield tuple(merged)


def _tag(choice: _Cells, output: str) -> str | None:
    """The game's name for a choice of items, ``None`` if it is a mere list."""
    members = [str(member) for member in choice]
    for ending, tag in (("_planks", "planks"), ("_slab", "wooden_slabs"), ("_wool", "wool")):
        if all(member.endswith(ending) for member in members):
            return tag
    woods = [match for member in members if (match := _WOOD.fullmatch(member))]
    if len(woods) == len(members):
        if len({wood[1] for wood in woods}) > 1:
            return "logs"
        return f"{woods[0][1]}_{'stems' if any(wood[2] == 'stem' for wood in woods) else 'logs'}"
    if set(members) == {"cobblestone", "blackstone"}:
        return "stone_tool_materials" if output.startswith("stone_") else "stone_crafting_materials"
    if set(members) == {"soul_sand", "soul_soil"}:
        return "soul_fire_base_blocks"
    # Torches list the two coals, campfires use their tag.
    return "coals" if choice == _COALS and output == "campfire" else None


def _recipe(output: str, count: int, cells: _Cells) -> Recipe:
    amounts: dict[str, int] = {}
    for cell in cells:
        if cell is not None:
            amounts[cell] = amounts.get(cell, 0) + 1
    return Recipe(output, count, tuple((n, name) for name, n in amounts.items()))


def _data(kind: str) -> Any:
    """One file of the data; the package's own loader reads all of a version."""
    data = files("minecraft_data") / "data" / "data"
    folder = json.loads((data / "dataPaths.json").read_text("utf-8"))["pc"][VERSION][kind]
    return json.loads((data / folder / f"{kind}.json").read_text("utf-8"))
