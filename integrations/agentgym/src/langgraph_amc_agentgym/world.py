"""An environment on a server as a world: text in, text out; `langgraph_amc.tasks.WorldPool` branches it by replay.

No server of AgentGym's has snapshots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from langgraph_amc.tasks import NotStartedError, StepResult, WorldLostError
from langgraph_amc_agentgym.dialects import Where
from langgraph_amc_agentgym.errors import AgentGymTaskError, ServerRefusedError
from langgraph_amc_agentgym.server import RemoteEnvironment, Server


class AgentGymWorld:
    """A `langgraph_amc.tasks.Steppable` over one environment of ``server``; made there when it is first needed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._env: RemoteEnvironment | None = None
        self._playing = False
        self._done = False
        self._score = 0.0

    def reset(self, task: Mapping[str, Any]) -> str:
        """Start ``{"server": name, "index": number}`` and return the first observation."""
        index = self._index(task)
        self._playing = False
        if self._env is None:
            self._env = self._server.create()
        used = self._env.used
        try:
            return self._start(self._env, index)
        except BaseException as exc:
            self._drop()
            # The server may have lost it since; if it is the task, a new environment refuses it too.
            if not (used and isinstance(exc, ServerRefusedError | WorldLostError)):
                raise
        self._env = self._server.create(fresh=True)
        try:
            return self._start(self._env, index)
        except BaseException:
            self._drop()
            raise

    def step(self, action: str) -> StepResult:
        """Act; observation, reward, done, and info with the total ``score`` and ``solved``.

        Raises
        ------
        WorldLostError: whether and how it was done is not known; the environment is given up.
        """
        if self._env is None or not self._playing:
            raise NotStartedError("the environment has no known state: call reset(task) first")
        if not isinstance(action, str):
            raise AgentGymTaskError(f"an action is text, not {action!r:.200}")
        if self._done:
            raise AgentGymTaskError("the episode is over: call reset(task) to start another")
        dialect = self._server.dialect
        self._playing = False
        try:
            answer = self._server.step(self._env, action)
            observation = self._observation(answer, (dialect.observation,), "/step")
            given = self._number(self._server.at(answer, dialect.reward, "/step")) * dialect.scale
            done = self._server.at(answer, dialect.done, "/step")
            if not isinstance(done, bool):
                raise self._server.unexpected("/step", f"done as true or false, not {done!r:.200}")
        except ServerRefusedError as refused:
            self._drop()
            # The server does not know the environment any more, or the action broke it.
            raise WorldLostError(str(refused)) from refused
        except BaseException:
            self._drop()
            raise
        reward = given - self._score if dialect.standing else given
        self._score, self._done, self._playing = self._score + reward, done, True
        solved = done and self._score >= dialect.success - 1e-9
        return observation, reward, done, {"score": self._score, "solved": solved}

    def close(self) -> None:
        """Close the environment on the server."""
        if self._env is not None:
            env, self._env, self._playing = self._env, None, False
            self._server.release(env)

    def _start(self, env: RemoteEnvironment, index: int) -> str:
        answer = self._server.reset(env, index)
        if self._server.dialect.first:
            text = self._observation(answer, self._server.dialect.first, "/reset")
        else:
            text = self._observation(self._server.observation(env), ((),), "/observation")
        self._playing, self._done, self._score = True, False, 0.0
        return text

    def _observation(self, answer: Any, places: tuple[Where, ...], request: str) -> str:
        parts = [self._server.at(answer, place, request) for place in places]
        for part in parts:
            if not isinstance(part, str):
                raise self._server.unexpected(request, f"an observation as text, not {part!r:.200}")
        if self._server.dialect.actions is not None:
            actions = self._server.at(answer, self._server.dialect.actions, request)
            if not isinstance(actions, list):
                raise self._server.unexpected(request, f"a list of actions, not {actions!r:.200}")
            parts.append(f"Available actions: {', '.join(map(str, actions))}")
        return "\n".join(parts)

    def _number(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._server.unexpected("/step", f"a finite reward, not {value!r:.200}")
        return float(value)

    def _index(self, task: Mapping[str, Any]) -> int:
        name = self._server.dialect.name
        if isinstance(task, Mapping) and task.keys() == {"server", "index"} and task["server"] == name:
            index = task["index"]
            if isinstance(index, int) and not isinstance(index, bool) and index >= 0:
                return index
        raise AgentGymTaskError(f'a task here is {{"server": "{name}", "index": 0 or more}}, not {task!r:.200}')

    def _drop(self) -> None:
        """Give the environment up: what it holds is not known."""
        if self._env is not None:
            env, self._env = self._env, None
            self._server.release(env, sound=False)
