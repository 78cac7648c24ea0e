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

from langgraph_amc.demo.crafting import CraftingEnv, CraftingTask, craft_text


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


def demonstrate(
    task: CraftingTask, rng: random.Random, slips: Slips, doomed_steps: int = 2
) -> list[DemoStep]:
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
        draw = rng.random()
        if draw < slips.wasteful:
            action, slip = _wasteful(env, rng), True
        elif draw < slips.wasteful + slips.harmless:
            action, slip = _harmless(env, actions, rng), True
        # a recipe's craft follows its gets, so the next craft of the plan tells what is being made
        craft = action if action.startswith("craft") else next(a for a in actions if a.startswith("craft"))
        made = craft.split()[2]
        number = next(k for k, recipe in enumerate(task.recipes, 1) if recipe.output == made)
        observation, _, _, _ = env.step(action)
        steps.append(DemoStep(f"r{number} {made}", action, observation, slip))
    return steps


def _wasteful(env: CraftingEnv, rng: random.Random) -> str:
    """A craft that nothing on the way to the goal asks for; mostly one that is possible now, if there is one."""
    tags, held, needed = dict(env.task.tags), env.held, env.task.needed
    possible, impossible = [], []
    for recipe in env.task.recipes:
        if recipe in needed:
            continue
        parts = tuple((n, max(tags.get(name, (name,)), key=lambda i: held[i])) for n, name in recipe.parts)
        group = possible if all(held[item] >= n for n, item in parts) else impossible
        group.append(craft_text(recipe.count, recipe.output, parts))
    return rng.choice(possible if possible and (not impossible or rng.random() < 0.75) else impossible)


def _harmless(env: CraftingEnv, actions: list[str], rng: random.Random) -> str:
    """A slip that wastes only a step: a look into the bag, a later action too early, an odd fetch."""
    kind = rng.random()
    if kind < 0.25:
        return "inventory"
    if kind < 0.6 and len(actions) > 1:
        return rng.choice(actions[1:])
    return f"get {rng.randint(1, 2)} {rng.choice(list(env.left))}"
