"""The prefix store against brute force, and the sampler against the distribution it should draw from."""

from array import array

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from langgraph_amc.policy.prefix import BLOCK, PrefixStore, block_keys
from langgraph_amc.policy.sampling import Sampler, stream
from langgraph_amc.policy.text import TextCodec

CPU = torch.device("cpu")
sequences = st.lists(st.integers(0, 2), min_size=1, max_size=40).map(lambda x: array("q", x))


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.lists(sequences, max_size=12), sequences)
def test_match_finds_the_longest_prefix(stored, wanted):
    store = PrefixStore(1 << 20)
    for ids in stored:
        store.insert(ids, ids, len(ids))
    entry, length = store.match(wanted, block_keys(wanted))
    best = max((common(ids, wanted) for ids in stored), default=0)
    if best >= BLOCK:
        assert length == best
        assert entry.ids[:length] == wanted[:length]
    else:
        assert (entry, length) == (None, 0)


@given(st.lists(sequences, max_size=30), st.integers(1, 200))
def test_bound_and_index_hold_under_any_history(history, bound):
    store = PrefixStore(bound)
    previous = None
    for ids in history:
        previous = store.insert(ids, None, len(ids), replaces=previous)
        assert store.nbytes == sum(e.nbytes for e in store._entries.values()) <= bound
    for entry in list(store._entries.values()):
        store.discard(entry)
        store.discard(entry)
    assert (len(store), store.nbytes, store._index) == (0, 0, {})


def test_a_continuation_replaces_what_it_contains():
    store = PrefixStore(1 << 20)
    parent = store.insert(array("q", range(16)), "parent", 1)
    store.insert(array("q", range(24)), "child", 1, replaces=parent)
    assert [e.data for e in store._entries.values()] == ["child"]
    other = store.insert(array("q", [9] * 16), "other", 1)
    store.insert(array("q", [8] * 16), "unrelated", 1, replaces=other)
    assert len(store) == 3


def test_least_recently_used_goes_first():
    store = PrefixStore(2)
    a, b, c = (array("q", [i] * BLOCK) for i in range(3))
    store.insert(a, "a", 1)
    store.insert(b, "b", 1)
    store.match(a, block_keys(a))
    store.insert(c, "c", 1)
    assert [e.data for e in store._entries.values()] == ["a", "c"]


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.7), (1.0, 0.2)])
def test_samples_follow_the_tempered_nucleus(temperature, top_p):
    logits = torch.linspace(-2, 2, 9)[torch.tensor([3, 1, 8, 0, 5, 2, 7, 6, 4])]
    probs = torch.softmax(logits / temperature, -1).numpy().astype(float)
    order = np.argsort(-probs)
    kept = order[: int(np.searchsorted(np.cumsum(probs[order]), top_p) + 1)]
    expected = np.zeros(9)
    expected[kept] = probs[kept] / probs[kept].sum()
    count = 20_000
    rng = stream(7, 0)
    sampler = Sampler([temperature] * count, [top_p] * count, CPU)
    tokens = sampler(logits.expand(count, -1), [rng.random() for _ in range(count)])
    seen = np.bincount(tokens, minlength=9)
    assert seen[expected == 0].sum() == 0
    live = expected > 0
    if live.sum() > 1:
        assert stats.chisquare(seen[live], expected[live] * count).pvalue > 1e-4


def test_mixed_rows_keep_their_own_settings():
    logits = torch.tensor([[0.0, 5.0, 1.0]] * 3)
    sampler = Sampler([0.0, 1.0, 1.0], [1.0, 1.0, 0.5], CPU)
    assert sampler(logits, [0.999999] * 3) == [1, 2, 1]


@given(st.floats(0, 1, exclude_max=True))
def test_impossible_tokens_are_never_drawn(u):
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    assert Sampler([1.0], [1.0], CPU)(logits, [u])[0] in (1, 2)


def test_streams_differ_by_seed_and_sample_and_repeat():
    draws = {(s, k): tuple(stream(s, k).random(3)) for s in (0, 1, 2**63 - 1) for k in (0, 1)}
    assert len(set(draws.values())) == 6
    assert draws[1, 1] == tuple(stream(1, 1).random(3))


def test_no_stop_string_is_missed_by_the_quick_check():
    from tests.support.tiny_models import byte_tokenizer

    codec = TextCodec(byte_tokenizer())

    @settings(max_examples=60, deadline=None)
    @given(st.text("aé b\n€", min_size=1, max_size=12), st.text("aé b\n€", min_size=1, max_size=3))
    def run(text, stop):
        ids = array("q", codec.tokenizer(text, add_special_tokens=False)["input_ids"])
        found = None
        for end in range(1, len(ids) + 1):
            if codec.may_complete(ids[end - 1], (stop,)):
                found = codec.find_stop(ids[:end], (stop,))
                if found is not None:
                    break
        assert found == (text[: text.index(stop)] if stop in text else None)

    run()
