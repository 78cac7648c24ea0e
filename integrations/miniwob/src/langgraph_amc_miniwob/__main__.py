"""Plays pages twice with random actions and prints which answer the same way: ``python -m langgraph_amc_miniwob``.

    python -m langgraph_amc_miniwob [--all] [--episodes 2] [--steps 8] [PAGE …]

The second play is in another browser, and on a machine that is as busy as it is.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from typing import Any

from langgraph_amc_miniwob.taskset import PAGES
from langgraph_amc_miniwob.world import BrowserLostError, MiniWoB, MiniWoBTask

ELEMENT = re.compile(r"^\s*\[(\w+)\] (\S+) ?(.*)$", re.MULTILINE)


def random_action(observation: str, goal: str, rng: random.Random) -> str:
    """An action on one of the elements shown: mostly one that fits it."""
    elements = ELEMENT.findall(observation)
    if not elements or rng.random() < 0.05:
        return rng.choice(["noop()", "scroll(0, 100)", "click('9999')", "nonsense"])
    bid, role, _ = rng.choice(elements)
    if role in ("textbox", "spinbutton") and rng.random() < 0.7:
        word = rng.choice(re.findall(r"[\w/@:.-]+", goal) or ["x"])
        return rng.choice([f"fill({bid!r}, {word!r})"] * 4 + [f"press({bid!r}, 'Enter')"])
    if role in ("combobox", "listbox"):
        options = re.findall(r"option '([^']+)'", observation)
        return f"select_option({bid!r}, {rng.choice(options or ['x'])!r})"
    others = [f"hover({bid!r})", f"press({bid!r}, 'ArrowRight')", f"dblclick({bid!r})"]
    return f"click({bid!r})" if rng.random() < 0.85 else rng.choice(others)


def play(world: MiniWoB, task: MiniWoBTask, rng: random.Random) -> tuple[list[str], list[Any]]:
    """An episode of random actions: what was done and what was answered."""
    first = world.reset(task)
    goal = first.split("\n")[0]
    actions: list[str] = []
    answers: list[Any] = [first]
    seen, done = first, False
    while not done:
        actions.append(random_action(seen, goal, rng))
        answers.append(world.step(actions[-1]))
        seen, _, done, _ = answers[-1]
    return actions, answers


def replay(world: MiniWoB, task: MiniWoBTask, actions: list[str]) -> list[Any]:
    """The same actions anew."""
    return [world.reset(task), *(world.step(action) for action in actions)]


def main() -> None:
    """Print a line for each page that does not answer the same way, and how many do."""
    parser = argparse.ArgumentParser(prog="python -m langgraph_amc_miniwob", description=__doc__.split("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="default: those of tasks()")
    parser.add_argument("--all", action="store_true", help="all of BrowserGym's")
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    given = parser.parse_args()
    world, other = MiniWoB(), MiniWoB()
    pages = given.pages or (sorted(world.pages) if given.all else PAGES)
    different: set[str] = set()
    played = finished = 0
    start = time.monotonic()
    for page in pages:
        for seed in range(given.episodes):
            task = MiniWoBTask(page, seed, given.steps)
            try:
                actions, first = play(world, task, random.Random(f"{page} {seed}"))
                again = replay(other, task, actions)
            except BrowserLostError as exc:
                print(f"{page}, seed {seed}: {exc}", flush=True)
                different.add(page)
                world.close()
                other.close()
                world, other = MiniWoB(), MiniWoB()
                continue
            played += len(actions)
            finished += bool(first[-1][3]["finished"])
            step = next((k for k, (one, two) in enumerate(zip(first, again, strict=True)) if one != two), None)
            if step is not None:
                different.add(page)
                what = f"step {step}, {actions[step - 1]}" if step else "the reset"
                print(f"{page}, seed {seed}: another answer at {what}", flush=True)
    world.close()
    other.close()
    seconds = time.monotonic() - start
    print(
        f"{len(pages) - len(different)} of {len(pages)} pages answered the same way: {given.episodes} episodes each, "
        f"{played} random actions, {finished} episodes brought to an end; {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
