"""The stand-in for a model that plays: it knows the game's solution and errs. It is no language model.

At each turn it takes the next command of TextWorld's own solution from where it is, or with chance ``errors`` any
admissible command. It knows the game from the inside: it plays along with a story of its own, whose reports move
TextWorld's logic. (The logic alone would believe in a meal that the story refused to prepare.)
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from textworld.generator.game import GameProgression

from langgraph_amc.demo.stand_in import StandIn
from langgraph_amc.tasks import read_action
from langgraph_amc_textworld.agent import build
from langgraph_amc_textworld.facts import read_game
from langgraph_amc_textworld.games import GameFiles, TextWorldError, find_game
from langgraph_amc_textworld.machine import Machine
from langgraph_amc_textworld.world import TextWorld, TextWorldTask

ERRORS = 0.7


class Follower:
    """Decides for a `StandIn`. ``games``: by the first observation, which is all that a policy sees of its game."""

    def __init__(self, errors: float = ERRORS) -> None:
        self.errors = errors
        self.games: dict[str, GameFiles] = {}

    def world(self) -> TextWorld:
        """A world whose games the follower gets to know as they start."""
        return _Known(self.games)

    def __call__(self, messages: Sequence[BaseMessage], rng: random.Random) -> str:
        files = self.games[messages[1].text]
        done = tuple(read_action(message.text) for message in messages if message.type == "ai")
        best, commands = _choices(files, done)
        if best is None and not done:
            raise TextWorldError(
                "TextWorld gives no solution of this game to follow: take other tasks (in cooking, levels 1 and 2)"
            )
        if rng.random() < self.errors or best is None:
            return f"Thought: perhaps this.\nAction: {rng.choice(commands)}"
        return f"Thought: that is the next step.\nAction: {best}"


def stand_in(errors: float = ERRORS) -> Any:
    """The agent with a follower in place of the model."""
    follower = Follower(errors)
    return build(StandIn(decide=follower), world=follower.world)


class _Known(TextWorld):
    def __init__(self, games: dict[str, GameFiles]) -> None:
        super().__init__()
        self._games = games

    def reset(self, task: TextWorldTask | Mapping[str, Any]) -> str:
        text = super().reset(task)
        self._games[text] = find_game(self.task.game)
        return text


@functools.lru_cache(maxsize=512)
def _choices(files: GameFiles, done: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """After these commands: the next one of the solution, none if there is no way, and all admissible ones."""
    progress, (_, inform) = _after(files, done)[0], read_game(files.data)
    solution = progress.winning_policy
    best = inform.gen_commands_from_actions(solution[:1])[0] if solution else None
    return best, tuple(sorted(set(inform.gen_commands_from_actions(progress.valid_actions))))


@functools.lru_cache(maxsize=512)
def _after(files: GameFiles, done: tuple[str, ...]) -> tuple[GameProgression, dict[str, Any]]:
    """TextWorld's logic and the story's state after these commands; neither is to be changed."""
    game, inform = read_game(files.data)
    machine, lock = _story(files)
    if not done:
        with lock:
            machine.begin()
            return GameProgression(game), machine.state()
    before, state = _after(files, done[:-1])
    with lock:
        machine.restore(state)
        reply, state = machine.send(done[-1]), machine.state()
    progress = before.copy()
    for event in reply.actions:
        action = inform.detect_action(event, sorted(progress.valid_actions, key=str))
        if action is not None:
            progress.update(action)
    return progress, state


@functools.lru_cache(maxsize=64)
def _story(files: GameFiles) -> tuple[Machine, threading.Lock]:
    return Machine(files.story), threading.Lock()
