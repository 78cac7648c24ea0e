"""MiniWoB++ (Liu et al. 2018, arXiv:1802.08802) as a world: BrowserGym's environment in a process of its own.

The process (``worker.py``) holds one headless Chromium. It ends, and its browser with it, when this one ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph_amc.errors import AMCError
from langgraph_amc.tasks import StepResult, WorldLostError

WORKER = Path(__file__).with_name("worker.py")
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
STEP_LIMIT = 10


class MiniWoBError(AMCError, ValueError):
    """What is no task of this world, or an action when none is expected."""


class MissingBrowserError(AMCError, RuntimeError):
    """BrowserGym, its pages or a Chromium is not installed, or does not start."""


class BrowserLostError(WorldLostError):
    """The browser or its process died or did not answer; another world can go on from the same history."""


@dataclass(frozen=True, slots=True)
class MiniWoBTask:
    """A page of MiniWoB++, the seed of its problem, and how many actions there are for it."""

    page: str
    seed: int = 0
    step_limit: int = STEP_LIMIT

    @classmethod
    def of(cls, task: MiniWoBTask | Mapping[str, Any]) -> MiniWoBTask:
        """A task from one or from its fields."""
        if isinstance(task, MiniWoBTask):
            return task
        try:
            made = cls(**task)
        except TypeError as exc:
            raise MiniWoBError(f"a task is {{'page': 'click-button', 'seed': 0}}, got {task!r}") from exc
        if not isinstance(made.seed, int) or not 0 <= made.seed < 2**32 or made.step_limit < 1:
            raise MiniWoBError(f"a seed is in 0 … 2³²-1 and a step limit at least 1, got {made}")
        return made


def missing() -> str | None:
    """What keeps the world from starting here, in words; none if nothing does.

    Only looks: where MINIWOB_PYTHON names another Python, what that one has is seen when it starts.
    """
    if os.environ.get("MINIWOB_PYTHON") is None:
        for module in ("browsergym.miniwob", "miniwob"):
            if not _has(module):
                return (
                    f"{module} is not installed: pip install 'langgraph-amc-miniwob[browser]', or install "
                    "browsergym-miniwob and miniwob for another Python and name that one in MINIWOB_PYTHON"
                )
    return None if chromium() else "no Chromium was found: apt install chromium, or name one in MINIWOB_CHROMIUM"


def chromium() -> str | None:
    """The Chromium to use: MINIWOB_CHROMIUM, else the first that is installed."""
    named = os.environ.get("MINIWOB_CHROMIUM")
    return named or next((found for name in BROWSERS if (found := shutil.which(name))), None)


class MiniWoB:
    """A page of MiniWoB++ in a real browser; `langgraph_amc.tasks.Steppable`.

    An observation is the goal and BrowserGym's text of the accessibility tree. The reward is the page's own for the
    finished episode, without its discount by time: 1 if all is right, less or negative if not, 0 until then.

    The same task and actions are answered in the same way each time: the page's random numbers are seeded and its
    clock stands still between actions.

    Parameters
    ----------
    timeout: seconds an answer may take before the browser is taken for lost.
    """

    def __init__(self, *, timeout: float = 120.0) -> None:
        reason = missing()
        if reason is not None:
            raise MissingBrowserError(reason)
        self._timeout = timeout
        self._task: MiniWoBTask | None = None
        self._goal, self._steps, self._done = "", 0, True
        self._buffer = b""
        self._process = subprocess.Popen(  # noqa: S603 - our own program, by the interpreter the user names
            [os.environ.get("MINIWOB_PYTHON", sys.executable), str(WORKER), str(chromium())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for this process, which then closes that one
        )
        try:
            self.pages: frozenset[str] = frozenset(self._answer()["pages"])
        except BrowserLostError as exc:
            self.close()
            raise MissingBrowserError("BrowserGym or its browser does not start: its messages are above") from exc

    @property
    def pid(self) -> int:
        """Of the process that holds the browser."""
        return self._process.pid

    def reset(self, task: MiniWoBTask | Mapping[str, Any]) -> str:
        """Open the page anew and draw its problem."""
        task = MiniWoBTask.of(task)
        if task.page not in self.pages:
            raise MiniWoBError(f"BrowserGym has no page {task.page!r} of MiniWoB++: {', '.join(sorted(self.pages))}")
        self._task, self._steps, self._done = None, 0, False
        answer = self._ask({"reset": {"page": task.page, "seed": task.seed}})
        self._task, self._goal = task, answer["goal"]
        return f"Goal: {self._goal}\n\nPage:\n{answer['tree']}"

    def step(self, action: str) -> StepResult:
        """Do an action of BrowserGym's, for example ``click('13')``; an action that fails costs a step."""
        if self._task is None or self._done:
            raise MiniWoBError("no episode is under way: call reset(task)")
        task, self._task = self._task, None  # an action that is not answered leaves no half-known state behind
        answer = self._ask({"step": action})
        self._task, self._steps = task, self._steps + 1
        self._done = answer["done"] or self._steps >= task.step_limit
        info = {"solved": answer["reward"] > 0, "finished": answer["done"], "reason": answer["reason"]}
        text = f"The episode is over: reward {answer['reward']:g}." if answer["done"] else f"Page:\n{answer['tree']}"
        if answer["error"]:
            text = f"Error: {answer['error']}\n\n{text}"
        return text, answer["reward"], self._done, {**info, "valid": not answer["error"]}

    def close(self) -> None:
        """End the browser and its process."""
        self._task, self._done = None, True
        process = self._process
        with suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()  # its browser ends by itself: the pipe between them is gone
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")  # type: ignore[union-attr]
        except (OSError, ValueError) as exc:  # ValueError: it was closed
            raise BrowserLostError("the browser's process has ended") from exc
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """One line; blocks at most for the timeout."""
        end, stdout = time.monotonic() + self._timeout, self._process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise BrowserLostError(f"the browser did not answer within {self._timeout:g} s")
                part = os.read(stdout.fileno(), 65536)
                if not part:
                    raise BrowserLostError("the browser's process has ended: its messages are above")
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False
