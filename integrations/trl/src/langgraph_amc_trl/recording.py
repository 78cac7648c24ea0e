"""What an engine is asked and answers during rollouts, in tokens, by rollout.

The app knows nothing of it: every model call of a particle carries its rollout's noise in its context
(`langgraph_amc.context.rollout_noise`), and that names the rollout.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from langgraph_amc.context import current_particle, rollout_noise
from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.generation import Generation, GenerationRequest, OnText
from langgraph_amc_trl.sequences import Call

Key = tuple[Hashable, ...]


@dataclass(slots=True)
class Recorder:
    """Finished calls by rollout, each in the order in which they ended."""

    _calls: dict[Key, list[Call]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, key: Key) -> tuple[Call, ...]:
        """The calls of one rollout, which are forgotten."""
        with self._lock:
            return tuple(self._calls.pop(key, ()))

    def _note(self, key: Key, request: GenerationRequest, future: Future[list[Generation]]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        calls = [
            Call(tuple(request.prompt_ids or ()), generation.token_ids, request.temperature, request.top_p)
            for generation in future.result()
        ]
        with self._lock:
            self._calls.setdefault(key, []).extend(calls)


@contextmanager
def recording(engine: BatchEngine) -> Iterator[Recorder]:
    """Record the calls of rollouts while the engine answers them as ever; others (a judge's) are not recorded."""
    recorder = Recorder()
    submit = engine.submit

    def recorded(request: GenerationRequest, on_text: OnText | None = None) -> Future[list[Generation]]:
        noise = rollout_noise.get()
        if noise is None or current_particle.get() is None:
            return submit(request, on_text)
        if request.messages is not None:  # the tokens that are kept are the tokens that are sent
            ids = engine.codec.prompt(request.messages, request.tools)
            request = replace(request, prompt_ids=ids, messages=None, tools=None)
        future = submit(request, on_text)
        future.add_done_callback(partial(recorder._note, noise.key, request))
        return future

    engine.submit = recorded  # type: ignore[method-assign]  # the engine has no listeners of its own
    try:
        yield recorder
    finally:
        del engine.submit
