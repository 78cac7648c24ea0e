"""Makes a game with TextWorld. Run as a program of its own, one game a process:

    PYTHONHASHSEED=0 python -m langgraph_amc_textworld.generating '{"kind": …, "seed": …, "settings": {…}}' FOLDER

TextWorld's generator walks through sets, so that a seed gives another text in a process with another hash seed. In one
of its own that is fixed.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import textworld
from textworld.challenges import CHALLENGES
from textworld.generator import make_game
from textworld.generator.inform7 import compile_inform7_game, generate_inform7_source

# What TextWorld calls the cooking game's food lists; each has preparations that the others do not have.
FOODS = {"train": "train", "tune": "valid", "test": "test"}


def make(spec: dict[str, Any]) -> textworld.Game:
    """The game of a specification (`langgraph_amc_textworld.games.GameSpec`), not yet compiled."""
    options, settings = textworld.GameOptions(), spec["settings"]
    options.seeds = spec["seed"]
    if spec["kind"] == "quest":
        options.nb_rooms, options.nb_objects = settings["rooms"], settings["objects"]
        options.quest_length = settings["length"]
        return make_game(options)
    if spec["kind"] == "cooking":
        settings = {**settings, "recipe_seed": spec["seed"], "split": FOODS[settings["foods"]]}
    name = {"cooking": "tw-cooking", "coin": "tw-coin_collector", "treasure": "tw-treasure_hunter"}[spec["kind"]]
    with contextlib.redirect_stdout(sys.stderr):
        return CHALLENGES[name][1](settings, options)


def texts(game: textworld.Game) -> tuple[str, str]:
    """All that there is to know of a game: its data as JSON, and its source in Inform 7."""
    return json.dumps(game.serialize()), generate_inform7_source(game)


def main() -> None:
    """Write ``game.json``, ``game.ni`` and the compiled ``game.z8``."""
    folder = Path(sys.argv[2])
    data, source = texts(make(json.loads(sys.argv[1])))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "game.json").write_text(data, encoding="utf-8")
    compile_inform7_game(source, str(folder / "game.z8"))  # writes the source beside it


if __name__ == "__main__":
    main()
