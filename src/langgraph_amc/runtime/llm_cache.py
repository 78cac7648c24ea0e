"""LangChain's global cache of model answers while AMC runs: apart for every particle, and backed by the journal.

Every chat model asks the global cache before it generates and hands it every answer afterwards. That makes it
the one place where paid answers can be kept for any model: all but those that opt out (``cache=False``, or a
cache of the model's own) and those that a node streams itself (``model.stream``), which LangChain never caches.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from langchain_core.caches import BaseCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.outputs import Generation

from langgraph_amc.context import current_boundary, current_particle

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


class Answers(Protocol):
    """Keeps the answers that a run's particles were given, by what they asked and from which boundary."""

    def lookup(self, particle: str, boundary: int, digest: bytes) -> list[Generation] | None:
        """The next answer that was given to this question before the run was broken off."""
        ...

    def record(self, particle: str, boundary: int, digest: bytes, answer: Sequence[Generation]) -> None:
        """Keep an answer; returns when it is safe."""
        ...

    async def arecord(self, particle: str, boundary: int, digest: bytes, answer: Sequence[Generation]) -> None: ...


class SaltedCache(BaseCache):
    """A language model cache in which every particle has keys of its own; unchanged outside AMC."""

    def __init__(self, inner: BaseCache) -> None:
        self.inner = inner

    def lookup(self, prompt: str, llm_string: str) -> Any:
        return self.inner.lookup(prompt, _salted(llm_string))

    def update(self, prompt: str, llm_string: str, return_val: Any) -> None:
        self.inner.update(prompt, _salted(llm_string), return_val)

    async def alookup(self, prompt: str, llm_string: str) -> Any:
        return await self.inner.alookup(prompt, _salted(llm_string))

    async def aupdate(self, prompt: str, llm_string: str, return_val: Any) -> None:
        await self.inner.aupdate(prompt, _salted(llm_string), return_val)

    def clear(self, **kwargs: Any) -> None:
        self.inner.clear(**kwargs)


class JournalCache(BaseCache):
    """Hands every answer to the journal of the run it was given to, and gives out those of a broken run again.

    Calls outside AMC, and of runs without a journal, see ``inner`` only: the user's cache, if there is one.
    """

    def __init__(self, inner: BaseCache | None) -> None:
        self.inner = inner

    def lookup(self, prompt: str, llm_string: str) -> Any:
        found = _replayed(prompt, llm_string)
        return self.inner.lookup(prompt, llm_string) if found is None and self.inner is not None else found

    def update(self, prompt: str, llm_string: str, return_val: Any) -> None:
        if (asked := _asked(prompt, llm_string)) is not None:
            asked.answers.record(asked.particle, asked.boundary, asked.digest, return_val)
        if self.inner is not None:
            self.inner.update(prompt, llm_string, return_val)

    async def alookup(self, prompt: str, llm_string: str) -> Any:
        found = _replayed(prompt, llm_string)
        return await self.inner.alookup(prompt, llm_string) if found is None and self.inner is not None else found

    async def aupdate(self, prompt: str, llm_string: str, return_val: Any) -> None:
        if (asked := _asked(prompt, llm_string)) is not None:
            await asked.answers.arecord(asked.particle, asked.boundary, asked.digest, return_val)
        if self.inner is not None:
            await self.inner.aupdate(prompt, llm_string, return_val)

    def clear(self, **kwargs: Any) -> None:
        if self.inner is not None:
            self.inner.clear(**kwargs)


def user_llm_cache() -> BaseCache | None:
    """LangChain's global cache as the user set it."""
    return _unwrapped(get_llm_cache())


@contextmanager
def salted_llm_cache() -> Iterator[None]:
    """Salt LangChain's global cache, if there is one, while any AMC run is active."""
    global _salters
    with _changing:
        _salters += 1
        _rewrap()
    try:
        yield
    finally:
        with _changing:
            _salters -= 1
            _rewrap()


@contextmanager
def journaled_llm_cache(run_id: str, answers: Answers) -> Iterator[None]:
    """Keep the model answers of a run, and give out those it had before it was broken off."""
    with _changing:
        _journaled[run_id] = answers
        _rewrap()
    try:
        yield
    finally:
        with _changing:
            del _journaled[run_id]
            _rewrap()


# -- inside --------------------------------------------------------------------------------------

_changing = threading.Lock()
_salters = 0
_journaled: dict[str, Answers] = {}


def _rewrap() -> None:
    """Wrap the user's cache as the runs that are active need it."""
    wanted = _unwrapped(get_llm_cache())
    if _salters and wanted is not None:
        wanted = SaltedCache(wanted)
    if _journaled:
        wanted = JournalCache(wanted)
    set_llm_cache(wanted)


def _unwrapped(cache: BaseCache | None) -> BaseCache | None:
    while isinstance(cache, JournalCache | SaltedCache):
        cache = cache.inner
    return cache


def _salted(llm_string: str) -> str:
    particle = current_particle.get()
    # the seed, not the run id: a run that is repeated under its seed finds its own answers again
    return llm_string if particle is None else f"{llm_string}|amc:{particle.seed}:{particle.particle}"


def _replayed(prompt: str, llm_string: str) -> list[Generation] | None:
    asked = _asked(prompt, llm_string)
    return None if asked is None else asked.answers.lookup(asked.particle, asked.boundary, asked.digest)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question, and where the answers of the run that asks are kept."""

    answers: Answers
    particle: str
    boundary: int
    digest: bytes


def _asked(prompt: str, llm_string: str) -> _Asked | None:
    """The journal of the run that asks, and its question; ``None`` where there is no journal."""
    particle = current_particle.get()
    answers = None if particle is None else _journaled.get(particle.run_id)
    if particle is None or answers is None:
        return None
    return _Asked(answers, particle.particle, current_boundary.get(), digest(prompt, llm_string))


def digest(prompt: str, llm_string: str) -> bytes:
    """16 bytes that stand for a question, in every process; addresses of objects differ between processes."""
    text = f"{prompt}\0{llm_string}"
    if " at 0x" in text:
        text = _ADDRESS.sub("", text)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
