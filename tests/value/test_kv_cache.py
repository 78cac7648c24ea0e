"""Carried keys and values: the scores of scoring from scratch, only new tokens encoded, within a bound."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BloomConfig, GPT2Config, LlamaConfig, PretrainedConfig

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value import TransformerValue
from langgraph_amc.value.checkpoint import ValueSpec
from langgraph_amc.value.heads import ReturnHead
from langgraph_amc.value.kv import PrefixTree
from langgraph_amc.value.model import ValueModel, new_model, pick_device

from .world import FINGERPRINT, tiny_config, word_tokenizer

PROMPT = "task " + " ".join(f"n{i % 40}" for i in range(50)) + " "
TOKEN_BYTES = 2 * 2 * 32 * 4  # keys and values, layers, width, float32: one token of the tiny Llama


def value_of(config: PretrainedConfig, max_length: int = 250, **options: object) -> TransformerValue:
    torch.manual_seed(0)
    model = new_model(config, 1, tokenizer=word_tokenizer(), lora=False, device=pick_device("cpu"))
    with torch.no_grad():
        model.head.weight.normal_()
    model.network.eval()
    head = ReturnHead("bce", 0.0, 1.0, binary=True)
    return TransformerValue(model, ValueSpec.of(model, head, max_length, FINGERPRINT), **options)


def from_scratch(config: PretrainedConfig, max_length: int = 250) -> TransformerValue:
    return value_of(config, max_length, cache_bytes=0, share_prefix=False)


def one_by_one(value: TransformerValue, states: list[list[str]]) -> np.ndarray:
    return np.array([value.score([state])[0] for state in states])


def boundaries(rng: random.Random, particles: int, steps: int, every: int = 3) -> Iterator[list[list[str]]]:
    """The transcripts of a population at each boundary, resampled every so many steps."""
    states = [[PROMPT] for _ in range(particles)]
    for step in range(1, steps + 1):
        if step % every == 0:
            states = [list(rng.choice(states)) for _ in states]
        for state in states:
            words = [
                rng.choice(["act", "obs", "fine", "slip", f"n{rng.randrange(40)}"]) for _ in range(rng.randrange(8))
            ]
            state.append("".join(f"{word} " for word in words))
        yield states


CONFIGS = {
    "llama": tiny_config(),
    "grouped queries": tiny_config("qwen2"),
    "sliding window": tiny_config("qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=1),
    "learned positions": GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=256, pad_token_id=0),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("max_length", [250, 64], ids=["whole", "cut"])
@pytest.mark.filterwarnings("ignore:a transcript of")
def test_carried_scores_are_those_from_scratch(name: str, max_length: int) -> None:
    carried, scratch = value_of(CONFIGS[name], max_length), from_scratch(CONFIGS[name], max_length)
    assert carried.carries
    assert not scratch.carries
    spread = []
    for states in boundaries(random.Random(1), particles=6, steps=12):
        expected = one_by_one(scratch, states)
        assert np.abs(carried.score(states) - expected).max() < 1e-5
        spread.append(np.ptp(expected))
    assert max(spread) > 0.01
    assert carried.encoded_tokens < scratch.encoded_tokens / 4


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    particles=st.integers(1, 7),
    kept_tokens=st.sampled_from([1, 60, 120, 300, 10_000]),
    max_tokens=st.sampled_from([200, 32_768]),
)
def test_any_tree_of_transcripts_with_eviction(seed: int, particles: int, kept_tokens: int, max_tokens: int) -> None:
    carried, scratch = PAIR
    carried._carried.tree.clear()
    carried._carried.tree.max_bytes = kept_tokens * TOKEN_BYTES
    carried._max_tokens = max_tokens
    rng = random.Random(seed)
    for states in boundaries(rng, particles, steps=rng.randint(1, 7), every=rng.randint(1, 4)):
        shown = rng.sample(states, rng.randint(1, len(states)))  # some have ended or failed
        assert np.abs(carried.score(shown) - scratch.score(shown)).max() < 1e-5
        assert carried.cached_bytes <= kept_tokens * TOKEN_BYTES


PAIR = value_of(CONFIGS["llama"]), from_scratch(CONFIGS["llama"])


def test_only_new_tokens_are_encoded() -> None:
    value = value_of(CONFIGS["llama"])
    value.score([[PROMPT]])
    assert value.encoded_tokens == 51
    value.score([[PROMPT, "act n1 "], [PROMPT, "act n2 "], [PROMPT, "act n3 "]])
    assert value.encoded_tokens == 51 + 3 * 2
    clones = [[PROMPT, "act n1 ", "obs fine "], [PROMPT, "act n1 ", "obs slip "]]  # the third was pruned
    value.score(clones)
    assert value.encoded_tokens == 51 + 6 + 4
    value.score(clones)  # nothing new: one token each, at which the value is read
    assert value.encoded_tokens == 51 + 6 + 4 + 2
    assert value.cached_bytes == TOKEN_BYTES * (51 + 2 + 1 + 1 + 2 + 1)  # "act" and "obs" are kept once


def test_a_state_that_leaves_the_bound_is_encoded_again() -> None:
    value = value_of(CONFIGS["llama"], cache_bytes=60 * TOKEN_BYTES)
    value.score([[PROMPT]])
    value.score([["go " * 55]])
    encoded = value.encoded_tokens
    value.score([[PROMPT, "act "]])
    assert value.encoded_tokens == encoded + 52
    assert value.cached_bytes <= 60 * TOKEN_BYTES


def test_nothing_is_kept_of_a_value_that_is_gone_or_a_cache_that_is_off() -> None:
    value = value_of(CONFIGS["llama"])
    for states in boundaries(random.Random(0), 4, 6):
        value.score(states)
    data = [weakref.ref(run.data) for run in value._carried.tree._order]
    assert data
    value._carried.tree.clear()
    gc.collect()
    assert not any(ref() is not None for ref in data)
    off = value_of(CONFIGS["llama"], cache_bytes=0)
    off.score([[PROMPT]])
    assert off.cached_bytes == 0


def test_threads_share_one_cache() -> None:
    value, scratch = value_of(CONFIGS["llama"], cache_bytes=200 * TOKEN_BYTES), from_scratch(CONFIGS["llama"])
    populations = [list(map(list, states)) for states in boundaries(random.Random(3), 4, 12)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(value.score, populations * 2))
    for states, scores in zip(populations * 2, found, strict=True):
        assert np.abs(scores - scratch.score(states)).max() < 1e-5


def test_what_cannot_be_continued_is_encoded_in_full() -> None:
    bloom = BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4, pad_token_id=0)  # biases, no positions
    value = value_of(bloom)
    assert not value.carries
    states = [[PROMPT, f"act n{i} "] for i in range(3)]
    assert np.abs(value.score(states) - one_by_one(from_scratch(bloom), states)).max() < 1e-5
    assert value.encoded_tokens == 52 + 3


@pytest.mark.parametrize("cache_bytes", [0, 1, 1 << 20])
def test_a_model_that_counts_its_tokens_itself_shares_nothing(
    cache_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ValueModel.hidden

    def counting(self: ValueModel, ids: torch.Tensor, **cache: object) -> torch.Tensor:
        return original(self, ids, **cache) + 0.1 * torch.arange(ids.shape[1])[:, None]

    monkeypatch.setattr(ValueModel, "hidden", counting)
    value = value_of(CONFIGS["llama"], cache_bytes=cache_bytes)
    assert not value.carries
    states = [[PROMPT, f"act n{i} "] for i in range(3)]
    expected = one_by_one(from_scratch(CONFIGS["llama"]), states)
    assert np.abs(value.score(states) - expected).max() < 1e-5


def test_positions_that_depend_on_the_length_share_nothing() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    config = tiny_config(max_position_embeddings=32, rope_parameters=rope)
    value, scratch = value_of(config), from_scratch(config)
    assert not value.carries
    states = [[PROMPT], [PROMPT, "act n1 "], [PROMPT, "act n1 " * 30], ["go "]]
    expected = one_by_one(scratch, states)
    assert np.abs(value.score(states) - expected).max() < 1e-6
    assert np.abs(value.score(states) - expected).max() < 1e-6


def test_a_model_in_training_is_not_carried() -> None:
    config = LlamaConfig(**{**tiny_config().to_dict(), "attention_dropout": 0.5})
    value = value_of(config)
    states = [[PROMPT, f"act n{i} "] for i in range(3)]
    before = value.score(states)
    value._model.network.train()
    torch.manual_seed(0)
    value.score(states)
    assert value.cached_bytes == 0
    value._model.network.eval()
    assert np.abs(value.score(states) - before).max() < 1e-6


def test_segments_are_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    value = value_of(CONFIGS["llama"])
    value.score([[PROMPT, "act "]])
    asked: list[list[str]] = []
    tokenizer = type(value._model.tokenizer)
    original = tokenizer.__call__

    def asking(self: object, text: list[str], **options: object) -> object:
        asked.append(text)
        return original(self, text, **options)

    monkeypatch.setattr(tokenizer, "__call__", asking)
    value.score([[PROMPT, "act ", "obs "], [PROMPT, "act ", "fine "]])
    assert asked == [["obs ", "fine "]]
    monkeypatch.setattr("langgraph_amc.value.tokens.MEMO_SEGMENTS", 3)
    value.score([[PROMPT, "act "]])
    assert asked[1:] == [[PROMPT, "act "]]


def test_the_bound_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="cache_bytes"):
        value_of(CONFIGS["llama"], cache_bytes=-1)


@settings(max_examples=200, deadline=None)
@given(
    sequences=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=30),
    bound=st.integers(0, 40),
)
def test_the_tree_knows_prefixes_and_keeps_the_bound(sequences: list[list[int]], bound: int) -> None:
    tree = PrefixTree(bound * 8)

    def data(ids: np.ndarray) -> torch.Tensor:
        """Keys and values of each token: a number that only its prefix has."""
        return torch.tensor([[hash(tuple(ids[: i + 1].tolist())) % 1000 for i in range(len(ids))]], dtype=torch.int64)

    for sequence in sequences:
        ids = np.array(sequence, dtype=np.int64)
        pieces = tree.match(ids)
        known = sum(piece.shape[1] for piece in pieces)
        assert torch.equal(torch.cat([torch.empty(1, 0, dtype=torch.int64), *pieces], 1), data(ids)[:, :known])
        tree.insert(ids, known, data(ids)[:, known:])
        found = sum(piece.shape[1] for piece in tree.match(ids))
        assert found == len(ids) or len(tree) + len(ids) - found > bound  # all of it, unless there was no room
        assert tree.nbytes == 8 * len(tree) <= 8 * bound
        runs = list(tree._order)
        assert all(runs.index(child) < runs.index(run) for run in runs for child in run.children.values())
    tree.clear()
    assert tree.nbytes == len(tree) == len(tree._root) == 0


def test_the_least_recently_used_goes_first() -> None:
    tree = PrefixTree(3 * 8)
    one, two, three, four = (np.array([i, 9], dtype=np.int64)[:1] for i in range(4))
    for ids in (one, two, three):
        tree.insert(ids, 0, torch.zeros(1, 1, dtype=torch.int64))
    tree.match(one)
    tree.insert(four, 0, torch.zeros(1, 1, dtype=torch.int64))
    assert [bool(tree.match(ids)) for ids in (one, two, three, four)] == [True, False, True, True]


def test_what_comes_after_something_evicted_is_not_kept() -> None:
    tree = PrefixTree(100)
    ids = np.array([1, 2, 3], dtype=np.int64)
    tree.insert(ids, 2, torch.zeros(1, 1, dtype=torch.int64))
    assert not tree.match(ids)
