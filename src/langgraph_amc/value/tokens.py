"""Transcripts as tokens, so that all T + 1 states of a trajectory are readouts of one token sequence.

Each segment is tokenised on its own, without special tokens, and the pieces are concatenated: the ids of
state t are a prefix of the ids of state t + 1, and V(s_t) is read at the last token of segment t. With a causal
backbone one pass over the trajectory therefore gives the very values that T + 1 separate passes would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from langgraph_amc.trajectories.types import Segments
from langgraph_amc.value.errors import ValueModelError

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A whole transcript: ``ids`` [tokens] and ``readouts`` [T + 1], the position where each state is read."""

    ids: IntArray
    readouts: IntArray


@dataclass(frozen=True, slots=True)
class Window:
    """At most ``max_length`` tokens and the readouts in it.

    ``readouts`` are positions within ``ids``; ``states`` says which state each of them is.
    """

    ids: IntArray
    readouts: IntArray
    states: IntArray


def encode(tokenizer: PreTrainedTokenizerBase, transcripts: Sequence[Segments]) -> list[Encoded]:
    """Tokenise transcripts segment by segment; segments that occur more than once are tokenised once.

    An empty segment reads out where the previous one did. An empty first segment becomes one anchor token
    (BOS, else EOS, else padding), which stays there in every later state.
    """
    unique = list(dict.fromkeys(segment for segments in transcripts for segment in segments))
    if not unique:
        return []
    batch = tokenizer(unique, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    pieces = {segment: np.asarray(ids, dtype=np.int64) for segment, ids in zip(unique, batch, strict=True)}
    return [_join([pieces[segment] for segment in segments], tokenizer) for segments in transcripts]


def _join(pieces: list[IntArray], tokenizer: PreTrainedTokenizerBase) -> Encoded:
    if len(pieces[0]) == 0:
        pieces = [np.array([_anchor(tokenizer)], dtype=np.int64), *pieces[1:]]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return Encoded(np.concatenate(pieces), ends - 1)


def _anchor(tokenizer: PreTrainedTokenizerBase) -> int:
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id):
        if token is not None:
            return int(token)
    raise ValueModelError("the tokenizer has no BOS, EOS or padding token to stand for an empty first segment")


def window_start(length: int, max_length: int) -> int:
    """First token that a state of ``length`` tokens keeps: left truncation in strides of a quarter window.

    The newest tokens are kept: all while they fit, afterwards between three quarters of ``max_length`` and
    ``max_length``. The stride makes neighbouring states share their first token. Training can then read all
    readouts that share a start in one pass, each with exactly the context that it will have when it is
    scored, and scoring can share the prefix of states that come from one parent.
    """
    if length <= max_length:
        return 0
    stride = max(1, max_length // 4)
    return -(-(length - max_length) // stride) * stride


def windows(encoded: Encoded, max_length: int) -> list[Window]:
    """Cut a transcript into windows, each state in exactly one, with the context it has in `last_state`."""
    starts = np.array([window_start(int(end) + 1, max_length) for end in encoded.readouts], dtype=np.int64)
    cut = []
    for start in np.unique(starts):
        states = np.flatnonzero(starts == start)
        stop = int(encoded.readouts[states[-1]]) + 1
        cut.append(Window(encoded.ids[start:stop], encoded.readouts[states] - start, states))
    return cut


def last_state(encoded: Encoded, max_length: int) -> IntArray:
    """Token ids of the last state, left-truncated; the value is read at the last of them."""
    return encoded.ids[window_start(len(encoded.ids), max_length) :]
