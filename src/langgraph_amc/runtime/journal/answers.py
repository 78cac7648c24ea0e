"""Model answers that were paid for: stored when they come, given out again after a crash."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, Generation
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_amc.runtime.journal.coding import Typed, dump
from langgraph_amc.runtime.journal.messages import from_plain, to_plain
from langgraph_amc.runtime.journal.writer import Change, Writer

Question = tuple[str, int, bytes]
"""(particle, boundary it runs on from, digest of what the model was asked)"""


class PaidAnswer(ChatGeneration):
    """An answer that was paid when it came: the message keeps its usage.

    LangChain marks whatever a cache answers as free of charge, in the message, which becomes part of the state.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "message":
            super().__setattr__(name, value)


class JournaledAnswers:
    """The answers of one run. Of equal questions, answers are given out in the order in which they came."""

    def __init__(self, run: int, writer: Writer, serde: SerializerProtocol, stored: Iterable[Any] = ()) -> None:
        self._run, self._writer, self._serde = run, writer, serde
        self._lock = threading.Lock()
        self._kept: dict[Question, list[Typed]] = {}
        self._count: Counter[Question] = Counter()
        self._asked: dict[str, set[Question]] = {}
        """By particle, what is counted."""
        self._given: Counter[Question] = Counter()
        for row in stored:
            question = (row.particle, row.boundary, bytes(row.digest))
            self._kept.setdefault(question, []).append((row.type, bytes(row.data)))
            self._count[question] = row.nth + 1
            self._asked.setdefault(row.particle, set()).add(question)
        self._left = sum(map(len, self._kept.values()))

    @property
    def replaying(self) -> bool:
        """Whether answers that an earlier process was given are left to give out."""
        return bool(self._left)

    def lookup(self, particle: str, boundary: int, digest: bytes) -> list[Generation] | None:
        """The next answer that an earlier process was given to this question."""
        question = (particle, boundary, digest)
        with self._lock:
            kept, given = self._kept.get(question, ()), self._given[question]
            if given >= len(kept):
                return None
            self._given[question] += 1
            self._left -= 1
        return _load(self._serde, kept[given])

    def record(self, particle: str, boundary: int, digest: bytes, answer: Sequence[Generation]) -> None:
        """Store an answer within milliseconds.

        Nothing waits for that: what must not happen before an answer is safe, an effect, is written after it.
        """
        question = (particle, boundary, digest)
        kind, data = _dump(self._serde, answer)
        with self._lock:
            nth = self._count[question]
            self._count[question] += 1
            self._asked.setdefault(particle, set()).add(question)
            self._writer.put([("answer", (self._run, *question, nth, kind, data))], soon=True)

    def passed(self, particle: str, boundary: int) -> list[Change]:
        """What removes the answers to questions from before ``boundary``, which is never run from again."""
        with self._lock:
            asked = self._asked.get(particle, set())
            old = [question for question in asked if question[1] < boundary]
            asked.difference_update(old)
            for question in old:
                del self._count[question]
                self._left -= max(len(self._kept.pop(question, ())) - self._given.pop(question, 0), 0)
        return [("forget answers", (self._run, particle, boundary))] if old else []


def _dump(serde: SerializerProtocol, answer: Sequence[Generation]) -> Typed:
    # a message inside another model would be read back as its base class: so it stands on its own
    parts = [
        [to_plain(g.message) or g.message if isinstance(g, ChatGeneration) else g.text, g.generation_info]
        for g in answer
    ]
    return dump(serde, parts, "a model's answer")


def _load(serde: SerializerProtocol, stored: Typed) -> list[Generation]:
    return [_answer(said, info) for said, info in serde.loads_typed(stored)]


def _answer(said: Any, info: dict[str, Any] | None) -> Generation:
    if isinstance(said, str):
        return Generation(text=said, generation_info=info)
    message = said if isinstance(said, BaseMessage) else from_plain(said)
    return PaidAnswer(message=message, generation_info=info)
