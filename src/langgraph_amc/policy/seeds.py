"""Sampling seeds of model calls: one AMC seed reproduces every particle's samples, and no two collapse."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from langgraph_amc.context import ParticleContext

_RUNS_KEPT = 1024


def mix(*parts: Any) -> int:
    """A 63-bit hash of the parts' text forms, stable across processes."""
    text = "\x1f".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def place_of_call() -> str:
    """Where in a LangGraph app this call is made: the node within its graphs, and which of parallel `Send`s it is.

    The same in every run of the app. Empty outside nodes. Calls that one node makes at the same time share theirs.
    """
    config = var_child_runnable_config.get()
    about = {} if config is None else config.get("metadata", {})
    names = [part.partition(":")[0] for part in str(about.get("langgraph_checkpoint_ns", "")).split("|")]
    path = _numbers(about.get("langgraph_path", ()))
    return "|".join(names) + "".join(f"#{number}" for number in path)


def _numbers(path: Any) -> list[int]:
    """The places among parallel tasks that a task's path names, those of the tasks that it came from included."""
    if isinstance(path, bool) or not isinstance(path, int | tuple | list):
        return []  # names, of which the namespace tells, and ids, which are new in every run
    return [path] if isinstance(path, int) else [number for part in path[:3] for number in _numbers(part)]


class CallSeeds:
    """Seeds a particle's calls from its own seed, the prompt, and how often it has sent that prompt.

    Counting per prompt, not per call, keeps calls that a particle makes in parallel reproducible.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, dict[tuple[str, int], int]] = OrderedDict()

    def next(self, particle: ParticleContext, prompt: Any) -> int:
        """Seed of this particle's next call with this prompt."""
        digest = mix(prompt)
        key = (particle.particle, digest)
        with self._lock:
            counts = self._runs.setdefault(particle.run_id, {})
            self._runs.move_to_end(particle.run_id)
            if len(self._runs) > _RUNS_KEPT:
                self._runs.popitem(last=False)
            count = counts[key] = counts.get(key, -1) + 1
        return mix(particle.seed, digest, count)
