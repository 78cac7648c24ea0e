"""Prints the figures of the README, and checks what is written down here against the simulator.

``python -m langgraph_amc_scienceworld`` and one of ``kinds``, ``costs``, ``determinism``, ``ids FILE``.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from langgraph_amc.errors import AMCError
from langgraph_amc.tasks import WorldPool
from langgraph_amc_scienceworld.catalogue import AMC_KINDS, KINDS
from langgraph_amc_scienceworld.taskset import tasks
from langgraph_amc_scienceworld.world import JAVA_OPTIONS, STEP_LIMIT, ScienceWorld

# Their solutions take the simulator up to half a minute each.
_SLOW = ("mendelian-genetics-known-plant", "mendelian-genetics-unknown-plant")


def kinds() -> None:
    """The kinds of task with their splits, each compared with the simulator's."""
    print("| no. | kind | train/dev/test | in the AMC paper |")
    print("|---|---|---|---|")
    world, wrong = ScienceWorld(), []
    for name, kind in KINDS.items():
        found = world.splits(name)
        if [kind.split(v) for v in range(kind.variations)] != [split for split in found for _ in found[split]]:
            wrong.append(name)
        sizes = "/".join(str(len(found[split])) for split in found)
        print(f"| {kind.number} | {name} | {sizes} | {'yes' if name in AMC_KINDS else 'no'} |")
    world.close()
    counts = Counter(task.split for task in tasks())
    print(
        f"\n{sum(kind.variations for kind in KINDS.values())} variations of {len(KINDS)} kinds; in the "
        f"{len(AMC_KINDS)} kinds of the AMC paper {len(tasks())}: {counts['train']} train, {counts['tune']} dev, "
        f"{counts['test']} test. The table here differs from the simulator in: {', '.join(wrong) or 'nothing'}."
    )


def costs() -> None:
    """Seconds that worlds take, medians; MiB that they hold."""
    chosen = tasks(variations=1).split("test")
    started, first = [], []
    worlds = []
    for _ in range(3):
        seconds, world = _timed(ScienceWorld)
        started.append(seconds)
        first.append(_timed(lambda world=world: world.reset(chosen[0].input["task"]))[0])
        worlds.append(world)
    golden = {task.id: worlds[0].gold(task.input["task"])[:STEP_LIMIT] for task in chosen}
    resets, steps = [], []
    for task in chosen:
        resets.append(_timed(lambda task=task: worlds[1].reset(task.input["task"]))[0])
        for action in golden[task.id]:
            seconds, (_, _, done, _) = _timed(lambda action=action: worlds[1].step(action))
            steps.append(seconds)
            if done:
                break
    memory = [_memory(world.pid) for world in worlds[:2]]
    for world in worlds:
        world.close()

    print(f"| {os.cpu_count()} cores | seconds, median | longest |")
    print("|---|---|---|")
    _row("start of a Java process", started)
    _row("its first reset", first)
    _row("later resets", resets)
    _row("step", steps)
    with WorldPool(ScienceWorld, size=2) as pool:
        forks: dict[str, list[float]] = {}
        for task in chosen:
            _fork(pool, task.input["task"], golden[task.id], forks)
    for label in sorted(forks):
        _row(label, forks[label])
    print(f"\nA process that has had {len(chosen)} tasks holds {max(memory):.0f} MiB.")


def _fork(pool: WorldPool, task: Any, actions: Sequence[str], into: dict[str, list[float]]) -> None:
    """One step of the particle that stands in a live world, then the same step of its clone, after a replay."""
    history, _ = pool.reset(task)
    for depth, action in enumerate(actions):
        seconds, (after, (_, _, done, _)) = _timed(lambda h=history, a=action: pool.step(h, a))
        if depth in (5, 10, 15):
            into.setdefault(f"fork at depth {depth:2d}, no replay", []).append(seconds)
            into.setdefault(f"fork at depth {depth:2d}, replayed", []).append(
                _timed(lambda h=history: pool.step(h, "look around"))[0]
            )
        if done:
            return
        history = after


def determinism() -> None:
    """How many actions of known solutions are answered otherwise in another process, as Java is and as it is set."""
    rng = random.Random(0)
    names = [name for name in KINDS if name not in _SLOW]
    episodes = [(name, rng.randrange(KINDS[name].variations)) for _ in range(2) for name in names]
    plain = tuple(option for option in JAVA_OPTIONS if not option.startswith("-XX:hashCode"))
    print("| Java options | actions | answered differently |")
    print("|---|---|---|")
    for label, options in (("without hashCode", plain), ("as they are here", JAVA_OPTIONS)):
        one, other = ScienceWorld(java_options=options), ScienceWorld(java_options=options)
        played = different = 0
        for name, variation in episodes:
            task = {"name": name, "variation": variation, "step_limit": 60}
            actions = one.gold(task)
            different += one.reset(task) != other.reset(task)
            for action in actions:
                answers = one.step(action), other.step(action)
                played, different = played + 1, different + (answers[0] != answers[1])
                if any(answer[2] for answer in answers):
                    break
        one.close()
        other.close()
        print(f"| {label} | {played} | {different} |")


def ids(file: Path) -> None:
    """Where ScienceWorld itself has the tasks of a file of AgentGym's numbers."""
    chosen = tasks(train_ids=[], test_ids=file).split("test")
    counts = Counter(task.metadata["own_split"] for task in chosen)
    print(
        f"{len(chosen)} tasks of {len({task.metadata['kind'] for task in chosen})} kinds; ScienceWorld has "
        f"{counts['train']} of them in train, {counts['tune']} in dev, {counts['test']} in test"
    )


def _row(label: str, seconds: Sequence[float]) -> None:
    print(f"| {label} | {median(seconds):.3f} | {max(seconds):.3f} |")


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def _memory(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m langgraph_amc_scienceworld")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (kinds, costs, determinism, ids):
        sub = commands.add_parser(command.__name__, help=command.__doc__)
        if command is ids:
            sub.add_argument("file", type=Path)
    given = vars(parser.parse_args())
    try:
        {"kinds": kinds, "costs": costs, "determinism": determinism, "ids": ids}[given.pop("command")](**given)
    except AMCError as error:
        parser.exit(2, f"langgraph_amc_scienceworld: {error}\n")


if __name__ == "__main__":
    main()
