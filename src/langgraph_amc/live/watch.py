"""A callback that shows runs in a terminal while they run, and says in lines what happens where there is none."""

from __future__ import annotations

import threading
import time
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

from langgraph_amc.live.board import Board, Run
from langgraph_amc.live.terminals import fitting, speaks_unicode, to_ascii
from langgraph_amc.live.view import clock, many_runs, one_run, spent
from langgraph_amc.runtime.watching import RunEnded, RunEvent, RunStarted

PER_SECOND = 8
"""Pictures, at most."""
TOLD = 10
"""Times that progress is told in lines."""


class LiveView:
    """Shows the runs whose events it is given: ``amc.wrap(app, callbacks=[amc.LiveView()])``.

    In a terminal it draws while something runs, and leaves the last picture behind. Elsewhere it writes lines. One view
    may watch several runs at once, in several threads.

    Parameters
    ----------
    title: heads a view of several runs; without one, runs are shown particle by particle.
    console: where to; by default standard error.
    """

    def __init__(self, title: str | None = None, *, console: Console | None = None) -> None:
        self._title = title
        self._console = console or Console(stderr=True)
        self._board = Board(self._happened)
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._done, self._total, self._told = 0, 0, 0

    def __call__(self, event: RunEvent) -> None:
        """Take an event in."""
        with self._lock:
            if isinstance(event, RunStarted) and not self._board.under_way:
                self._board.runs.clear()
            self._board.hear(event)
            if self._console.is_terminal:
                self._open()
            over = isinstance(event, RunEnded) and not self._board.under_way
            if not over:
                self._board.forget_ended()
        if over and self._title is None:
            self.close()

    def progress(self, done: int, total: int) -> None:
        """So many of all runs have ended."""
        with self._lock:
            self._done, self._total = done, total
            if self._console.is_terminal:
                self._open()
            elif total and self._title is not None and done * TOLD // total > self._told:
                self._told = done * TOLD // total
                self._print(f"{self._title}: {self._standing()}")

    def close(self) -> None:
        """Draw once more and leave the terminal."""
        with self._lock:
            live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _open(self) -> None:
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=PER_SECOND, get_renderable=self._picture)
            self._live.start()

    def _picture(self) -> RenderableType:
        with self._lock:
            width, height = self._console.size
            here = self._board.under_way or list(self._board.runs.values())
            if self._title is None and len(here) == 1:
                return fitting(one_run(here[0], width, height), self._console)
            total = self._total or len(self._board.runs)
            done = self._done if self._total else self._board.ended
            shown = many_runs(self._title or "running", self._board, done, total, width, height)
            return fitting(shown, self._console)

    def _happened(self, run: Run, text: str) -> None:
        """Say it in a line, where runs are watched one by one and nothing is drawn."""
        if self._title is None and not self._console.is_terminal:
            self._print(f"[{clock(time.monotonic() - run.began)}] {text}")

    def _standing(self) -> str:
        elapsed = time.monotonic() - self._board.began
        left = f", {clock(elapsed / self._done * (self._total - self._done))} left" if self._done < self._total else ""
        return f"{self._done}/{self._total} in {clock(elapsed)}{left}, {spent(self._board.usage)}"

    def _print(self, text: str) -> None:
        text = text if speaks_unicode(self._console) else to_ascii(text)
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
