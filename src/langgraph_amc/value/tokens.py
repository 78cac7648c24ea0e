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

from langgraph_amc.trajectories.transcript import printable
from langgraph_amc.trajectories.types import Segments
from langgraph_amc.value.errors import ValueModelError

IntArray = NDArray[np.int64]
MEMO_SEGMENTS = 50_000
_SHARED_AT_LEAST = 32  # tokens that states must have in common to be treated as one family


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


def encode(
    tokenizer: PreTrainedTokenizerBase, transcripts: Sequence[Segments], memo: dict[str, IntArray] | None = None
) -> list[Encoded]:
    """Tokenise transcripts segment by segment; segments that occur more than once are tokenised once.

    ``memo``: the tokens of segments that were met before, which is added to; at most `MEMO_SEGMENTS` are kept.
    An empty segment reads out where the previous one did. An empty first segment becomes one anchor token
    (BOS, else EOS, else padding), which stays there in every later state.
    """
    pieces = {} if memo is None else memo
    if len(pieces) > MEMO_SEGMENTS:
        pieces.clear()
    new = list(dict.fromkeys(s for segments in transcripts for s in segments if s not in pieces))
    if new:
        batch = tokenizer(
            [printable(s) for s in new], add_special_tokens=False, return_attention_mask=False, verbose=False
        )["input_ids"]
        pieces.update((s, np.asarray(ids, dtype=np.int64)) for s, ids in zip(new, batch, strict=True))
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


def families(states: Sequence[IntArray], share: bool, known: Sequence[int] = ()) -> list[tuple[int, list[int]]]:
    """Group states by their next tokens: (length of the common prefix, members), members by length.

    ``known``: tokens of each state that need no encoding, 0 by default; a prefix goes on from there. States with no
    relatives make one group without a prefix. A prefix leaves every state its last token, at which the value is read.
    """
    known = known or [0] * len(states)
    groups: dict[tuple[int, bytes], list[int]] = {}
    for index, (ids, start) in enumerate(zip(states, known, strict=True)):
        groups.setdefault((start, ids[: start + _SHARED_AT_LEAST].tobytes()), []).append(index)
    found, alone = [], []
    for (start, _), members in groups.items():
        prefix = common_prefix([states[m][:-1] for m in members]) if share and len(members) > 1 else 0
        if prefix - start >= _SHARED_AT_LEAST:
            found.append((prefix, members))
        else:
            alone += members
    if alone:
        found.append((0, alone))
    return [(prefix, sorted(members, key=lambda m: len(states[m]))) for prefix, members in found]


def common_prefix(sequences: Sequence[IntArray]) -> int:
    """Number of tokens with which all sequences begin."""
    limit = min(map(len, sequences))
    first = sequences[0][:limit]
    different = np.zeros(limit, dtype=np.bool_)
    for ids in sequences[1:]:
        different |= ids[:limit] != first
    return int(different.argmax()) if different.any() else limit


def chunks(members: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut members, in their order, so that rows × longest state stays within the budget."""
    cut: list[list[int]] = []
    longest = 0
    for member in members:
        longest = max(longest, lengths[member])
        if cut and (len(cut[-1]) + 1) * longest <= max_tokens:
            cut[-1].append(member)
        else:
            cut.append([member])
            longest = lengths[member]
    return cut
