"""The transcript: one append-only text of a run, written by the same code in training and in serving.

The value function of Agentic Monte Carlo reads a state s_t as text. Because the text of s_t is a prefix of
the text of s_{t+1}, the values of all T + 1 states of a run come out of one forward pass, and a value model
served later reads exactly what it was trained on. The format is ChatML, message after message.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph_amc.errors import AMCError

FORMAT_VERSION = 1
REWRITTEN = "<|im_start|>system\n[history rewritten]<|im_end|>\n"
"""Stands in a transcript where the app changed or removed earlier messages; the new history follows it."""

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
_REASONING = {"reasoning", "thinking", "redacted_thinking"}
# Providers repeat tool calls inside the content; the transcript takes them from `tool_calls` only.
_CALLS = {
    "tool_call",
    "tool_call_chunk",
    "tool_use",
    "function_call",
    "invalid_tool_call",
    "input_json_delta",
}


class TranscriptError(AMCError, ValueError):
    """A state or message that cannot be written into a transcript."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """How a run is written as text; the options that training and serving must share.

    Attributes
    ----------
    roles: role names that replace the defaults system, user, assistant and tool, e.g. ``{"tool": "user"}``.
    include_tool_calls: write the model's tool calls, one line ``name {arguments as JSON}`` each.
    include_reasoning: write reasoning blocks; off by default, since many providers hide them.
    max_tool_chars: cut longer tool results, saying how much was cut; ``None`` keeps all.
    messages_key: where the state keeps its messages.
    extra: anything else that must match between training and serving; part of the fingerprint only.
    text_of, name: see `from_state`.
    """

    roles: Mapping[str, str] = field(default_factory=dict, hash=False)
    include_tool_calls: bool = True
    include_reasoning: bool = False
    max_tool_chars: int | None = None
    messages_key: str = "messages"
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    text_of: Callable[[Any], str] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if self.max_tool_chars is not None and self.max_tool_chars < 1:
            raise TranscriptError("max_tool_chars is a positive number of characters, or None for no limit")
        if unknown := set(self.roles) - set(_ROLES.values()):
            raise TranscriptError(f"roles {sorted(unknown)} are unknown: rename {sorted(set(_ROLES.values()))}")

    @classmethod
    def from_state(cls, fn: Callable[[Any], str], *, name: str = "", **options: Any) -> Transcript:
        """A transcript for states without messages: ``fn(state)`` gives the text of the whole state.

        While the text grows, only what it grew by is appended; otherwise `REWRITTEN` and the whole text are.
        ``name`` stands for the function in the fingerprint (default: its qualified name): change it whenever
        the function's text changes.
        """
        return cls(text_of=fn, name=name or fn.__qualname__, **options)

    def options(self) -> dict[str, Any]:
        """What the fingerprint covers, as JSON values; `from_options` reads it back."""
        return {
            "format": FORMAT_VERSION,
            "roles": dict(self.roles),
            "include_tool_calls": self.include_tool_calls,
            "include_reasoning": self.include_reasoning,
            "max_tool_chars": self.max_tool_chars,
            "messages_key": self.messages_key,
            "extra": dict(self.extra),
            "name": self.name,
        }

    @classmethod
    def from_options(cls, options: Mapping[str, Any], text_of: Callable[[Any], str] | None = None) -> Transcript:
        """The transcript that wrote ``options``, e.g. into a value checkpoint.

        Raises `TranscriptError` for another format version, and where ``options`` came from a function of
        the state that is not given again as ``text_of``.
        """
        rest = dict(options)
        if (version := rest.pop("format", None)) != FORMAT_VERSION:
            raise TranscriptError(
                f"transcript format {version!r} is not {FORMAT_VERSION}: use the langgraph-amc that wrote it"
            )
        if rest.get("name") and text_of is None:
            raise TranscriptError(f"this transcript is a function of the state, {rest['name']}: pass text_of=")
        return cls(text_of=text_of, **rest)

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that differ where the options or the format version differ."""
        canonical = json.dumps(self.options(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def render(self, messages: Iterable[Any]) -> str:
        """The text of ``messages``: LangChain messages or anything LangChain turns into one."""
        return "".join([self._message(m) for m in _as_messages(messages)])

    def _message(self, message: Any) -> str:
        kind = _kind(message)
        content = self._content(message.content)
        if kind in ("tool", "function"):
            content = self._tool_result(message, content)
        elif kind == "ai" and self.include_tool_calls:
            content = "\n".join(filter(None, [content, *_tool_calls(message)]))
        role = message.role if kind == "chat" else _ROLES.get(kind, kind)
        return f"<|im_start|>{_clean(self.roles.get(role, role))}\n{_clean(content)}<|im_end|>\n"

    def _content(self, content: str | Sequence[Any]) -> str:
        if isinstance(content, str):
            return content
        lines: list[str] = []
        in_text = False
        for block in content:
            text, is_text = self._block(block)
            if text is None:
                continue
            # Providers split one text at citations: neighbouring text blocks belong together.
            if is_text and in_text:
                lines[-1] += text
            else:
                lines.append(text)
            in_text = is_text
        return "\n".join(lines)

    def _block(self, block: str | Mapping[str, Any]) -> tuple[str | None, bool]:
        if isinstance(block, str):
            return block, True
        kind = str(block.get("type", ""))
        if kind in _REASONING:
            shown = block.get("reasoning") or block.get("thinking") or ""
            return (str(shown), False) if self.include_reasoning and shown else (None, False)
        if kind in _CALLS:
            return None, False
        if isinstance(block.get("text"), str):
            return block["text"], True
        return f"[{kind or 'content'}]", False

    def _tool_result(self, message: Any, content: str) -> str:
        if self.max_tool_chars is not None and len(content) > self.max_tool_chars:
            cut = len(content) - self.max_tool_chars
            content = f"{content[: self.max_tool_chars]}[{cut} more characters]"
        return f"[error] {content}" if getattr(message, "status", None) == "error" else content


@dataclass(frozen=True, slots=True)
class TranscriptBuilder:
    """A transcript in the making: immutable, so that a clone of a particle simply shares it.

    Attributes
    ----------
    segments: one per state so far, see `langgraph_amc.trajectories.Segments`.
    seen: the messages (or the text) of the last state.
    """

    transcript: Transcript = field(default_factory=Transcript)
    segments: tuple[str, ...] = ()
    seen: tuple[Any, ...] | str | None = None

    @property
    def text(self) -> str:
        """The text of the last state."""
        return "".join(self.segments)

    def extend(self, state: Any) -> TranscriptBuilder:
        """The builder after one more state, whose segment is ``.segments[-1]``.

        Renders only what the state adds. Earlier messages are compared by identity first (messages are
        immutable in LangGraph) and by what they would render as otherwise; if one changed or is gone, the
        segment is `REWRITTEN` followed by the whole new history.
        """
        now, segment = self._text(state) if self.transcript.text_of else self._messages(state)
        return replace(self, segments=(*self.segments, segment), seen=now)

    def _messages(self, state: Any) -> tuple[tuple[Any, ...], str]:
        found = _messages_of(state, self.transcript.messages_key)
        before = self.seen if isinstance(self.seen, tuple) else ()
        if len(found) >= len(before) and all(map(operator.is_, before, found)):
            new = tuple(_as_messages(found[len(before) :]))
            return (*before, *new), self.transcript.render(new)
        now = tuple(_as_messages(found))
        if self._continues(before, now):
            return now, self.transcript.render(now[len(before) :])
        return now, REWRITTEN + self.transcript.render(now)

    def _continues(self, before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
        render = self.transcript._message
        return len(now) >= len(before) and all(
            old is new or render(old) == render(new) for old, new in zip(before, now, strict=False)
        )

    def _text(self, state: Any) -> tuple[str, str]:
        assert self.transcript.text_of is not None
        now = self.transcript.text_of(state)
        if not isinstance(now, str):
            raise TranscriptError(f"{self.transcript.name} returned {type(now).__name__}: return the state's text")
        now = printable(now)
        if not isinstance(self.seen, str):
            return now, now
        if now.startswith(self.seen):
            return now, now[len(self.seen) :]
        return now, REWRITTEN + now


def segments_from_states(states: Iterable[Any], transcript: Transcript | None = None) -> tuple[str, ...]:
    """Segments of a run from its states, oldest first; one segment per state."""
    builder = TranscriptBuilder(transcript or Transcript())
    for state in states:
        builder = builder.extend(state)
    return builder.segments


def segments_from_messages(messages: Iterable[Any], transcript: Transcript | None = None) -> tuple[str, ...]:
    """Segments of a recorded conversation whose states lie before each model call and at the end.

    ``segments[0]`` is what came before the first AI message; each later one is an AI message and what
    followed it, so that a conversation with T AI messages has T + 1 segments.
    """
    transcript = transcript or Transcript()
    return tuple(transcript.render(turn) for turn in turns(messages))


def turns(messages: Iterable[Any]) -> list[list[Any]]:
    """Messages before the first AI message, then one list per AI message and what followed it."""
    out: list[list[Any]] = [[]]
    for message in _as_messages(messages):
        if _kind(message) == "ai":
            out.append([])
        out[-1].append(message)
    return out


def _as_messages(messages: Iterable[Any]) -> Iterator[Any]:
    for message in messages:
        if isinstance(message, (str, tuple, list, dict)):
            from langchain_core.messages import convert_to_messages

            yield from convert_to_messages([message])
        else:
            yield message


def _messages_of(state: Any, key: str) -> Sequence[Any]:
    if isinstance(state, (list, tuple)):
        return state
    found = state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
    if not isinstance(found, (list, tuple)):
        raise TranscriptError(
            f"the state has no list of messages under {key!r}: set Transcript(messages_key=...), or write "
            "the state as text yourself with Transcript.from_state(fn)"
        )
    return found


def _kind(message: Any) -> str:
    try:
        kind: str = message.type
    except AttributeError:
        raise TranscriptError(f"{type(message).__name__} is no message: use LangChain messages") from None
    if kind == "remove":
        raise TranscriptError("a RemoveMessage belongs into an update, not into a state: use a messages reducer")
    # Streamed parts: AIMessageChunk, HumanMessageChunk, ...
    return kind.removesuffix("MessageChunk").lower() if kind.endswith("MessageChunk") else kind


def _tool_calls(message: Any) -> Iterator[str]:
    for call in message.tool_calls:
        try:
            # Sorted: a JSON column in a checkpointer may have changed the order of the keys.
            arguments = json.dumps(call["args"], ensure_ascii=False, sort_keys=True)
        except (TypeError, ValueError) as exc:
            raise TranscriptError(f"the arguments of tool call {call['name']!r} are not JSON: {exc}") from exc
        yield f"{call['name']} {arguments}"
    for call in message.invalid_tool_calls:
        yield f"[invalid call] {call.get('name') or ''} {call.get('args') or ''}"


def _clean(text: str) -> str:
    # Text that quotes the delimiters must not look like another message.
    return printable(text).replace("<|im_", "<| im_")


def printable(text: str) -> str:
    """``text`` without NUL and lone surrogates, which tokenizers and databases refuse."""
    if text.isascii():
        return text.replace("\x00", "\ufffd") if "\x00" in text else text
    return text.replace("\x00", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")
