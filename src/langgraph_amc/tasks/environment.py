"""Stateful worlds that a particle's tools act on: the protocol, and replay for worlds without snapshots.

Branching a particle copies its world. A world that can snapshot does so; for any other, `ReplayEnvironment`
replays the actions and checks that the world answers as before: a fork that silently differs would give the
clone a history that never happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from langgraph_amc.errors import AMCError

StepResult = tuple[Any, float, bool, dict[str, Any]]
"""Observation, reward, done, info."""


@runtime_checkable
class Steppable(Protocol):
    """A world that can only be started and acted on."""

    def reset(self, task: Any) -> Any:
        """Start ``task`` anew and return the first observation."""
        ...

    def step(self, action: Any) -> StepResult:
        """Act; returns observation, reward, done, info."""
        ...

    def close(self) -> None:
        """Free what the world holds; it is not used afterwards."""
        ...


@runtime_checkable
class Environment(Steppable, Protocol):
    """A world that a particle can branch in."""

    def snapshot(self) -> Any:
        """A token of the present state; later steps do not change it."""
        ...

    def restore(self, token: Any) -> None:
        """Return to a token's state, also to one taken in another instance of the same world."""
        ...


class WorldLostError(AMCError, RuntimeError):
    """A world's state is no longer known: its process died, or an answer of its server was lost."""


class NotStartedError(AMCError, RuntimeError):
    """A step, snapshot or restore before the first reset."""


class ReplayDivergedError(AMCError, RuntimeError):
    """A replayed action was answered differently: the world is not deterministic, or was changed outside.

    Attributes
    ----------
    step: 0 for the reset, t for the t-th action.
    part: observation, reward or done.
    expected, found: what it was and what it is now.
    """

    def __init__(self, step: int, part: str, expected: Any, found: Any) -> None:
        self.step, self.part, self.expected, self.found = step, part, expected, found
        where = "the reset" if step == 0 else f"step {step}"
        super().__init__(
            f"replay diverged at {where}: another {part} than the first time. Make the world deterministic "
            "(seed it in reset), or implement snapshot and restore"
        )


@dataclass(frozen=True, slots=True)
class ReplayToken:
    """A history: the action that led here, its answer, and the token before it (none: the reset)."""

    task: Any
    step: int
    observation: Any
    action: Any = None
    reward: float = 0.0
    done: bool = False
    previous: ReplayToken | None = None


class ReplayEnvironment:
    """Gives `Environment`'s snapshot and restore to a world that has only reset, step and close.

    A snapshot is O(1). Restore replays: only the missing actions where the present history is a part of the
    token's, everything after a reset otherwise, nothing where they are the same.

    Parameters
    ----------
    world: deterministic given its task and actions.
    same: whether two observations are equal; ``==`` by default, give another for arrays.
    """

    def __init__(self, world: Steppable, *, same: Callable[[Any, Any], bool] | None = None) -> None:
        self._world = world
        self._same = same or _equal
        self._here: ReplayToken | None = None

    def reset(self, task: Any) -> Any:
        """Start ``task`` anew and return the first observation."""
        self._here = None  # a reset that fails leaves no half-known state behind
        observation = self._world.reset(task)
        self._here = ReplayToken(task, 0, observation)
        return observation

    def step(self, action: Any) -> StepResult:
        """Act and remember the answer."""
        here = self._started()
        self._here = None
        observation, reward, done, info = self._world.step(action)
        self._here = ReplayToken(here.task, here.step + 1, observation, action, reward, done, here)
        return observation, reward, done, info

    def snapshot(self) -> ReplayToken:
        """The history so far."""
        return self._started()

    def restore(self, token: ReplayToken) -> None:
        """Replay to ``token``; raises `ReplayDivergedError` at the first answer that differs."""
        path = [token]
        while path[-1] is not self._here and path[-1].previous is not None:
            path.append(path[-1].previous)
        start = path.pop()
        if start is not self._here:
            self._compare(start, self.reset(token.task), 0.0, False)
        for past in reversed(path):
            observation, reward, done, _ = self.step(past.action)
            self._compare(past, observation, reward, done)
        # Tokens are compared by identity: stand on this one, so that its own successors replay little.
        self._here = token

    def close(self) -> None:
        """Close the world."""
        self._here = None
        self._world.close()

    def _started(self) -> ReplayToken:
        if self._here is None:
            raise NotStartedError("the environment has no known state: call reset(task) or restore(token) first")
        return self._here

    def _compare(self, past: ReplayToken, observation: Any, reward: float, done: bool) -> None:
        checks = (
            ("observation", past.observation, observation, self._same(past.observation, observation)),
            ("reward", past.reward, reward, past.reward == reward),
            ("done", past.done, done, past.done == done),
        )
        for part, expected, found, equal in checks:
            if not equal:
                self._here = None
                raise ReplayDivergedError(past.step, part, expected, found)


def _equal(expected: Any, found: Any) -> bool:
    return bool(expected == found)
