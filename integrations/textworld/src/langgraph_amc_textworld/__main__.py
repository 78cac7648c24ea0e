"""Prints the figures of the README: what the tasks are, and what games, steps and forks cost here."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import textworld

from langgraph_amc.tasks import WorldPool
from langgraph_amc_textworld.facts import read_game
from langgraph_amc_textworld.games import CACHE, find_game
from langgraph_amc_textworld.taskset import LEVELS, tasks
from langgraph_amc_textworld.world import TextWorld, TextWorldTask

REPEATS = 20


def main() -> None:
    """Print them as Markdown."""
    print("| kind | level | walkthrough, median (longest) | points | train/tune/test |")
    print("|---|---|---|---|---|")
    for kind in LEVELS:
        for level in LEVELS[kind]:
            chosen = tasks(kinds=[kind], levels=[level])
            steps = [task.metadata["walkthrough"] for task in chosen]
            splits = Counter(task.split for task in chosen)
            shares = "/".join(str(splits[name]) for name in ("train", "tune", "test"))
            median = f"{statistics.median(steps):g} ({max(steps)})"
            print(f"| {kind} | {level} | {median} | {chosen[0].metadata['points']} | {shares} |")
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE] = folder  # nothing is there yet: games are made
        _costs()


def _costs() -> None:
    made = {kind: _seconds(partial(find_game, _task(kind).game)) for kind in LEVELS}
    task, timed = _task("cooking"), TextWorldTask(_task("cooking").game, 500, commands=True)
    files = find_game(task.game)
    walkthrough = read_game(files.data)[0].metadata["walkthrough"]
    world, hinted, other = TextWorld(), TextWorld(), TextWorld()
    other.reset(task)
    resets = _median(lambda: world.reset(task))
    hinted.reset(timed)
    steps = [_seconds(partial(world.step, a)) for a in walkthrough if not world.done]
    longer = [_seconds(partial(hinted.step, a)) for a in walkthrough if not hinted.done]
    world.reset(task)
    with WorldPool(TextWorld, size=2) as pool:
        history, _ = pool.reset(asdict(task))
        for action in walkthrough[:-1]:
            world.step(action)
            history, _ = pool.step(history, action)
        token = world.snapshot()
        snapshots, restores = _median(world.snapshot), _median(lambda: other.restore(token))

        def clone() -> None:
            before = {**history, "steps": history["steps"][:-1]}
            pool.reset(asdict(task))  # takes a live world away, as another particle does
            pool.step(before, walkthrough[-2])

        clones = _median(clone)
    original = textworld.start(str(files.story), request_infos=textworld.EnvInfos(score=True))
    original.reset()
    copies = _median(original.copy)
    original.close()
    print("\n| | |\n|---|---|")
    print("| make a game, once (level 2) | " + ", ".join(f"{kind} {s:.1f} s" for kind, s in made.items()) + " |")
    print(f"| reset | {1000 * resets:.1f} ms |")
    print(f"| step | {1000 * statistics.mean(steps):.1f} ms |")
    print(f"| step, with the admissible commands | {1000 * statistics.mean(longer):.1f} ms |")
    print(f"| snapshot | {1000 * snapshots:.1f} ms, {len(str(token)) / 1000:.1f} kB |")
    print(f"| restore into another world | {1000 * restores:.1f} ms |")
    print(f"| reset, then replay of {len(walkthrough) - 1} steps in a pool | {1000 * clones:.1f} ms |")
    print(f"| TextWorld's own `env.copy()` | {1000 * copies:.1f} ms |")


def _task(kind: str) -> TextWorldTask:
    return TextWorldTask.of(tasks(kinds=[kind], levels=[2]).split("test")[0].input["task"])


def _seconds(do: Callable[[], object]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def _median(do: Callable[[], object]) -> float:
    return statistics.median(_seconds(do) for _ in range(REPEATS))


if __name__ == "__main__":
    main()
