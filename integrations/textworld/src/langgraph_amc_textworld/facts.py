"""The commands that make sense now: TextWorld's logic, kept in step with the story by the actions that it reports."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

from textworld.generator.game import Game
from textworld.generator.inform7 import Inform7Game
from textworld.logic import Action, Proposition, State

_reading = threading.Lock()


def read_game(path: Path) -> tuple[Game, Inform7Game]:
    """A game out of its ``game.json``; not to be changed."""
    with _reading:  # TextWorld has one parser for all threads, and it fails where two read at once
        return _read_game(path)


@functools.lru_cache(maxsize=64)
def _read_game(path: Path) -> tuple[Game, Inform7Game]:
    game = Game.load(str(path))
    return game, Inform7Game(game)


class Facts:
    """What is true in a game's world, as the differences to its start."""

    def __init__(self, data: Path) -> None:
        self._game, self._inform = read_game(data)
        self._start = frozenset(self._game.world.state.facts)
        self._state: State = self._game.world.state.copy()

    def follow(self, event: str) -> None:
        """Apply the action that the story reports; one that changes nothing is passed over."""
        # sorted: of two that read the same, every process takes the same
        action = self._inform.detect_action(event, sorted(self._applicable(), key=str))
        if action is not None:
            self._state.apply(action)

    def commands(self) -> list[str]:
        """Admissible commands, sorted."""
        return sorted(set(self._inform.gen_commands_from_actions(self._applicable())))

    def state(self) -> dict[str, Any]:
        """The differences, JSON-able."""
        now = frozenset(self._state.facts)
        return {"more": _written(now - self._start), "less": _written(self._start - now)}

    def restore(self, state: dict[str, Any]) -> None:
        """Put a state back."""
        facts = (self._start - {*map(_fact, state["less"])}) | {*map(_fact, state["more"])}
        self._state = State(self._game.kb.logic, facts)

    def _applicable(self) -> list[Action]:
        kb = self._game.kb
        return list(self._state.all_applicable_actions(kb.rules.values(), kb.types.constants_mapping))


def _written(facts: frozenset[Proposition]) -> list[Any]:
    return sorted([fact.name, [[v.name, v.type] for v in fact.arguments]] for fact in facts)


def _fact(written: Any) -> Proposition:
    name, arguments = written
    return Proposition.deserialize(
        {"name": name, "arguments": [{"name": variable, "type": kind} for variable, kind in arguments]}
    )
