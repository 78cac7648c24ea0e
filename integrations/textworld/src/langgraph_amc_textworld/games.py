"""TextWorld's games as files: generated once, the same on every machine, and kept in the user's cache folder.

``LANGGRAPH_AMC_TEXTWORLD_CACHE`` names another folder. A game of the task set has a known digest; one that comes out
differently is an error, since results with it could not be compared with anyone's.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from langgraph_amc.errors import AMCError

CACHE = "LANGGRAPH_AMC_TEXTWORLD_CACHE"
SETTINGS: Mapping[str, frozenset[str]] = {
    "cooking": frozenset({"recipe", "take", "go", "cook", "cut", "open", "drop", "foods"}),
    "treasure": frozenset({"level"}),
    "coin": frozenset({"level"}),
    "quest": frozenset({"rooms", "objects", "length"}),
}
"""Kinds of games and what is to be set, in TextWorld's words; ``foods`` is train, tune or test."""


_making: dict[str, threading.Lock] = {}


class TextWorldError(AMCError, ValueError):
    """A game, task or snapshot that is none of TextWorld's, or a world used outside an episode."""


class GenerationError(AMCError, RuntimeError):
    """TextWorld could not make a game."""


class GameDiffersError(AMCError, RuntimeError):
    """A game came out differently than the task set knows it."""


@dataclass(frozen=True, slots=True)
class GameSpec:
    """What a game is made from.

    Attributes
    ----------
    kind: cooking, treasure, coin or quest.
    settings: of that kind, see `SETTINGS`.
    """

    kind: str
    seed: int
    settings: dict[str, Any] = field(hash=False)

    def __post_init__(self) -> None:
        if self.kind not in SETTINGS:
            raise TextWorldError(f"there is no kind of game {self.kind!r}: it is one of {', '.join(SETTINGS)}")
        if not isinstance(self.settings, Mapping) or set(self.settings) != SETTINGS[self.kind]:
            wanted = ", ".join(sorted(SETTINGS[self.kind]))
            raise TextWorldError(f"a {self.kind} game is set by {wanted}, not {self.settings!r}")
        if type(self.seed) is not int or self.seed < 0:
            raise TextWorldError(f"a game's seed is a number from 0 on, not {self.seed!r}")

    @property
    def key(self) -> str:
        """Its name among files."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.kind}-{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class GameFiles:
    """A game's folder. ``digest``: of all its text and rules; the compiled story also holds the day it was made."""

    folder: Path
    digest: str

    @property
    def story(self) -> Path:
        """The program for the Z-machine."""
        return self.folder / "game.z8"

    @property
    def data(self) -> Path:
        """TextWorld's description."""
        return self.folder / "game.json"


def cache_folder() -> Path:
    """Where games are kept."""
    if given := os.environ.get(CACHE):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "langgraph-amc" / "textworld"


def find_game(spec: GameSpec) -> GameFiles:
    """A game's files, which are made first if there are none (seconds).

    Raises
    ------
    GenerationError: TextWorld cannot make it.
    GameDiffersError: it is a game of the task set and not the one that the task set knows.
    """
    import textworld

    # Other versions make other games.
    folder = cache_folder() / f"textworld-{textworld.__version__}" / spec.key
    with _making.setdefault(spec.key, threading.Lock()):  # particles start together: one of them makes it
        if not folder.is_dir():
            _generate(spec, folder)
    found = digest((folder / "game.json").read_text("utf-8"), (folder / "game.ni").read_text("utf-8"))
    expected = known().get(spec.key, {}).get("digest", found)
    if found != expected:
        raise GameDiffersError(
            f"the game {spec.key} is not the one of the task set ({found[:12]} instead of {expected[:12]}): it was "
            f"changed, or this TextWorld or Python makes another. Delete {folder}; if it comes back, install "
            "textworld 1.7.0 on CPython 3.11"
        )
    return GameFiles(folder, found)


def digest(data: str, source: str) -> str:
    """SHA-256 over a game's data and source."""
    return hashlib.sha256(f"{data}\0{source}".encode()).hexdigest()


@functools.cache
def known() -> dict[str, dict[str, Any]]:
    """The games of the task set by `GameSpec.key`, as pin_games.py wrote them.

    Each with ``id``, ``split``, ``level``, ``spec``, ``digest``, ``walkthrough`` (its length) and ``points``.
    """
    entries = json.loads((Path(__file__).parent / "games.json").read_text("utf-8"))
    return {GameSpec(**entry["spec"]).key: entry for entry in entries}


def _generate(spec: GameSpec, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=folder.parent) as parent:
        draft = Path(parent) / "game"
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "langgraph_amc_textworld.generating", json.dumps(asdict(spec)), str(draft)],
            env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise GenerationError(f"TextWorld made no game of {spec}: {reason[-1]}; try another seed or settings")
        with suppress(OSError):  # somebody else made it meanwhile, and theirs is the same
            draft.rename(folder)
    if not folder.is_dir():
        raise GenerationError(f"the game could not be put at {folder}: is the disk full? Set {CACHE} to another folder")
