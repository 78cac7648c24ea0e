"""Model answers on the disk as they come, so that a run that is killed asks for nothing twice.

Rollouts that have ended are in the store. Of those under way when the process died, and of what a proposer or a judging
reward was asked, the answers are here: a SQLite file behind LangChain's global cache, which every model asks before it
generates. An answer belongs to the rollout it was given in: another repeat of the same question gets its own, and so
does the same question asked again in one rollout. A model with ``cache=False``, one of its own, or one that is streamed
by the app is asked again; models of this process are never kept, they cost nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langchain_core.caches import BaseCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.messages import AIMessage, BaseMessage, BaseMessageChunk, message_chunk_to_message
from langchain_core.outputs import ChatGeneration, Generation
from pydantic import BaseModel

from langgraph_amc.context import RolloutNoise, instructions, rollout_noise
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.usage import LOCAL_PROVIDER
from langgraph_amc.runtime.journal.coding import pack, unpack
from langgraph_amc.runtime.journal.messages import from_plain, to_plain

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
_SAID = ("type", "content", "name", "tool_calls", "tool_call_id")
"""Fields of a message that tell one question from another; usage and ids differ between equal ones."""
_SCHEMA = "CREATE TABLE IF NOT EXISTS answers (question BLOB, nth INTEGER, answer BLOB, PRIMARY KEY (question, nth))"


class PaidAnswers(BaseCache):
    """The answers of one folder's run; other calls see ``inner``, the user's cache, only.

    Attributes
    ----------
    given: how many answers came from the disk instead of a provider.
    """

    def __init__(self, path: str | Path, inner: BaseCache | None = None) -> None:
        self.given = 0
        self._inner = inner
        self._lock = threading.Lock()
        self._asked: Counter[bytes] = Counter()
        try:
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing; a lost machine may
            self._database.execute(_SCHEMA)
        except sqlite3.Error as error:
            raise ConfigurationError(f"{path} cannot keep answers ({error}): move it away, or free the disk") from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def lookup(self, prompt: str, llm_string: str) -> Sequence[Generation] | None:
        """The next answer that was given to this question in this rollout."""
        question = _question(prompt, llm_string)
        if question is None:
            return None if self._inner is None else self._inner.lookup(prompt, llm_string)
        with self._lock:
            nth = self._asked[question]
            self._asked[question] += 1
            row = self._database.execute(
                "SELECT answer FROM answers WHERE question = ? AND nth = ?", (question, nth)
            ).fetchone()
            self.given += row is not None
        if row is not None:
            return [_loaded(part) for part in unpack(row[0])]
        return None if self._inner is None else self._inner.lookup(prompt, llm_string)

    def update(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        """Keep an answer; it is in the file when this returns."""
        question = _question(prompt, llm_string)
        parts = [_dumped(generation) for generation in return_val]
        if question is not None and None not in parts:
            with self._lock:
                self._database.execute(
                    "INSERT INTO answers SELECT ?, COUNT(*), ? FROM answers WHERE question = ?",
                    (question, pack(parts), question),
                )
        if self._inner is not None:
            self._inner.update(prompt, llm_string, return_val)

    async def alookup(self, prompt: str, llm_string: str) -> Sequence[Generation] | None:
        """`lookup`; the file answers within a fraction of a millisecond, a thread would take longer."""
        return self.lookup(prompt, llm_string)

    async def aupdate(self, prompt: str, llm_string: str, return_val: Sequence[Generation]) -> None:
        """`update`."""
        self.update(prompt, llm_string, return_val)

    def clear(self, **kwargs: Any) -> None:
        """Clear the user's cache; what was paid stays."""
        if self._inner is not None:
            self._inner.clear(**kwargs)


@contextmanager
def paid_answers(path: str | Path) -> Iterator[PaidAnswers]:
    """Keep the answers of all rollouts below, and give them out again."""
    before = get_llm_cache()
    answers = PaidAnswers(path, before)
    set_llm_cache(answers)
    try:
        yield answers
    finally:
        set_llm_cache(before)
        answers.close()


@contextmanager
def asking_as(*key: Hashable) -> Iterator[None]:
    """Model calls below belong to this, which is no rollout, like the proposals of a round."""
    before = rollout_noise.set(RolloutNoise(key))
    try:
        yield
    finally:
        rollout_noise.reset(before)


def _question(prompt: str, llm_string: str) -> bytes | None:
    """Who asks what of which model; ``None`` outside rollouts and for models of this process."""
    noise = rollout_noise.get()
    if noise is None or f"{LOCAL_PROVIDER}/" in llm_string:
        return None
    told = instructions.get()
    parts = (repr(noise.key), "" if told is None else told.text, _said(prompt), _ADDRESS.sub("", llm_string))
    text = "\x1f".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()


def _said(prompt: str) -> str:
    """What stands in the messages that LangChain has written for a cache; a plain model's prompt as it is."""
    try:
        messages = [message["kwargs"] for message in json.loads(prompt)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return prompt
    return json.dumps([{name: m[name] for name in _SAID if m.get(name)} for m in messages], sort_keys=True)


def _dumped(generation: Generation) -> list[Any] | None:
    """A generation in plain parts; ``None`` for one that has others."""
    if not isinstance(generation, ChatGeneration):
        return [generation.text, generation.generation_info]
    message: BaseMessage = generation.message
    if isinstance(message, BaseMessageChunk):
        message = message_chunk_to_message(message)
    about = {
        "response_metadata": _flat(message.response_metadata),
        "additional_kwargs": _flat(message.additional_kwargs),
    }
    plain = to_plain(message.model_copy(update=about))
    return None if plain is None else [list(plain), _flat(generation.generation_info)]


def _flat(value: Any) -> Any:
    """Nested plain data: what providers say about an answer holds objects of their clients."""
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, Mapping):
        return {str(name): _flat(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_flat(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float | str | bytes) else str(value)


def _loaded(parts: Sequence[Any]) -> Generation:
    said, info = parts
    if isinstance(said, str):
        return Generation(text=said, generation_info=info)
    message = from_plain(said)
    assert isinstance(message, AIMessage), "only models' answers are kept"
    return ChatGeneration(message=message, generation_info=info)
