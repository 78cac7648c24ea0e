"""TextWorld as an environment: text in, text out, JSON-able snapshots, nothing random while it runs."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from langgraph_amc_textworld.facts import Facts, read_game
from langgraph_amc_textworld.games import GameFiles, GameSpec, TextWorldError, find_game
from langgraph_amc_textworld.machine import Machine, Reply

MOST_STEPS = 500

# Not the game but its program: these start over, write and read files, take moves back, or print what is hidden.
# The story looks at the first nine letters of a word.
_OUTSIDE = re.compile(
    r"\b(save|restore|restart|quit|q|undo|script|noscript|unscript|verify|version|notify|replay|enable|disable|restrict)\b"
    r"|\b(transcrip|recording|print_sta|tw-)"
)
REFUSED = "That is not a command of this game."
ONE = "One command at a time."


@dataclass(frozen=True, slots=True)
class TextWorldTask:
    """Play ``game`` with at most ``step_limit`` commands. ``commands``: each observation lists the admissible ones."""

    game: GameSpec
    step_limit: int
    commands: bool = False

    def __post_init__(self) -> None:
        if type(self.step_limit) is not int or not 1 <= self.step_limit <= MOST_STEPS:
            raise TextWorldError(f"a step limit is from 1 to {MOST_STEPS}, not {self.step_limit!r}")

    @classmethod
    def of(cls, data: TextWorldTask | Mapping[str, Any]) -> TextWorldTask:
        """A task from its fields, for example out of a graph's state."""
        if isinstance(data, TextWorldTask):
            return data
        try:
            return cls(**{**data, "game": GameSpec(**data["game"])})
        except (KeyError, TypeError) as exc:
            raise TextWorldError(
                f"a TextWorld task has a game (kind, seed, settings), a step_limit and perhaps commands: {exc!r}"
            ) from exc


class TextWorld:
    """The world as a `langgraph_amc.tasks.Environment`; one interpreter, in this process."""

    def __init__(self) -> None:
        self._task: TextWorldTask | None = None
        self._files: GameFiles | None = None
        self._machine: Machine | None = None
        self._facts: Facts | None = None
        self._most = 0
        self._steps = self._score = 0
        self._won = self._lost = False

    @property
    def task(self) -> TextWorldTask:
        """What is being played."""
        if self._task is None:
            raise TextWorldError("the world has no task yet: call reset(task) or restore(token) first")
        return self._task

    @property
    def done(self) -> bool:
        """Whether the game is won or lost, or the commands are used up."""
        return self._won or self._lost or self._steps >= self.task.step_limit

    def reset(self, task: TextWorldTask | Mapping[str, Any]) -> str:
        """Start a game; returns what it is about and the first room."""
        task = TextWorldTask.of(task)
        machine = self._open(task)
        reply = machine.begin()
        self._steps = self._score = 0
        self._won = self._lost = False
        self._facts = self._new_facts(task)
        self._task = task
        said = f"{reply.text}\n\nYou have {task.step_limit} commands. The most points are {self._most}."
        return self._with_commands(said)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Type a command; observation, reward (points made by it), done, info (score, max_score, won, lost, steps).

        Whatever the game does not understand costs a command as well. Raises `TextWorldError` after the end, and
        for what is no text.
        """
        if not isinstance(action, str):
            raise TextWorldError(f"a command is text, not {action!r:.200}")
        if self.done:
            raise TextWorldError("the episode is over: call reset(task) to start another")
        assert self._machine is not None
        self._steps += 1
        before = self._score
        said = _refusal(action) or self._follow(self._machine.send(action))
        info = {
            "score": self._score,
            "max_score": self._most,
            "won": self._won,
            "lost": self._lost,
            "steps": self._steps,
        }
        return self._with_commands(said), float(self._score - before), self.done, info

    def snapshot(self) -> dict[str, Any]:
        """The whole state, task included, as JSON-able data."""
        task = self.task
        assert self._machine is not None
        return {
            "task": asdict(task),
            "steps": self._steps,
            "score": self._score,
            "won": self._won,
            "lost": self._lost,
            "machine": self._machine.state(),
            "facts": self._facts.state() if self._facts else None,
        }

    def restore(self, token: Mapping[str, Any]) -> None:
        """Go to a snapshot's state, whichever world took it."""
        try:
            task = TextWorldTask.of(token["task"])
            rest = int(token["steps"]), int(token["score"]), bool(token["won"]), bool(token["lost"])
            facts = self._new_facts(task)
            if facts is not None:
                facts.restore(token["facts"])
            self._open(task).restore(token["machine"])
        except TextWorldError:
            raise
        except (KeyError, TypeError, ValueError, zlib.error) as exc:
            raise TextWorldError(f"this is no snapshot of TextWorld ({exc!r}): pass what snapshot() gave") from exc
        self._task, self._facts = task, facts
        self._steps, self._score, self._won, self._lost = rest

    def close(self) -> None:
        """End the interpreter."""
        self._task = self._files = self._machine = self._facts = None

    def _open(self, task: TextWorldTask) -> Machine:
        """The interpreter with this task's story; whatever it was at is over."""
        files = find_game(task.game)
        if self._machine is None or self._files != files:
            self.close()
            self._machine, self._files = Machine(files.story), files
            self._most = read_game(files.data)[0].max_score
        self._task = None
        return self._machine

    def _new_facts(self, task: TextWorldTask) -> Facts | None:
        return Facts(find_game(task.game).data) if task.commands else None

    def _follow(self, reply: Reply) -> str:
        self._score = self._score if reply.score is None else reply.score
        self._won, self._lost = reply.won, reply.lost
        if self._facts is not None:
            for action in reply.actions:
                self._facts.follow(action)
        return reply.text

    def _with_commands(self, said: str) -> str:
        if self._facts is None or (self._task is not None and self.done):
            return said
        return f"{said}\n\nCommands: {'; '.join(self._facts.commands())}"


def _refusal(action: str) -> str:
    """What is answered instead of the story, or nothing."""
    said = action.lower()
    if _OUTSIDE.search(said):
        return REFUSED
    # The story would take several on a line, and the limit would count them as one.
    return ONE if re.search(r"[.;]|\bthen\b", said.strip().rstrip(".")) else ""
