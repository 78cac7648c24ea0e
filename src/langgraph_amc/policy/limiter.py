"""How fast a provider may be asked: one limiter per provider key for all models, threads and event loops.

Own code, because the libraries each lack a part: aiolimiter knows one event loop and no threads, pyrate-limiter
and limits count requests but know neither calls in flight nor a pause for everybody when the provider asks for one.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.bell import Bell, Ear

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a provider allows one key; ``None`` is no limit.

    Attributes
    ----------
    concurrency: requests on their way at a time; a stream is until it has been read to its end or closed.
    requests_per_minute, tokens_per_minute: in any 60 seconds; a request counts with the bound on its prompt and
        with the longest answer it asks for, if it says so.
    """

    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name, value in zip(self.__slots__, self, strict=True):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"Limits({name}=…) is a whole number of at least 1, or None, got {value!r}")

    def __iter__(self) -> Iterator[int | None]:
        return iter((self.concurrency, self.requests_per_minute, self.tokens_per_minute))

    def tightened(self, other: Limits) -> Limits:
        """The lower of each limit."""
        pairs = zip(self, other, strict=True)
        return Limits(*(min((x for x in pair if x is not None), default=None) for pair in pairs))


@dataclass(slots=True)
class Turn:
    """One request's place in the queue; ``tokens`` may be corrected when it is known what the request took."""

    tokens: int
    queued: float
    began: float = 0.0


class Limiter:
    """Lets requests through in the order they come, as fast as the limits allow.

    Attributes
    ----------
    waited: seconds that all callers together have waited for their turn so far.
    backed_off: seconds they have paused between attempts.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.waited = 0.0
        self.backed_off = 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._bell = Bell()
        self._queue: deque[Turn] = deque()
        self._running = 0
        self._recent: deque[Turn] = deque()
        self._paused_until = 0.0

    def tighten(self, limits: Limits) -> None:
        """Take over limits where they are lower: another model on the same key knows of them."""
        with self._lock:
            self.limits = self.limits.tightened(limits)

    def pause(self, seconds: float) -> None:
        """Let nobody through for so long: the provider has asked for it."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + seconds)

    @contextmanager
    def turn(self, tokens: int = 0) -> Iterator[Turn]:
        """One request from its turn, for which this thread waits, to its end."""
        turn = self._queued(tokens)
        try:
            while (wait := self._admit(turn)) is not None:
                self._bell.sleep(*wait)
        finally:
            self._leave(turn)
        try:
            yield turn
        finally:
            self._end()

    @asynccontextmanager
    async def aturn(self, tokens: int = 0) -> AsyncIterator[Turn]:
        """The same without blocking the event loop."""
        turn = self._queued(tokens)
        try:
            while (wait := self._admit(turn)) is not None:
                await self._bell.asleep(*wait)
        finally:
            self._leave(turn)
        try:
            yield turn
        finally:
            self._end()

    def _queued(self, tokens: int) -> Turn:
        turn = Turn(tokens, self._clock())
        with self._lock:
            self._queue.append(turn)
        return turn

    def _leave(self, turn: Turn) -> None:
        with self._lock:
            self.waited += self._clock() - turn.queued
            self._queue = deque(other for other in self._queue if other is not turn)  # there if it was cancelled
        self._bell.ring()

    def _end(self) -> None:
        with self._lock:
            self._running -= 1
        self._bell.ring()

    def _admit(self, turn: Turn) -> tuple[Ear, float | None] | None:
        """Let the request through (``None``), or say what to wait for and how long at most."""
        with self._lock:
            now = self._clock()
            while self._recent and self._recent[0].began <= now - MINUTE:
                self._recent.popleft()
            if self._queue[0] is not turn:
                return self._bell.listen(), None
            if now < self._paused_until:
                return self._bell.listen(), self._paused_until - now
            if self.limits.concurrency is not None and self._running >= self.limits.concurrency:
                return self._bell.listen(), None
            free_at = self._free_at(turn.tokens)
            if free_at > now:
                return self._bell.listen(), free_at - now
            self._queue.popleft()
            self._running += 1
            if self.limits.requests_per_minute is not None or self.limits.tokens_per_minute is not None:
                turn.began = now
                self._recent.append(turn)
            return None

    def _free_at(self, tokens: int) -> float:
        """When enough of the last minute's requests are a minute old; a request above the limit goes alone."""
        requests, most = self.limits.requests_per_minute, self.limits.tokens_per_minute
        count, total = len(self._recent), sum(turn.tokens for turn in self._recent)
        free_at = 0.0
        for turn in self._recent:
            if (requests is None or count < requests) and (most is None or total + tokens <= most):
                break
            free_at = turn.began + MINUTE
            count, total = count - 1, total - turn.tokens
        return free_at


_limiters: dict[tuple[str, str, str], Limiter] = {}
_registry = threading.Lock()


def limiter_for(provider: str, api_base: str | None, api_key: str | None, limits: Limits = Limits()) -> Limiter:
    """The process's limiter for a provider key; where models state different limits, the lower ones hold."""
    digest = "" if api_key is None else hashlib.blake2b(api_key.encode(), digest_size=16).hexdigest()
    with _registry:
        limiter = _limiters.setdefault((provider, api_base or "", digest), Limiter(limits))
    limiter.tighten(limits)
    return limiter
