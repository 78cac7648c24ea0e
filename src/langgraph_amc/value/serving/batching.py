"""Micro-batching: what several threads ask within a few milliseconds becomes one call of the value function."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from langgraph_amc.errors import AMCError
from langgraph_amc.trajectories.types import Segments
from langgraph_amc.value.protocol import FloatArray, SoftValueFunction, ValueFunction


class BusyError(AMCError):
    """More waits to be scored than the server was told to keep: come again later."""


@dataclass(slots=True, eq=False)
class _Asked:
    transcripts: Sequence[Segments]
    beta: float | None
    scores: Future[FloatArray] = field(default_factory=Future)


class MicroBatches:
    """Scores what threads ask, as much as fits at a time, in a thread of its own.

    Parameters
    ----------
    most: transcripts of one call; a request with more goes alone.
    waiting: transcripts that may wait.
    window: seconds that a request waits for others.
    """

    def __init__(self, value: ValueFunction, most: int, waiting: int, window: float) -> None:
        self.calls = 0
        self._value = value
        self._most = most
        self._waiting = waiting
        self._window = window
        self._asked: deque[_Asked] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="amc-value-batches", daemon=True)
        self._thread.start()

    def score(self, transcripts: Sequence[Segments], beta: float | None = None) -> FloatArray:
        """The values, or soft values at ``beta``, of these states, [n]; waits for its turn.

        Raises BusyError if too much waits already or the server stops, and what the value function raises.
        """
        if not transcripts:
            return np.empty(0)
        asked = _Asked(transcripts, beta)
        with self._changed:
            if self._closing:
                raise BusyError("the value server is stopping: come again when it is back")
            if self._asked and self._count() + len(transcripts) > self._waiting:
                raise BusyError(f"{self._count():,} transcripts wait already: come again later")
            self._asked.append(asked)
            self._changed.notify_all()
        return asked.scores.result()

    def close(self) -> None:
        """Score what waits, take nothing more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _count(self) -> int:
        return sum(len(asked.transcripts) for asked in self._asked)

    def _run(self) -> None:
        while batch := self._next():
            self._answer(batch)

    def _next(self) -> list[_Asked]:
        """The requests of the next call, in the order they came; none when all is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._closing)
            until = time.monotonic() + self._window
            while not self._closing and self._count() < self._most and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            batch: list[_Asked] = []
            size = 0
            while self._asked:
                first = self._asked[0]
                size += len(first.transcripts)
                if batch and (first.beta != batch[0].beta or size > self._most):
                    break
                batch.append(self._asked.popleft())
            return batch

    def _answer(self, batch: list[_Asked]) -> None:
        try:
            scores = self._call([segments for asked in batch for segments in asked.transcripts], batch[0].beta)
        except BaseException as error:
            if len(batch) == 1:
                batch[0].scores.set_exception(error)
            else:  # whose fault it was shows when each is asked alone
                for asked in batch:
                    self._answer([asked])
            return
        at = 0
        for asked in batch:
            asked.scores.set_result(scores[at : at + len(asked.transcripts)])
            at += len(asked.transcripts)

    def _call(self, transcripts: list[Segments], beta: float | None) -> FloatArray:
        self.calls += 1
        if beta is None:
            return self._value.score(transcripts)
        assert isinstance(self._value, SoftValueFunction)
        return self._value.soft_score(transcripts, beta)
