"""From a stored transcript back to the messages of the conversation, as chat templates and TRL take them.

A transcript is ChatML whose delimiters no content can imitate (`trajectories.transcript`), so it reads back without
guessing. Not in it, and so not read back: ids of tool calls, images, reasoning, and what an app told its model without
keeping it in its messages. `rendering.check_seen` compares the result with what the policy really read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.trajectories.transcript import REWRITTEN, Transcript
from langgraph_amc.trajectories.types import Trajectory

Message = Mapping[str, Any]
"""``role`` and ``content``; of the model, also ``tool_calls`` in OpenAI's form, whose arguments are a mapping."""
Tool = Mapping[str, Any]
"""A tool's schema in OpenAI's form, as `convert_to_openai_tool` of LangChain gives it."""

ASSISTANT = "assistant"
_MESSAGE = re.compile(r"<\|im_start\|>([^\n]*)\n(.*?)<\|im_end\|>\n", re.DOTALL)
_ERROR = "[error] "


class NotAConversationError(AMCError):
    """A transcript that is no list of messages, or not one that only grows: there is nothing to train on."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a trajectory, and the state (from 0) in which it was there first."""

    message: Message
    state: int

    @property
    def by_model(self) -> bool:
        """Whether the policy said it."""
        return bool(self.message["role"] == ASSISTANT)


def conversation(
    trajectory: Trajectory, tools: Iterable[Tool] = (), transcript: Transcript | None = None
) -> tuple[Said, ...]:
    """The messages of a trajectory in order.

    Parameters
    ----------
    tools: that the model was given. A transcript writes a call as a line ``name {arguments}``; the last lines of what
        the model said are read as calls where the name is one of theirs.
    transcript: the options that the segments were written with, as everywhere else.

    Raises
    ------
    NotAConversationError: the text is not made of messages, or earlier ones were rewritten on the way.
    ConfigurationError: the segments were written with other options.
    """
    transcript = transcript or Transcript()
    if trajectory.fingerprint not in ("", transcript.fingerprint):
        raise ConfigurationError(
            f"run {trajectory.run_id}, particle {trajectory.particle} was written with other transcript options: give "
            "transcript= the options that the runs were collected with"
        )
    names = {tool["function"]["name"] for tool in tools}
    found: list[Said] = []
    waiting: list[str] = []  # tool calls without a result so far
    for state, segment in enumerate(trajectory.segments):
        if segment.startswith(REWRITTEN):
            raise NotAConversationError(f"run {trajectory.run_id} rewrites its messages on the way")
        for role, content in _messages(segment, transcript.roles, trajectory):
            message = _message(role, content, names, waiting)
            found.append(Said(message, state))
    return tuple(found)


def key_of(message: Message) -> str:
    """Equal for equal messages."""
    return json.dumps(message, sort_keys=True, ensure_ascii=False)


def _messages(segment: str, roles: Mapping[str, str], trajectory: Trajectory) -> Iterable[tuple[str, str]]:
    back = {new: old for old, new in roles.items()} if len(set(roles.values())) == len(roles) else {}
    end = 0
    for match in _MESSAGE.finditer(segment):
        if match.start() != end:
            break
        end = match.end()
        yield back.get(match[1], match[1]), match[2]
    if end != len(segment):
        raise NotAConversationError(
            f"run {trajectory.run_id}, particle {trajectory.particle}: the transcript is not made of messages"
        )


def _message(role: str, content: str, names: Collection[str], waiting: list[str]) -> Message:
    if role == ASSISTANT and names:
        text, calls = _calls(content, names)
        waiting.extend(call["function"]["name"] for call in calls)
        return {"role": role, "content": text, **({"tool_calls": calls} if calls else {})}
    if role == "tool":
        name = {"name": waiting.pop(0)} if waiting else {}
        return {"role": role, **name, "content": content.removeprefix(_ERROR)}
    return {"role": role, "content": content}


def _calls(content: str, names: Collection[str]) -> tuple[str, list[dict[str, Any]]]:
    """The text of what the model said, and the calls at its end."""
    lines = content.split("\n")
    calls: list[dict[str, Any]] = []
    while lines and (call := _call(lines[-1], names)) is not None:
        calls.insert(0, call)
        lines.pop()
    return "\n".join(lines), calls


def _call(line: str, names: Collection[str]) -> dict[str, Any] | None:
    name, _, written = line.partition(" ")
    if name not in names:
        return None
    try:
        arguments = json.loads(written)
    except json.JSONDecodeError:
        return None
    if not isinstance(arguments, dict):
        return None
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def up_to_last_answer(said: Sequence[Said]) -> tuple[Said, ...]:
    """Without what follows the last thing that the model said: nothing more is to be learnt from it."""
    last = max((i for i, s in enumerate(said) if s.by_model), default=-1)
    return tuple(said[: last + 1])
