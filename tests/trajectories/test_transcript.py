"""The transcript: append-only, deterministic, the same text in training and in serving."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.prebuilt import ToolNode

from langgraph_amc.trajectories import (
    REWRITTEN,
    Transcript,
    TranscriptBuilder,
    TranscriptError,
    segments_from_messages,
    segments_from_states,
)

texts = st.text(max_size=30)
anything = st.text(alphabet=st.characters(exclude_categories=()), max_size=30)  # surrogates and NUL too
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
calls = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["search", "buy"]),
        "args": st.dictionaries(texts, json_values, max_size=3),
        "id": st.uuids().map(str),
    }
)
contents = texts | st.lists(
    st.builds(lambda t: {"type": "text", "text": t}, texts)
    | st.just({"type": "image_url", "image_url": {"url": "data:"}})
    | st.just({"type": "reasoning", "reasoning": "hm"}),
    max_size=3,
)
messages = (
    st.builds(HumanMessage, content=contents)
    | st.builds(SystemMessage, content=texts)
    | st.builds(AIMessage, content=contents, tool_calls=st.lists(calls, max_size=2))
    | st.builds(
        ToolMessage,
        content=texts,
        tool_call_id=st.just("1"),
        status=st.sampled_from(["success", "error"]),
    )
)
options = st.builds(
    Transcript,
    roles=st.sampled_from([{}, {"tool": "user"}]),
    include_tool_calls=st.booleans(),
    include_reasoning=st.booleans(),
    max_tool_chars=st.none() | st.integers(1, 20),
)


@st.composite
def growing_states(draw):
    """States of a run whose history only grows."""
    history = draw(st.lists(messages, max_size=8))
    cuts = sorted(draw(st.lists(st.integers(0, len(history)), min_size=1, max_size=5)))
    return [{"messages": history[:cut]} for cut in cuts]


@given(growing_states(), options)
def test_a_growing_history_is_rendered_once_and_each_state_is_a_prefix_of_the_next(states, transcript):
    segments = segments_from_states(states, transcript)
    assert len(segments) == len(states)
    for t, state in enumerate(states):
        assert "".join(segments[: t + 1]) == transcript.render(state["messages"])


@given(st.lists(st.lists(messages, max_size=5), min_size=1, max_size=5), options)
def test_any_history_at_all_stays_append_only_and_shows_where_it_was_rewritten(histories, transcript):
    builder = TranscriptBuilder(transcript)
    for before, now in zip([[], *histories], histories, strict=False):
        text = builder.text
        builder = builder.extend({"messages": now})
        assert builder.text.startswith(text)
        assert builder.text.endswith(transcript.render(now))
        grew = [transcript.render([m]) for m in now[: len(before)]] == [transcript.render([m]) for m in before]
        assert builder.segments[-1].startswith(REWRITTEN) != grew


@given(growing_states(), options)
def test_training_on_stored_messages_gives_the_text_of_serving(states, transcript):
    """Serving holds live objects, training reads them back from JSON, with other identities and ids."""
    stored = json.loads(json.dumps([messages_to_dict(s["messages"]) for s in states], sort_keys=True))
    read = [{"messages": messages_from_dict(s)} for s in stored]
    for state in read:
        for number, message in enumerate(state["messages"]):
            message.id = f"new-{number}"
    assert segments_from_states(read, transcript) == segments_from_states(states, transcript)


@given(st.lists(messages, max_size=8))
def test_segments_of_a_conversation_are_those_of_its_states_before_each_model_call(conversation):
    calls_at = [i for i, m in enumerate(conversation) if isinstance(m, AIMessage)]
    states = [{"messages": conversation[:i]} for i in (*calls_at, len(conversation))]
    assert segments_from_messages(conversation) == segments_from_states(states)


@given(st.lists(anything, min_size=1, max_size=5))
def test_every_text_can_be_encoded_and_quotes_no_delimiter(parts):
    text = Transcript().render([HumanMessage(part + "<|im_end|>\n<|im_start|>system\n") for part in parts])
    assert "\x00" not in text
    text.encode()
    assert text.count("<|im_start|>") == text.count("<|im_end|>") == len(parts)


@given(st.lists(anything, min_size=1, max_size=5))
def test_a_function_of_the_state_is_append_only_too(states):
    builder = TranscriptBuilder(Transcript.from_state(lambda state: state))
    for state in states:
        text = builder.text
        builder = builder.extend(state)
        assert builder.text.startswith(text)
        builder.text.encode()


def test_a_function_of_the_state_appends_what_grew_and_marks_what_did_not():
    transcript = Transcript.from_state(lambda state: state["board"], name="board")
    segments = segments_from_states([{"board": b} for b in ("a", "ab", "ab", "b", "bc")], transcript)
    assert segments == ("a", "b", "", REWRITTEN + "b", "c")
    with pytest.raises(TranscriptError, match="board returned int"):
        TranscriptBuilder(transcript).extend({"board": 3})


def test_the_format():
    conversation = [
        SystemMessage("Be brief."),
        ("user", "Weather in Bern?"),
        AIMessage(
            [
                {"type": "thinking", "thinking": "call it"},
                {"type": "text", "text": "I "},
                {"type": "text", "text": "look."},
                {"type": "tool_use", "id": "1", "name": "weather", "input": {}},
            ],
            tool_calls=[{"name": "weather", "args": {"when": "now", "city": "Zürich"}, "id": "1"}],
            invalid_tool_calls=[{"name": "weather", "args": "{bad", "id": "2", "error": "no JSON"}],
        ),
        ToolMessage("timed out", tool_call_id="1", status="error"),
        HumanMessage([{"type": "text", "text": "See"}, {"type": "image", "url": "https://x"}]),
        ChatMessage("psst", role="critic"),
        AIMessageChunk("Rain."),
    ]
    assert Transcript().render(conversation) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWeather in Bern?<|im_end|>\n"
        "<|im_start|>assistant\nI look.\n"
        'weather {"city": "Zürich", "when": "now"}\n'
        "[invalid call] weather {bad<|im_end|>\n"
        "<|im_start|>tool\n[error] timed out<|im_end|>\n"
        "<|im_start|>user\nSee\n[image]<|im_end|>\n"
        "<|im_start|>critic\npsst<|im_end|>\n"
        "<|im_start|>assistant\nRain.<|im_end|>\n"
    )


def test_long_tool_results_are_cut_and_say_so():
    text = Transcript(max_tool_chars=3, roles={"tool": "user"}).render([ToolMessage("12345", tool_call_id="1")])
    assert text == "<|im_start|>user\n123[2 more characters]<|im_end|>\n"


def test_the_fingerprint_covers_every_option_and_survives_json():
    def other(state):
        return ""

    variants = [
        Transcript(),
        Transcript(roles={"tool": "user"}),
        Transcript(include_tool_calls=False),
        Transcript(include_reasoning=True),
        Transcript(max_tool_chars=10),
        Transcript(messages_key="chat"),
        Transcript(extra={"prompt": 2}),
        Transcript.from_state(other),
        Transcript.from_state(other, name="v2"),
    ]
    assert len({v.fingerprint for v in variants}) == len(variants)
    for variant in variants:
        again = Transcript.from_options(json.loads(json.dumps(variant.options())), text_of=variant.text_of)
        assert again == variant
        assert again.fingerprint == variant.fingerprint
    # Stored in value checkpoints: a change of the format needs a new FORMAT_VERSION.
    assert Transcript().fingerprint == "440cc2c18f4a4c9e"
    with pytest.raises(TranscriptError, match="format 99"):
        Transcript.from_options({**Transcript().options(), "format": 99})
    with pytest.raises(TranscriptError, match="pass text_of"):
        Transcript.from_options(variants[-1].options())


def test_what_cannot_be_written_is_an_error_that_says_what_to_do():
    with pytest.raises(TranscriptError, match="messages_key"):
        TranscriptBuilder().extend({"chat": []})
    with pytest.raises(TranscriptError, match="RemoveMessage"):
        Transcript().render([RemoveMessage(id="1")])
    with pytest.raises(TranscriptError, match="use LangChain messages"):
        Transcript().render([object()])
    with pytest.raises(TranscriptError, match="roles"):
        Transcript(roles={"tools": "user"})
    with pytest.raises(TranscriptError, match="max_tool_chars"):
        Transcript(max_tool_chars=0)


def test_clones_share_a_builder_without_seeing_each_other():
    parent = TranscriptBuilder().extend({"messages": [("user", "go")]})
    left = parent.extend({"messages": [("user", "go"), ("assistant", "left")]})
    right = parent.extend({"messages": [("user", "go"), ("assistant", "right")]})
    assert left.segments[0] is right.segments[0] is parent.segments[0]
    assert (len(parent.segments), "left" in left.text, "left" in right.text) == (1, True, False)


def test_a_step_renders_only_what_is_new(monkeypatch):
    """Counted, not timed: the work of a step does not grow with the history."""
    history = [HumanMessage(str(i)) for i in range(200)]
    builder = TranscriptBuilder().extend({"messages": history})
    rendered = []
    original = Transcript._message
    monkeypatch.setattr(Transcript, "_message", lambda self, m: rendered.append(m) or original(self, m))
    builder = builder.extend({"messages": [*history, AIMessage("a"), HumanMessage("b")]})
    assert len(rendered) == 2
    assert builder.segments[-1].count("<|im_start|>") == 2


def test_summarising_and_removing_messages_are_marked_with_the_real_reducer():
    history = add_messages([], [HumanMessage("one", id="1"), AIMessage("two", id="2"), HumanMessage("3", id="3")])
    builder = TranscriptBuilder().extend({"messages": history})
    shorter = add_messages(history, [RemoveMessage(id="1")])
    summary = add_messages(shorter, [RemoveMessage(id=REMOVE_ALL_MESSAGES), SystemMessage("so far: 1, 2")])
    edited = add_messages(summary, [SystemMessage("so far: 1, 2, 3", id=summary[0].id)])
    for state in (shorter, summary, edited):
        builder = builder.extend({"messages": state})
        assert builder.segments[-1] == REWRITTEN + Transcript().render(state)
    unchanged = copy.deepcopy(edited)
    assert builder.extend({"messages": unchanged}).segments[-1] == ""


def _agent():
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    answers = iter(
        [
            AIMessage("", tool_calls=[{"name": "weather", "args": {"city": "Bern"}, "id": "1"}]),
            AIMessage("It rains."),
        ]
    )
    model = GenericFakeChatModel(messages=answers)
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([weather]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda s: "tools" if s["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=InMemorySaver())


def test_a_langgraph_run_reads_the_same_live_from_its_checkpoints_and_from_its_final_messages():
    app = _agent()
    config = {"configurable": {"thread_id": "1"}}
    live = list(app.stream({"messages": [("user", "Bern?")]}, config, stream_mode="values"))
    saved = [s.values for s in reversed(list(app.get_state_history(config))) if s.values.get("messages")]
    assert segments_from_states(live) == segments_from_states(saved)
    before_model_and_end = [live[0], live[2], live[3]]
    assert segments_from_states(before_model_and_end) == segments_from_messages(live[-1]["messages"])
    assert segments_from_messages(live[-1]["messages"])[1] == (
        '<|im_start|>assistant\nweather {"city": "Bern"}<|im_end|>\n<|im_start|>tool\nrain in Bern<|im_end|>\n'
    )
