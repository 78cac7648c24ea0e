"""A transcript reads back as the messages that it was written from."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph_amc_trl.conversations import NotAConversationError, conversation

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.trajectories import Trajectory, Transcript, segments_from_messages
from langgraph_amc.trajectories.transcript import REWRITTEN

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "buy")]
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=20)
PLAIN = st.one_of(st.builds(HumanMessage, TEXT), st.builds(AIMessage, TEXT), st.builds(SystemMessage, TEXT))


def run(messages: list[AnyMessage], transcript: Transcript | None = None) -> Trajectory:
    transcript = transcript or Transcript()
    segments = segments_from_messages(messages, transcript)
    return Trajectory("r", "p0", segments, outcome=1.0, task_id="t", fingerprint=transcript.fingerprint)


@given(st.lists(PLAIN, max_size=6))
def test_whatever_is_said_reads_back(messages: list[AnyMessage]) -> None:
    said = conversation(run(messages))
    roles = {"human": "user", "ai": "assistant", "system": "system"}
    wanted = [(roles[m.type], m.text.replace("<|im_", "<| im_")) for m in messages]
    assert [(s.message["role"], s.message["content"]) for s in said] == wanted


def test_states_are_those_of_the_segments() -> None:
    said = conversation(run([HumanMessage("go"), AIMessage("one"), HumanMessage("more"), AIMessage("two")]))
    assert [(s.message["content"], s.state, s.by_model) for s in said] == [
        ("go", 0, False),
        ("one", 1, True),
        ("more", 1, False),
        ("two", 2, True),
    ]


def test_tool_calls_and_their_results() -> None:
    calls = [
        {"name": "look", "args": {"at": "it\nall", "deep": {"n": 1}}, "id": "1"},
        {"name": "buy", "args": {}, "id": "2"},
    ]
    messages: list[AnyMessage] = [
        HumanMessage("go"),
        AIMessage("I look.\nlook {not json}", tool_calls=calls),
        ToolMessage("seen", tool_call_id="1"),
        ToolMessage("no money", tool_call_id="2", status="error"),
        AIMessage("look {}"),
    ]
    said = [s.message for s in conversation(run(messages), TOOLS)]
    functions = [call["function"] for call in said[1]["tool_calls"]]
    assert said[1]["content"] == "I look.\nlook {not json}"
    assert functions == [{"name": c["name"], "arguments": c["args"]} for c in calls]
    assert said[2:4] == [
        {"role": "tool", "name": "look", "content": "seen"},
        {"role": "tool", "name": "buy", "content": "no money"},
    ]
    without = [s.message for s in conversation(run(messages))]
    assert "tool_calls" not in without[1]
    assert json.dumps({"at": "it\nall", "deep": {"n": 1}}) in without[1]["content"]


def test_renamed_roles_read_back() -> None:
    transcript = Transcript(roles={"assistant": "agent"})
    said = conversation(run([HumanMessage("go"), AIMessage("one")], transcript), transcript=transcript)
    assert [s.message["role"] for s in said] == ["user", "assistant"]


def test_other_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="transcript="):
        conversation(run([HumanMessage("go")], Transcript(max_tool_chars=5)))


@pytest.mark.parametrize(
    "segments", [("Goal: oak",), ("<|im_start|>user\ngo<|im_end|>\n", REWRITTEN), ("<|im_start|>",)]
)
def test_what_is_no_conversation_is_said_to_be_none(segments: tuple[str, ...]) -> None:
    with pytest.raises(NotAConversationError):
        conversation(Trajectory("r", "p0", segments))
