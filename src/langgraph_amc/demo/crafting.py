"""A small text crafting world with finite or unlimited stock: the demo's environment.

The agent reads recipes, a stock and a goal, and acts with ``get N item``, ``craft N item using a X , b Y``
and ``inventory`` (the action language of TextCraft, Prasad et al. 2023). With finite stock a wasteful craft
cannot be undone, which is what makes resampling pay; with unlimited stock every slip can be repaired.
Deterministic, JSON-able snapshots, no randomness of its own.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from langgraph_amc.errors import AMCError

Stock = Literal["finite", "unlimited"]
_GET = re.compile(r"get (\d{1,3}) (\w+)")
_CRAFT = re.compile(r"craft (\d{1,3}) (\w+) using (.+)")
_PART = re.compile(r"(\d{1,3}) (\w+)")
_ACTION = re.compile(r"action\s*:", re.IGNORECASE)


class CraftingError(AMCError):
    """A crafting task or snapshot is malformed, or the environment was used before ``reset``."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe: ``count`` pieces of ``output`` from ``parts``; a shaped recipe also has a grid.

    ``parts`` are (amount, item or tag) pairs in reading order. ``pattern`` holds the rows of the grid and
    ``key`` the (symbol, item) pairs; both are empty for a shapeless recipe. Text shows amounts only.
    """

    output: str
    count: int
    parts: tuple[tuple[int, str], ...]
    pattern: tuple[str, ...] = ()
    key: tuple[tuple[str, str], ...] = ()

    @classmethod
    def shaped(cls, output: str, count: int, pattern: tuple[str, ...], key: Mapping[str, str]) -> Recipe:
        """Build a recipe from a grid: every symbol of ``pattern`` but the space is one ``key[symbol]``."""
        amounts = Counter(symbol for row in pattern for symbol in row if symbol != " ")
        parts = tuple((amounts[symbol], item) for symbol, item in key.items())
        return cls(output, count, parts, pattern, tuple(key.items()))

    @property
    def text(self) -> str:
        """The recipe as a line of the prompt; a legal action when no part is a tag."""
        return craft_text(self.count, self.output, self.parts)


@dataclass(frozen=True, slots=True)
class CraftingTask:
    """One task: make one ``goal`` within ``step_limit`` steps.

    ``recipes`` are listed dependents first; after the needed ones come their rivals in the same order, which
    nobody needs and which eat the same parts. ``tags`` maps a tag to the items that satisfy it. ``supply`` are
    the base items and how often each can be had; with ``stock="unlimited"`` only the names count.
    """

    task_id: str
    seed: int
    goal: str
    recipes: tuple[Recipe, ...]
    tags: tuple[tuple[str, tuple[str, ...]], ...]
    supply: tuple[tuple[str, int], ...]
    stock: Stock
    step_limit: int

    @property
    def needed(self) -> tuple[Recipe, ...]:
        """The recipes on the way to the goal, in list order."""
        wanted, needed = {self.goal}, []
        for recipe in self.recipes:
            if recipe.output in wanted:
                needed.append(recipe)
                wanted.update(name for _, name in recipe.parts)
        return tuple(needed)

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of each recipe: r1, r2, ... for the needed ones, r1b, r2b, ... for their rivals."""
        n = len(self.needed)
        return tuple(f"r{k + 1}" if k < n else f"r{k - n + 1}b" for k in range(len(self.recipes)))

    @property
    def prompt(self) -> str:
        """The first user message: goal, recipes, tags and stock."""
        book = [f"{label} : {recipe.text}" for label, recipe in zip(self.labels, self.recipes, strict=True)]
        n = len(self.needed)
        lines = [f"Goal: {self.goal}", "Recipes:", *book[:n], "Other:", *book[n:]]
        lines += [f"any {tag} : {' or '.join(members)}" for tag, members in self.tags]
        if self.stock == "finite":
            lines.append("Stock: " + " , ".join(f"{amount} {item}" for item, amount in self.supply))
        else:
            lines.append("Stock: unlimited " + " , ".join(item for item, _ in self.supply))
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON-able data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CraftingTask:
        """Inverse of `to_dict`, also after a JSON round trip."""
        try:
            fields = dict(data)
            fields["recipes"] = tuple(
                Recipe(
                    output=r["output"],
                    count=r["count"],
                    parts=tuple((int(n), str(i)) for n, i in r["parts"]),
                    pattern=tuple(r["pattern"]),
                    key=tuple((str(s), str(i)) for s, i in r["key"]),
                )
                for r in data["recipes"]
            )
            fields["tags"] = tuple((str(tag), tuple(members)) for tag, members in data["tags"])
            fields["supply"] = tuple((str(item), int(n)) for item, n in data["supply"])
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise CraftingError(f"not a crafting task ({error!r}); write it with to_dict") from error


def craft_text(count: int, output: str, parts: tuple[tuple[int, str], ...]) -> str:
    """``craft N output using a X , b Y``."""
    return f"craft {count} {output} using " + " , ".join(f"{n} {item}" for n, item in parts)


def parse_action(text: str) -> str:
    """The command in an assistant message: what follows the last ``Action:``, up to the end of its line."""
    after = _ACTION.split(text)[-1].strip()
    line = after.splitlines()[0] if after else ""
    return " ".join(line.replace(",", " , ").split())


class CraftingEnv:
    """The crafting world as an environment: ``reset``, ``step``, ``snapshot``, ``restore``, ``close``."""

    def __init__(self) -> None:
        self._task: CraftingTask | None = None
        self._held: Counter[str] = Counter()
        self._left: dict[str, int] = {}
        self._steps = 0
        self._done = False

    @property
    def task(self) -> CraftingTask:
        """The task of the last ``reset``."""
        if self._task is None:
            raise CraftingError("the environment has no task yet; call reset(task) first")
        return self._task

    @property
    def held(self) -> Counter[str]:
        """What the agent carries (a copy)."""
        return Counter(self._held)

    @property
    def left(self) -> dict[str, float]:
        """What the stock still holds of each base item; infinite for unlimited stock (a copy)."""
        if self.task.stock == "unlimited":
            return dict.fromkeys(self._left, math.inf)
        return dict(self._left)

    @property
    def done(self) -> bool:
        """Whether the goal was made or the steps are used up."""
        return self._done

    @property
    def success(self) -> bool:
        """Whether the goal was made."""
        return self._held[self.task.goal] > 0

    @property
    def steps_left(self) -> int:
        """Steps until the limit."""
        return self.task.step_limit - self._steps

    def reset(self, task: CraftingTask) -> str:
        """Start ``task`` and return its prompt."""
        self._task = task
        self._held = Counter()
        self._left = dict(task.supply)
        self._steps, self._done = 0, False
        return task.prompt

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Carry out one action; returns (observation, reward, done, info), reward 1.0 at the goal, else 0.0.

        A refused action costs a step and changes nothing else; the observation says why.
        """
        limit = self.task.step_limit
        if self._done:
            raise CraftingError("the episode is over; call reset(task) to start another")
        observation, valid = self._apply(parse_action(action))
        self._steps += 1
        self._done = self.success or self._steps >= limit
        info = {"success": self.success, "valid": valid, "steps_left": self.steps_left}
        return observation, float(self.success), self._done, info

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON-able data (the task itself excluded)."""
        return {
            "task_id": self.task.task_id,
            "held": dict(sorted(self._held.items())),
            "left": dict(self._left),
            "steps": self._steps,
            "done": self._done,
        }

    def restore(self, token: Mapping[str, Any]) -> None:
        """Go back to a `snapshot` of the same task."""
        if token.get("task_id") != self.task.task_id:
            raise CraftingError(
                f"the snapshot is of task {token.get('task_id')!r}, the environment runs "
                f"{self.task.task_id!r}; reset it to the snapshot's task first"
            )
        self._held = Counter(token["held"])
        self._left = dict(token["left"])
        self._steps, self._done = int(token["steps"]), bool(token["done"])

    def close(self) -> None:
        """Nothing to release; present because the environment protocol asks for it."""

    def _apply(self, command: str) -> tuple[str, bool]:
        if command == "inventory":
            held = " , ".join(f"{n} {item}" for item, n in sorted(self._held.items()) if n)
            return f"Inventory: {held or 'empty'}", True
        if match := _GET.fullmatch(command):
            return self._get(int(match[1]), match[2])
        if match := _CRAFT.fullmatch(command):
            parts = [_PART.fullmatch(part) for part in match[3].split(" , ")]
            if all(parts):
                return self._craft(match[2], Counter({p[2]: int(p[1]) for p in parts if p}), len(parts))
        return "Unknown action", False

    def _get(self, amount: int, item: str) -> tuple[str, bool]:
        if item not in self._left or amount < 1:
            return f"Cannot get {item}" if item not in self._left else "Unknown action", False
        if self.task.stock == "unlimited":
            self._held[item] += amount
            return f"Got {amount} {item}", True
        if self._left[item] < amount:
            return f"Not enough {item} , {self._left[item]} left", False
        self._left[item] -= amount
        self._held[item] += amount
        return f"Got {amount} {item} , {self._left[item]} left", True

    def _craft(self, output: str, given: Counter[str], kinds: int) -> tuple[str, bool]:
        recipe = next((r for r in self.task.recipes if r.output == output and self._fits(r, given)), None)
        if recipe is None or len(given) != kinds:
            return f"No recipe for {output} using that", False
        for item, amount in given.items():
            if self._held[item] < amount:
                return f"Missing {amount - self._held[item]} {item}", False
        self._held -= given
        self._held[output] += recipe.count
        return f"Crafted {recipe.count} {output}", True

    def _fits(self, recipe: Recipe, given: Counter[str]) -> bool:
        """Whether ``given`` are exactly the parts of one application, a tag standing for any one member."""
        if len(given) != len(recipe.parts):
            return False
        tags = dict(self.task.tags)
        open_items = dict(given)
        # plain items first: a member that is also asked for by name must not be spent on the tag
        for amount, name in sorted(recipe.parts, key=lambda part: part[1] in tags):
            options = tags.get(name, (name,))
            found = next((i for i in options if open_items.get(i) == amount), None)
            if found is None:
                return False
            del open_items[found]
        return True
