"""A stream's beginning, held back until it says something, so that an empty stream can be asked for again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk

from langgraph_amc.policy.portions import usage_in
from langgraph_amc.policy.retry import has_content, no_answer
from langgraph_amc.trajectories.types import Usage


class Opening:
    """Passes a stream's chunks on from the first one with content."""

    def __init__(self, accept_truncated: bool) -> None:
        self.started = False
        self._accept_truncated = accept_truncated
        self._held: list[ChatGenerationChunk] = []
        self._usage: Usage | None = None
        self._finish_reason: str | None = None

    def take(self, chunk: ChatGenerationChunk) -> Iterator[ChatGenerationChunk]:
        """What can be passed on now that this chunk has come."""
        message: Any = chunk.message
        self._usage = usage_in(message) or self._usage
        self._finish_reason = message.response_metadata.get("finish_reason") or self._finish_reason
        if self.started:
            yield chunk
            return
        self._held.append(chunk)
        self.started = _says_something(message)
        if self.started:
            yield from self.rest()

    def check(self) -> None:
        """At the end: raise EmptyAnswerError or TruncatedAnswerError if it was no answer."""
        if self._finish_reason == "length":
            if not self._accept_truncated:
                raise no_answer("truncated", self._usage)
        elif not self.started:
            raise no_answer("empty", self._usage)

    def rest(self) -> Iterator[ChatGenerationChunk]:
        """What is still held back."""
        held, self._held = self._held, []
        yield from held


def _says_something(message: Any) -> bool:
    calls = isinstance(message, AIMessageChunk) and message.tool_call_chunks
    # the reasoning that goes before an answer is passed on as it comes, but is none by itself
    return has_content(message.content) or bool(calls) or bool(message.additional_kwargs.get("function_call"))
