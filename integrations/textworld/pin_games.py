"""Makes the games of the task set and writes down which they are; or checks that they come out the same here.

    python integrations/textworld/pin_games.py            # writes games.json
    python integrations/textworld/pin_games.py --check    # compares it; nothing is written

A game is left out where TextWorld cannot make it, where its walkthrough does not win, or where it is one of another
split. Minutes on one core: games are made, not compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from langgraph_amc_textworld.games import GameSpec, digest
from langgraph_amc_textworld.generating import make, texts
from langgraph_amc_textworld.taskset import LEVELS, SEEDS, level_spec
from textworld.generator.game import GameProgression
from textworld.generator.inform7 import Inform7Game

FILE = Path(__file__).parent / "src/langgraph_amc_textworld/games.json"


def entry(given: tuple[str, int, str, int]) -> dict[str, Any] | None:
    """What is written of one game."""
    kind, level, split, seed = given
    spec = level_spec(kind, level, seed, split)
    try:
        game = make(asdict(spec))
    except Exception as error:  # TextWorld's generators raise all sorts
        print(f"left out: {spec}: {error!r}", file=sys.stderr)
        return None
    steps = list(game.metadata.get("walkthrough") or game.walkthrough)
    steps = winning(game, steps)
    if not steps:
        print(f"left out: {spec}: its walkthrough does not win", file=sys.stderr)
        return None
    print(f"{kind} {level} {seed}", file=sys.stderr)
    return {
        "id": f"textworld-{kind}-{level}-{seed:03}",
        "split": split,
        "level": level,
        "spec": asdict(spec),
        "digest": digest(*texts(game)),
        "walkthrough": len(steps),
        "points": game.max_score,
    }


def winning(game: Any, walkthrough: list[str]) -> list[str]:
    """The walkthrough without what is superfluous (it opens doors that are open); empty if it does not win."""
    progress, inform, steps = GameProgression(game), Inform7Game(game), []
    for command in walkthrough:
        commands = inform.gen_commands_from_actions(progress.valid_actions)
        if command in commands:
            progress.update(progress.valid_actions[commands.index(command)])
            steps.append(command)
    return steps if progress.completed else []


def main() -> None:
    """Write, or compare with ``--check``."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        fixed = os.environ | {"PYTHONHASHSEED": "0"}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=fixed).returncode)  # noqa: S603
    wanted = [(k, n, split, seed) for k in LEVELS for n in LEVELS[k] for split in SEEDS for seed in SEEDS[split]]
    found = [made for made in map(entry, wanted) if made is not None]
    seen: dict[str, str] = {}
    unique = [made for made in found if seen.setdefault(made["digest"], made["id"]) == made["id"]]
    text = json.dumps(unique, indent=0) + "\n"
    assert len({GameSpec(**made["spec"]).key for made in unique}) == len(unique)
    if "--check" not in sys.argv:
        FILE.write_text(text, encoding="utf-8")
    elif text != FILE.read_text("utf-8"):
        there = {made["id"]: made for made in json.loads(FILE.read_text("utf-8"))}
        here = {made["id"]: made for made in unique}
        differ = sorted(name for name in there | here if there.get(name) != here.get(name))
        sys.exit(f"{len(differ)} of {len(there)} games differ: {', '.join(differ[:10])}")
    print(f"{len(unique)} games")


if __name__ == "__main__":
    main()
