"""LangChain's global cache of model answers while AMC runs: apart for every particle, and backed by the journal.

A callback that every model below a particle has keeps what it answers. After a crash the global cache, which every
model asks before it generates, gives out what was kept; once that is used up it is taken away again, because
LangChain writes the whole prompt as JSON for each question to a cache. Models that opt out of caches
(``cache=False``, or one of their own), and those that a node streams itself (``model.stream``), are asked again.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from langchain_core.caches import BaseCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.messages import BaseMessage
from langchain_core.outputs import Generation, LLMResult

from langgraph_amc.context import ParticleContext, current_boundary, current_particle
from langgraph_amc.policy.bounds import is_bare
from langgraph_amc.runtime.boundaries import ModelCalls

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
        found = _replayed(prompt, llm_string)
        return self.inner.lookup(prompt, llm_string) if found is None and self.inner is not None else found

    def update(self, prompt: str, llm_string: str, return_val: Any) -> None:
        if self.inner is not None:
            self.inner.update(prompt, llm_string, return_val)

    async def alookup(self, prompt: str, llm_string: str) -> Any:
        found = _replayed(prompt, llm_string)
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
    particle: str
    boundary: int
    asked: str | Sequence[BaseMessage]
    digest: bytes
    """Of all that was said and the parameters: what tells the question."""
    looked_up: bool = False
    replayed: bool = False


_begun: ContextVar[tuple[UUID, ...]] = ContextVar("amc_calls_begun", default=())
"""The model calls that were begun in this context, the newest first; some have ended."""


class Calls:
    """The model calls under way in runs with a journal."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[UUID, Call] = {}

    def begin(self, run_id: UUID, asked: str | Sequence[BaseMessage], parameters: Any, so_far: Asked) -> None:
        """A model is being asked; nothing is noted outside a run with a journal."""
        if (here := _here()) is None:
            return
        answers, particle = here
        call = Call(answers, particle.particle, current_boundary.get(), asked, question(asked, parameters, so_far))
        with self._lock:
            self._calls[run_id] = call
            around = [key for key in _begun.get() if key in self._calls]
        _begun.set((run_id, *around))

    def end(self, run_id: UUID) -> Call | None:
        with self._lock:
            return self._calls.pop(run_id, None)

    def waiting(self, prompt: str) -> Call | None:
        """The chat model's call that asks the cache for ``prompt`` here: the newest that said that, else the newest."""
        texts = _texts_of_prompt(prompt)
        if texts is None:
            return None
        with self._lock:
            around = [self._calls[key] for key in _begun.get() if key in self._calls]
            open = [call for call in around if not call.looked_up and not isinstance(call.asked, str)]
            same = (call for call in open if _texts(call.asked) == texts)
            call = next(same, open[0] if open else None)
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

    def __init__(self) -> None:
        super().__init__()
        self._so_far = Asked()

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        _calls.begin(run_id, messages[0], kwargs.get("invocation_params"), self._so_far)

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        _calls.begin(run_id, prompts[0], kwargs.get("invocation_params"), self._so_far)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        call = _calls.end(run_id)
        if call is not None and not call.replayed and response.generations:
            call.answers.record(call.particle, call.boundary, call.digest, response.generations[0])

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        _calls.end(run_id)


class RecordedCalls(ModelCalls):
    """`ModelCalls` that are journaled too: one handler instead of two, as each costs time at every node."""

    raise_error = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recorder = Recorder()

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        super().on_chat_model_start(serialized, messages, **kwargs)
        self._recorder.on_chat_model_start(serialized, messages, **kwargs)

    def on_llm_start(self, serialized: Any, prompts: Any, **kwargs: Any) -> None:
        super().on_llm_start(serialized, prompts, **kwargs)
        self._recorder.on_llm_start(serialized, prompts, **kwargs)

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        super().on_llm_end(response, **kwargs)
        self._recorder.on_llm_end(response, **kwargs)

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        super().on_llm_error(error, **kwargs)
        self._recorder.on_llm_error(error, **kwargs)


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


def _replayed(prompt: str, llm_string: str) -> list[Generation] | None:
    if (here := _here()) is None:
        return None
    answers, particle = here
    if (call := _calls.waiting(prompt)) is not None:
        found = answers.lookup(call.particle, call.boundary, call.digest)
        call.replayed = found is not None
    else:
        # a plain model asks the cache before it says so, by the parameters that it will then give
        said = hashlib.sha256(_bytes(prompt + _stable(llm_string))).digest()[:16]
        found = answers.lookup(particle.particle, current_boundary.get(), said)
    if not answers.replaying:
        with _changing:
            _rewrap()
    return found


_UNSAID = frozenset(("content", "type", "id", "response_metadata", "usage_metadata", "artifact", "invalid_tool_calls"))
"""Fields of a message that no provider is sent, or that are looked at apart."""


class Asked:
    """What was said in a conversation so far, as a hash that goes on: a question costs what is new in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: list[BaseMessage] = []
        self._contents: list[Any] = []
        self._hash = hashlib.sha256()

    def digest(self, messages: Sequence[BaseMessage]) -> Any:
        """The hash of all messages; they are compared by identity, and what they say too."""
        with self._lock:
            return self._digest(messages)

    def _digest(self, messages: Sequence[BaseMessage]) -> Any:
        known = len(self._messages)
        goes_on = (
            known <= len(messages)
            and all(map(operator.is_, self._messages, messages))
            and [message.content for message in self._messages] == self._contents
        )
        if not goes_on:
            known, self._messages, self._contents, self._hash = 0, [], [], hashlib.sha256()
        new = messages[known:]
        self._messages += new
        self._contents += [message.content for message in new]
        for message in new:
            extras = "" if is_bare(message) else _stable(str(_extras(message)))
            self._hash.update(_bytes(f"{message.type}\0{_text(message.content)}\0{extras}\0"))
        return self._hash.copy()


def question(asked: str | Sequence[BaseMessage], parameters: Any, so_far: Asked | None = None) -> bytes:
    """16 bytes that stand, in every process, for what a model was asked: all that was said, and the parameters."""
    said = hashlib.sha256(_bytes(asked)) if isinstance(asked, str) else (so_far or Asked()).digest(asked)
    said.update(_bytes(_stable(str(sorted(parameters.items())) if parameters else "")))
    return said.digest()[:16]


def _extras(message: BaseMessage) -> dict[str, Any]:
    """All but the content of a message that makes a difference."""
    return {name: value for name, value in message.__dict__.items() if value and name not in _UNSAID}


def _texts(asked: str | Sequence[BaseMessage]) -> list[str]:
    if isinstance(asked, str):
        return [asked]
    contents = [message.content for message in asked]
    return contents if set(map(type, contents)) == {str} else list(map(_text, contents))  # type: ignore[return-value]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, sort_keys=True, default=repr)


def _texts_of_prompt(prompt: str) -> list[str] | None:
    """The same of messages that LangChain has written for a cache; ``None`` for a plain model's prompt."""
    try:
        return [_text(message["kwargs"]["content"]) for message in json.loads(prompt)]
    except (ValueError, KeyError, TypeError, RecursionError):  # any text
        return None


def _stable(text: str) -> str:
    """Without the addresses of objects, which differ from process to process."""
    return _ADDRESS.sub("", text) if " at 0x" in text else text


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_calls = Calls()
