"""TextCraft's tasks: one per item that can be crafted, with ids and splits that no machine changes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType

from langgraph_amc.tasks import Task, TaskSet
from langgraph_amc_textcraft.planner import plan
from langgraph_amc_textcraft.recipes import load_book
from langgraph_amc_textcraft.world import STEP_LIMIT, TextCraftTask

FRACTIONS: Mapping[str, float] = MappingProxyType({"train": 0.6, "tune": 0.15, "test": 0.25})
"""Expected share of the families in each split."""


def tasks(*, infeasible: bool = False, min_depth: int = 1) -> TaskSet:
    """The tasks, by depth and then by name.

    Metadata: ``depth``, ``plan_steps`` (length of a short plan) and ``index``, the place among all tasks.

    Parameters
    ----------
    infeasible: also those whose plan takes more than the step limit; the original has them.
    min_depth: only goals of at least this depth; the AMC paper's figures seem to be on depth 3 and more.
    """
    chosen = (
        task
        for task in _all_tasks()
        if task.metadata["depth"] >= min_depth and (infeasible or task.metadata["plan_steps"] <= STEP_LIMIT)
    )
    return TaskSet(chosen)


@functools.cache
def _all_tasks() -> TaskSet:
    book = load_book()
    goals = sorted(book.recipes, key=lambda item: (book.depth[item], item))
    families = TaskSet(Task(name, name) for name in sorted({family(goal) for goal in goals}))
    split = {task.id: task.split for task in families.random_split(FRACTIONS)}
    return TaskSet(
        Task(
            f"textcraft-{goal}",
            {"task": asdict(TextCraftTask(goal))},
            metadata={"depth": book.depth[goal], "plan_steps": len(plan(book, goal)), "index": index},
            split=split[family(goal)],
        )
        for index, goal in enumerate(goals)
    )


def family(item: str) -> str:
    """An item's name without its colour or wood: ``bed`` for ``light_blue_bed``.

    A blue bed is made as a red one is, so a family is in one split as a whole.
    """
    for variant in _variants():
        if item.startswith(f"{variant}_"):
            return item.removeprefix(f"{variant}_")
    return item


@functools.cache
def _variants() -> tuple[str, ...]:
    """The colours and woods, longest first: ``light_blue`` before ``blue``."""
    tags = load_book().tags
    names = [member.removesuffix(f"_{tag}") for tag in ("planks", "wool") for member in tags[tag]]
    return tuple(sorted(names, key=lambda name: (-len(name), name)))
