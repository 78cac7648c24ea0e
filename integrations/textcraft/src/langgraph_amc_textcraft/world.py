"""TextCraft as an environment: text in, text out, JSON-able snapshots, no randomness while it runs.

Words and rules are those of the original, AgentGym's server as the AMC paper uses it; the README lists where
an answer differs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from langgraph_amc.errors import AMCError
from langgraph_amc_textcraft.recipes import Recipe, RecipeBook, load_book, spoken

STEP_LIMIT = 20
DISTRACTORS = 10

# Like the original these match a beginning, so "inventory!" is understood. Nine digits are enough for any
# recipe, and unlimited ones would let one action take a gigabyte.
_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get (\d{1,9}) (.*)")
_INVENTORY = re.compile(r"inventory")
_AMOUNT = re.compile(r"(\d{1,9}) (.*)")


class TextCraftError(AMCError, ValueError):
    """A task or snapshot that is none of TextCraft's, or a world used outside an episode."""


class _Refused(Exception):
    """An action that changes nothing; its text is the observation."""


@dataclass(frozen=True, slots=True)
class TextCraftTask:
    """Craft one ``goal`` (an item such as ``oak_boat``) within ``step_limit`` steps."""

    goal: str
    step_limit: int = STEP_LIMIT

    def __post_init__(self) -> None:
        if self.goal not in load_book().recipes:
            raise TextCraftError(f"nothing makes {self.goal!r}: a goal is an item that a recipe makes")
        if self.step_limit < 1:
            raise TextCraftError(f"a step limit is at least 1, not {self.step_limit}")

    @classmethod
    def of(cls, data: TextCraftTask | Mapping[str, Any]) -> TextCraftTask:
        """A task from its fields, for example out of a graph's state."""
        if isinstance(data, TextCraftTask):
            return data
        try:
            return cls(**data)
        except TypeError as exc:
            raise TextCraftError(f"a TextCraft task has a goal and perhaps a step_limit: {exc}") from exc


def commands(book: RecipeBook, goal: str) -> tuple[Recipe, ...]:
    """The recipes that a task shows: all on any way to the goal and up to ten others with the same parts.

    Drawn and shuffled by the goal's name alone, so that a task's text is the same everywhere.
    """
    rng = random.Random(f"textcraft:{goal}")
    needed = book.below(goal)
    parts = {name for recipe in needed for _, name in recipe.parts}
    others = [recipe for recipe in book.using(parts) if recipe not in needed]
    shown = [*needed, *rng.sample(others, min(DISTRACTORS, len(others)))]
    rng.shuffle(shown)
    return tuple(shown)


class TextCraft:
    """The world as a `langgraph_amc.tasks.Environment`. Base items are unlimited and can be had anywhere."""

    def __init__(self) -> None:
        self._book = load_book()
        self._task: TextCraftTask | None = None
        self._held: dict[str, int] = {}
        self._steps = 0

    @property
    def task(self) -> TextCraftTask:
        """What is to be crafted."""
        if self._task is None:
            raise TextCraftError("the world has no task yet: call reset(task) or restore(token) first")
        return self._task

    @property
    def solved(self) -> bool:
        """Whether the goal has been crafted."""
        return self.task.goal in self._held

    @property
    def done(self) -> bool:
        """Whether the goal has been crafted or the steps are used up."""
        return self.solved or self._steps >= self.task.step_limit

    def reset(self, task: TextCraftTask | Mapping[str, Any]) -> str:
        """Start a task with empty hands; returns its text."""
        self._task, self._held, self._steps = TextCraftTask.of(task), {}, 0
        lines = "\n".join(recipe.text for recipe in commands(self._book, self.task.goal))
        return f"Crafting commands:\n{lines}\n\nGoal: craft {spoken(self.task.goal)}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Act; observation, reward (1 at the goal, else 0), done, and info with ``solved`` and ``valid``.

        A refused action costs a step and changes nothing else. Raises `TextCraftError` after the end.
        """
        if self.done:
            raise TextCraftError("the episode is over: call reset(task) to start another")
        self._steps += 1
        valid = True
        try:
            observation = self._apply(action)
        except _Refused as refused:
            observation, valid = str(refused), False
        return observation, float(self.solved), self.done, {"solved": self.solved, "valid": valid}

    def snapshot(self) -> dict[str, Any]:
        """The whole state, task included, as JSON-able data."""
        # Pairs: the inventory is shown in the order it was filled, and JSON writers may sort an object's keys.
        held = [[item, amount] for item, amount in self._held.items()]
        return {"task": asdict(self.task), "held": held, "steps": self._steps}

    def restore(self, token: Mapping[str, Any]) -> None:
        """Go to a snapshot's state, whichever world took it."""
        try:
            task = TextCraftTask.of(token["task"])
            held, steps = {str(item): int(amount) for item, amount in token["held"]}, int(token["steps"])
        except (KeyError, TypeError, ValueError) as exc:
            raise TextCraftError(f"this is no snapshot of TextCraft ({exc!r}): pass what snapshot() gave") from exc
        self._task, self._held, self._steps = task, held, steps

    def close(self) -> None:
        """Nothing to free."""

    def _apply(self, action: str) -> str:
        if match := _CRAFT.match(action):
            return self._craft(match[1], match[2])
        if match := _GET.match(action):
            return self._get(int(match[1]), match[2])
        if _INVENTORY.match(action):
            held = "".join(f"[{spoken(item)}] ({amount}) " for item, amount in self._held.items())
            return f"Inventory: {held or 'You are not carrying anything.'}"
        raise _Refused(f"Could not execute {action}")

    def _get(self, amount: int, name: str) -> str:
        item = _item(name)
        if item not in self._book.base:
            raise _Refused(f"Could not find {name}")
        self._held[item] = self._held.get(item, 0) + amount
        return f"Got {amount} {name}"

    def _craft(self, output: str, using: str) -> str:
        # The stated number is not looked at, as in the original.
        wanted = _item(match[2] if (match := _AMOUNT.match(output)) else output)
        given: list[tuple[int, str]] = []
        for part in map(str.strip, using.split(",")):
            if not (match := _AMOUNT.match(part)):
                raise _Refused(f"Wrong item format: {part}")
            given.append((int(match[1]), _item(match[2])))
        total: dict[str, int] = {}
        for amount, item in given:
            total[item] = total.get(item, 0) + amount
        if any(item not in self._held or self._held[item] < amount for item, amount in total.items()):
            raise _Refused(f"Could not find enough items to craft minecraft:{wanted}")
        recipe = next((r for r in self._book.recipes.get(wanted, ()) if self._fits(r, given)), None)
        if recipe is None:
            raise _Refused(f"Could not find a valid recipe for {spoken(wanted)}")
        for item, amount in total.items():
            self._held[item] -= amount
            if not self._held[item]:
                del self._held[item]
        self._held[wanted] = self._held.get(wanted, 0) + recipe.count
        return f"Crafted {recipe.count} minecraft:{wanted}"

    def _fits(self, recipe: Recipe, given: list[tuple[int, str]]) -> bool:
        """Whether ``given`` are just the recipe's parts, in any order, one kind of item for each tag."""
        left = list(given)
        # Plain items first: one that is asked for by name must not go to a tag.
        for amount, name in sorted(recipe.parts, key=lambda part: part[1] in self._book.tags):
            members = self._book.tags.get(name, (name,))
            found = next((part for part in left if part[0] == amount and part[1] in members), None)
            if found is None:
                return False
            left.remove(found)
        return not left


def _item(name: str) -> str:
    return name.replace(" ", "_")
