"""The expert of the crafting world, and a demonstrator that slips.

The planner makes what is needed bottom-up in the reverse order of the recipe list, fetching the base items
of a recipe just before crafting it. The demonstrator follows it and slips at a given rate, mostly into a
wasteful craft, so that a policy cloned from it errs by the step and not by the task.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from langgraph_amc.demo.crafting import CraftingEnv, CraftingTask, Recipe, craft_text


@dataclass(frozen=True, slots=True)
class Slips:
    """Chance of a slip per step: into a wasteful craft, into a harmless action."""

    wasteful: float = 0.0
    harmless: float = 0.0


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One step of a demonstration; ``slip`` tells that the expert would have done something else."""

    thought: str
    action: str
    observation: str
    slip: bool

    @property
    def message(self) -> str:
        """The assistant's turn in ReAct form."""
        return f"Thought: {self.thought}\nAction: {self.action}"


def plan(task: CraftingTask, held: Mapping[str, int], left: Mapping[str, float]) -> list[str] | None:
    """Actions from inventory ``held`` and stock ``left`` to the goal; ``None`` if the stock forbids it.

    Exact for plain items; tags are filled greedily with the member that is most plentiful after the needs of
    plain items are set aside.
    """
    needed = task.needed
    tags = dict(task.tags)
    need: Counter[str] = Counter({task.goal: 1})
    runs: dict[str, int] = {}
    for recipe in needed:
        missing = need[recipe.output] - held.get(recipe.output, 0)
        runs[recipe.output] = max(0, math.ceil(missing / recipe.count))
        for amount, name in recipe.parts:
            need[name] += amount * runs[recipe.output]
    free = {item: left[item] + held.get(item, 0) - need[item] for item in left}
    if any(amount < 0 for amount in free.values()):
        return None
    have = Counter(held)
    actions: list[str] = []
    for recipe in reversed(needed):
        for _ in range(runs[recipe.output]):
            parts = []
            for amount, name in recipe.parts:
                item = name
                if name in tags:
                    item = max(tags[name], key=lambda member: free[member])
                    free[item] -= amount
                    if free[item] < 0:
                        return None
                if item in left and have[item] < amount:
                    actions.append(f"get {amount - have[item]} {item}")
                    have[item] = amount
                have[item] -= amount
                parts.append((amount, item))
            actions.append(craft_text(recipe.count, recipe.output, tuple(parts)))
            have[recipe.output] += recipe.count
    return actions


def demonstrate(task: CraftingTask, rng: random.Random, slips: Slips, doomed_steps: int = 2) -> list[DemoStep]:
    """One demonstration; after a fatal slip, ``doomed_steps`` more steps as if the stock were endless."""
    env = CraftingEnv()
    env.reset(task)
    steps: list[DemoStep] = []
    endless = dict.fromkeys(env.left, math.inf)
    while not env.done:
        actions = plan(task, env.held, env.left)
        if actions is None:
            if doomed_steps == 0:
                break
            doomed_steps -= 1
            actions = plan(task, env.held, endless)
            assert actions is not None  # endless stock always allows a plan
        action, slip = actions[0], False
        rival = _rival(env, action)
        draw = rng.random()
        if draw < slips.wasteful and rival is not None:
            action, slip = rival, True
        elif draw > 1.0 - slips.harmless:
            action, slip = _harmless(env, actions, rng), True
        # a recipe's craft follows its gets, so the next craft of the plan tells what is being made
        craft = action if action.startswith("craft") else next(a for a in actions if a.startswith("craft"))
        made = craft.split()[2]
        label = next(x for x, r in zip(task.labels, task.recipes, strict=True) if r.output == made)
        observation, _, _, _ = env.step(action)
        steps.append(DemoStep(f"{label} {made}", action, observation, slip))
    return steps


def _rival(env: CraftingEnv, action: str) -> str | None:
    """The possible craft that eats the parts of the recipe which ``action`` is about to apply."""
    needed = env.task.needed
    for recipe, rival in zip(needed, env.task.recipes[len(needed) :], strict=False):
        if action.startswith(f"craft {recipe.count} {recipe.output} "):
            craft, possible = _with_held(env, rival)
            return craft if possible else None
    return None


def _with_held(env: CraftingEnv, recipe: Recipe) -> tuple[str, bool]:
    """The craft of ``recipe`` with the tag members held most, and whether it is possible now."""
    tags, held = dict(env.task.tags), env.held
    parts = tuple((n, max(tags.get(name, (name,)), key=lambda i: held[i])) for n, name in recipe.parts)
    return craft_text(recipe.count, recipe.output, parts), all(held[item] >= n for n, item in parts)


def _harmless(env: CraftingEnv, actions: list[str], rng: random.Random) -> str:
    """A slip that wastes only a step: a look, a later action too early, an odd fetch, a craft without the parts."""
    kind = rng.random()
    crafts = [_with_held(env, recipe) for recipe in env.task.recipes]
    impossible = [craft for craft, possible in crafts if not possible]
    if kind < 0.4 and impossible:
        return rng.choice(impossible)
    if kind < 0.7 and len(actions) > 1:
        return rng.choice(actions[1:])
    if kind < 0.85:
        return f"get {rng.randint(1, 2)} {rng.choice(list(env.left))}"
    return "inventory"
