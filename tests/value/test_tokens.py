"""Segments as tokens: prefixes stay prefixes, and training sees each state with its context at serving."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from langgraph_amc.value.errors import ValueModelError
from langgraph_amc.value.tokens import encode, last_state, window_start, windows

from .world import WORDS, word_tokenizer

TOKENIZER = word_tokenizer()
segment = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
transcript = st.lists(segment, min_size=1, max_size=8)


@given(transcript)
def test_the_tokens_of_a_state_are_a_prefix_of_the_next_ones(segments: list[str]) -> None:
    whole = encode(TOKENIZER, [segments])[0]
    for t in range(len(segments)):
        state = encode(TOKENIZER, [segments[: t + 1]])[0]
        assert (whole.ids[: len(state.ids)] == state.ids).all()
        assert whole.readouts[t] == len(state.ids) - 1


@given(transcript, st.integers(4, 20))
def test_a_window_gives_each_state_the_context_that_it_is_scored_with(segments: list[str], limit: int) -> None:
    cut = windows(encode(TOKENIZER, [segments])[0], limit)
    assert sorted(np.concatenate([w.states for w in cut])) == list(range(len(segments)))
    for window in cut:
        assert len(window.ids) <= limit
        for position, t in zip(window.readouts, window.states, strict=True):
            state = encode(TOKENIZER, [segments[: t + 1]])[0]
            assert (window.ids[: position + 1] == last_state(state, limit)).all()


@given(st.integers(1, 500), st.integers(4, 100))
def test_truncation_keeps_the_newest_tokens_and_most_of_the_window(length: int, limit: int) -> None:
    kept = length - window_start(length, limit)
    assert kept == length if length <= limit else limit - max(1, limit // 4) < kept <= limit


def test_empty_segments_read_out_where_the_state_before_did() -> None:
    encoded = encode(TOKENIZER, [["task go", "", "act fine"]])[0]
    assert encoded.readouts.tolist() == [1, 1, 3]


def test_an_empty_beginning_is_one_anchor_token_that_stays() -> None:
    encoded = encode(TOKENIZER, [["", "act"]])[0]
    assert encoded.ids.tolist() == [TOKENIZER.eos_token_id, TOKENIZER.convert_tokens_to_ids("act")]
    assert encoded.readouts.tolist() == [0, 1]


def test_an_empty_beginning_needs_some_special_token() -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer)
    with pytest.raises(ValueModelError, match="empty first segment"):
        encode(bare, [[""]])


def test_no_transcripts() -> None:
    assert encode(TOKENIZER, []) == []
