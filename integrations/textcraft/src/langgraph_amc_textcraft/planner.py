"""A short plan for any goal: the proof that a task can be solved, and in how many steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from langgraph_amc_textcraft.recipes import RecipeBook, craft_text, spoken

_Choices = Mapping[str, int]
"""Which of its recipes an item is made by, which of its members a tag stands for; 0 where not given."""


def plan(book: RecipeBook, goal: str) -> list[str]:
    """Actions that craft ``goal`` from nothing: one ``get`` per base item, then the crafts bottom-up.

    Short, not proven shortest: choices among recipes and among a tag's members are improved one by one until
    no single change makes the plan shorter. Raises `KeyError` for a goal that nothing makes.
    """
    choices = {name: 0 for name in _reachable(book, goal) if _options(book, name) > 1}
    best = _length(book, goal, choices)
    improved = True
    while improved:
        improved = False
        for name in choices:
            for option in range(_options(book, name)):
                length = _length(book, goal, choices | {name: option})
                if length < best:
                    best, choices[name], improved = length, option, True
    return _actions(book, goal, choices)


def _reachable(book: RecipeBook, goal: str) -> list[str]:
    names = {goal}
    for recipe in book.below(goal):
        names.update((recipe.output, *(name for _, name in recipe.parts)))
    return [name for name in book.order if name in names]


def _options(book: RecipeBook, name: str) -> int:
    return len(book.tags.get(name) or book.recipes.get(name, ()))


def _need(book: RecipeBook, goal: str, choices: _Choices) -> tuple[dict[str, int], dict[str, int]]:
    """Crafts per item and pieces per base item, dependents first."""
    need = Counter({goal: 1})
    crafts: dict[str, int] = {}
    fetched: dict[str, int] = {}
    for name in book.order:
        if not need[name]:
            continue
        if name in book.tags:
            need[book.tags[name][choices.get(name, 0)]] += need[name]
        elif name in book.recipes:
            recipe = book.recipes[name][choices.get(name, 0)]
            crafts[name] = math.ceil(need[name] / recipe.count)
            for amount, part in recipe.parts:
                need[part] += amount * crafts[name]
        else:
            fetched[name] = need[name]
    return crafts, fetched


def _length(book: RecipeBook, goal: str, choices: _Choices) -> int:
    crafts, fetched = _need(book, goal, choices)
    return sum(crafts.values()) + len(fetched)


def _actions(book: RecipeBook, goal: str, choices: _Choices) -> list[str]:
    if goal not in book.recipes:
        raise KeyError(f"{goal!r} is no goal: nothing makes it")
    crafts, fetched = _need(book, goal, choices)
    actions = [f"get {amount} {spoken(item)}" for item, amount in sorted(fetched.items())]
    for item in reversed(crafts):
        recipe = book.recipes[item][choices.get(item, 0)]
        parts = [(n, book.tags[name][choices.get(name, 0)] if name in book.tags else name) for n, name in recipe.parts]
        actions += [craft_text(recipe.count, item, parts)] * crafts[item]
    return actions
