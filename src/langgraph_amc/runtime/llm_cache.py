"""LangChain's global cache of model answers while AMC runs: apart for every particle, and backed by the journal.

A callback that every model below a particle has keeps what it answers. After a crash the global cache, which every
model asks before it generates, gives out what was kept; once that is used up it is taken away again, because
LangChain writes the whole prompt as JSON for each question to a cache. Models that opt out of caches
(``cache=False``, or one of their own), and those that a node streams itself (``model.stream``), are asked again.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from uuid import UUID

from langchain_core.caches import BaseCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import Generation, LLMResult

from langgraph_amc.context import ParticleContext, current_boundary, current_particle
from langgraph_amc.runtime.boundaries import ModelCalls

T = TypeVar("T")
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


class Answers(Protocol):
    """Keeps the answers that a run's particles were given, by what they asked and from which boundary."""

    @property
    def replaying(self) -> bool:
        """Whether answers from before the run was broken off are left to give out."""
        ...

    def lookup(self, particle: str, boundary: int, digest: bytes) -> list[Generation] | None:
        """The next answer that was given to this question before the run was broken off."""
        ...

    def record(self, particle: str, boundary: int, digest: bytes, answer: Sequence[Generation]) -> None:
        """Keep an answer; does not wait for the disk."""
        ...


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
    """Gives out the answers of a broken run again, to the particles that had them.

    Other calls see ``inner`` only: the user's cache, if there is one.
    """

    def __init__(self, inner: BaseCache | None) -> None:
        self.inner = inner

    def lookup(self, prompt: str, llm_string: str) -> Any:
        found = _replayed(prompt)
        return self.inner.lookup(prompt, llm_string) if found is None and self.inner is not None else found

    def update(self, prompt: str, llm_string: str, return_val: Any) -> None:
        if self.inner is not None:
            self.inner.update(prompt, llm_string, return_val)

    async def alookup(self, prompt: str, llm_string: str) -> Any:
        found = _replayed(prompt)
        return await self.inner.alookup(prompt, llm_string) if found is None and self.inner is not None else found

    async def aupdate(self, prompt: str, llm_string: str, return_val: Any) -> None:
        if self.inner is not None:
            await self.inner.aupdate(prompt, llm_string, return_val)

    def clear(self, **kwargs: Any) -> None:
        if self.inner is not None:
            self.inner.clear(**kwargs)


@dataclass(slots=True)
class Call:
    """A model's call under way in a run with a journal."""

    answers: Answers
    run: str
    particle: str
    boundary: int
    said: bytes
    """Digest of the messages."""
    digest: bytes
    """Of the messages and the parameters: what tells the question."""
    looked_up: bool = False
    replayed: bool = False


class Calls:
    """The model calls under way in runs with a journal."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[UUID, Call] = {}

    def begin(self, run_id: UUID, asked: str | Sequence[BaseMessage], parameters: Any) -> None:
        """A model is being asked; nothing is noted outside a run with a journal."""
        if (here := _here()) is None:
            return
        answers, particle = here
        said = content_digest(asked)
        boundary = current_boundary.get()
        call = Call(answers, particle.run_id, particle.particle, boundary, said, digest(said, parameters))
        with self._lock:
            self._calls[run_id] = call

    def end(self, run_id: UUID) -> Call | None:
        with self._lock:
            return self._calls.pop(run_id, None)

    def waiting(self, particle: ParticleContext, prompt: str) -> Call | None:
        """The call that asks the cache for ``prompt``: the particle's only one, or the first that said the same."""
        with self._lock:
            mine = [
                call
                for call in self._calls.values()
                if not call.looked_up and (call.run, call.particle) == (particle.run_id, particle.particle)
            ]
            said = _prompt_digest(prompt) if len(mine) > 1 else b""
            call = mine[0] if len(mine) == 1 else next((c for c in mine if c.said == said), None)
            if call is not None:
                call.looked_up = True
            return call


class Recorder(BaseCallbackHandler):
    """Hands every answer to the journal of the run it was given to, which writes it within milliseconds."""

    run_inline = True
    raise_error = True
    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True
    ignore_retry = True
    ignore_custom_event = True

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        _calls.begin(run_id, messages[0], kwargs.get("invocation_params"))

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        # a plain model asks the cache before it says so: nothing but the prompt is known there
        _calls.begin(run_id, prompts[0], None)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        call = _calls.end(run_id)
        if call is not None and not call.replayed and response.generations:
            call.answers.record(call.particle, call.boundary, call.digest, response.generations[0])

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        _calls.end(run_id)


recorder = Recorder()


class RecordedCalls(ModelCalls):
    """`ModelCalls` that are journaled too: one handler instead of two, as each costs time at every node."""

    raise_error = True

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        super().on_chat_model_start(serialized, messages, **kwargs)
        recorder.on_chat_model_start(serialized, messages, **kwargs)

    def on_llm_start(self, serialized: Any, prompts: Any, **kwargs: Any) -> None:
        super().on_llm_start(serialized, prompts, **kwargs)
        recorder.on_llm_start(serialized, prompts, **kwargs)

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        super().on_llm_end(response, **kwargs)
        recorder.on_llm_end(response, **kwargs)

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        super().on_llm_error(error, **kwargs)
        recorder.on_llm_error(error, **kwargs)


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
    """Give out the answers that a run had before it was broken off; a `Recorder` keeps those that come."""
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
    if any(answers.replaying for answers in _journaled.values()):
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


def _here() -> tuple[Answers, ParticleContext] | None:
    """The particle that runs here and where its answers are kept; ``None`` outside runs with a journal."""
    particle = current_particle.get()
    answers = None if particle is None else _journaled.get(particle.run_id)
    return None if particle is None or answers is None else (answers, particle)


def _replayed(prompt: str) -> list[Generation] | None:
    if (here := _here()) is None:
        return None
    answers, particle = here
    if (call := _calls.waiting(particle, prompt)) is not None:
        found = answers.lookup(call.particle, call.boundary, call.digest)
        call.replayed = found is not None
    else:
        question = digest(content_digest(prompt), None)
        found = answers.lookup(particle.particle, current_boundary.get(), question)
    if not answers.replaying:
        with _changing:
            _rewrap()
    return found


FIRST, LAST = 1, 4
"""Messages that tell a question: these, and how long each of the others is."""
WHOLE = 16_000
"""Characters up to which what the others say is looked at too."""


def content_digest(asked: str | Sequence[BaseMessage]) -> bytes:
    """16 bytes that stand for what was said, whatever ids and metadata the messages have."""
    if isinstance(asked, str):
        return _digest([asked])
    parts = _outline([message.content for message in asked])
    for message in _telling(asked):
        calls = message.tool_calls if isinstance(message, AIMessage) else ()
        answers = message.tool_call_id if isinstance(message, ToolMessage) else None
        _say(parts, message.type, message.content, calls, answers)
    return _digest(parts)


def _telling(asked: Sequence[T]) -> Sequence[T]:
    return asked if len(asked) <= FIRST + LAST else [*asked[:FIRST], *asked[-LAST:]]


def _outline(contents: Sequence[Any]) -> list[str]:
    lengths = tuple(map(len, contents))
    parts = [str(hash((len(contents), *lengths)))]  # that of whole numbers is the same in every process
    if len(contents) > FIRST + LAST and sum(lengths) <= WHOLE:
        parts += map(_text, contents[FIRST:-LAST])
    return parts


def _say(parts: list[str], kind: str, content: Any, calls: Sequence[Mapping[str, Any]], answers: str | None) -> None:
    parts.append(kind)
    parts.append(_text(content))
    if calls:
        parts.append(repr([(call["name"], call["args"], call["id"]) for call in calls]))
    elif answers is not None:
        parts.append(answers)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, sort_keys=True, default=repr)


def _prompt_digest(prompt: str) -> bytes:
    """`content_digest` of the messages that LangChain has written as a prompt, or of a plain model's text."""
    try:
        written = [message["kwargs"] for message in json.loads(prompt)]
        parts = _outline([m["content"] for m in written])
        for m in _telling(written):
            _say(parts, m["type"], m["content"], m.get("tool_calls") or (), m.get("tool_call_id"))
    except (ValueError, KeyError, TypeError):  # any text, and a message may hold what JSON cannot
        return content_digest(prompt)
    return _digest(parts)


def _digest(parts: Sequence[str]) -> bytes:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def digest(said: bytes, parameters: Any) -> bytes:
    """16 bytes that stand for a question, in every process; addresses of objects differ between processes."""
    text = str(sorted(parameters.items(), key=lambda item: str(item[0])) if parameters else "")
    if " at 0x" in text:
        text = _ADDRESS.sub("", text)
    return hashlib.blake2b(said + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


_calls = Calls()
