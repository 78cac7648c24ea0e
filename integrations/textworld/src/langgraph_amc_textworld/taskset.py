"""TextWorld's tasks: games of four kinds and three levels, with ids, splits and games that no machine changes."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from langgraph_amc.tasks import Task, TaskSet
from langgraph_amc_textworld.games import SETTINGS, GameSpec, TextWorldError, known
from langgraph_amc_textworld.world import TextWorldTask

LEVELS: Mapping[str, Mapping[int, Mapping[str, Any]]] = MappingProxyType(
    {
        "cooking": {
            1: {"recipe": 1, "take": 1, "go": 1, "cook": True, "cut": True, "open": False, "drop": False},
            2: {"recipe": 2, "take": 2, "go": 6, "cook": True, "cut": True, "open": True, "drop": False},
            3: {"recipe": 3, "take": 3, "go": 9, "cook": True, "cut": True, "open": True, "drop": True},
        },
        "treasure": {1: {"level": 6}, 2: {"level": 14}, 3: {"level": 18}},
        "coin": {1: {"level": 5}, 2: {"level": 110}, 3: {"level": 208}},
        "quest": {
            1: {"rooms": 3, "objects": 6, "length": 3},
            2: {"rooms": 5, "objects": 12, "length": 6},
            3: {"rooms": 8, "objects": 20, "length": 9},
        },
    }
)
"""What the levels are, in TextWorld's settings."""

SEEDS: Mapping[str, range] = MappingProxyType({"train": range(6), "tune": range(100, 102), "test": range(200, 206)})
"""Where each split's seeds are; one from which TextWorld makes no winnable game is left out."""


def level_spec(kind: str, level: int, seed: int, split: str) -> GameSpec:
    """The game of a kind, level and seed; cooking takes its foods from the split, as TextWorld's own splits do."""
    settings = dict(LEVELS[kind][level])
    return GameSpec(kind, seed, {**settings, "foods": split} if kind == "cooking" else settings)


def tasks(
    *, kinds: str | Collection[str] = tuple(SETTINGS), levels: int | Collection[int] = (1, 2, 3), commands: bool = False
) -> TaskSet:
    """The tasks, by kind, level and seed. No game is made before it is played.

    Metadata: ``kind``, ``level``, ``walkthrough`` (length of TextWorld's own solution), ``points`` (the most).
    A task has twice its walkthrough and five commands.

    Parameters
    ----------
    kinds, levels: several, or one.
    commands: each observation lists the admissible commands; the ids stay the same.
    """
    if type(commands) is not bool:
        raise TextWorldError(f"commands is True or False, not {commands!r}")
    of_kind, of_level = _chosen("kind", kinds, tuple(LEVELS)), _chosen("level", levels, (1, 2, 3))
    chosen = (task for task in _all_tasks(commands))
    return TaskSet(t for t in chosen if t.metadata["kind"] in of_kind and t.metadata["level"] in of_level)


def tasks_with_commands(**options: Any) -> TaskSet:
    """`tasks` whose observations list the admissible commands."""
    return tasks(commands=True, **options)


cooking, treasure, coin, quest = (functools.partial(tasks, kinds=(kind,)) for kind in SETTINGS)
"""`tasks` of one kind."""

cooking_2 = functools.partial(cooking, levels=(2,))
"""Two ingredients, six rooms: many steps, any of which can be a mistake that stays."""


def _chosen(what: str, given: Any, there: tuple[Any, ...]) -> list[Any]:
    wanted = list(given) if isinstance(given, Collection) and not isinstance(given, str) else [given]
    if not wanted or any(item not in there for item in wanted):
        raise TextWorldError(f"there are no games of {what} {given!r}: choose of {', '.join(map(str, there))}")
    return wanted


@functools.cache
def _all_tasks(commands: bool) -> TaskSet:
    return TaskSet(
        Task(
            entry["id"],
            {"task": asdict(TextWorldTask(GameSpec(**entry["spec"]), 2 * entry["walkthrough"] + 5, commands))},
            metadata={
                "kind": entry["spec"]["kind"],
                "level": entry["level"],
                "walkthrough": entry["walkthrough"],
                "points": entry["points"],
            },
            split=entry["split"],
        )
        for entry in known().values()
    )
