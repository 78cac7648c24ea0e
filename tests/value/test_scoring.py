"""Scoring: one batch or one by one, with a shared prefix or without, from one thread or many."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value import SoftValueFunction, TransformerValue, load_value, train_value
from langgraph_amc.value.checkpoint import ValueSpec
from langgraph_amc.value.heads import ReturnHead
from langgraph_amc.value.model import new_model, pick_device
from langgraph_amc.value.tokens import families

from .world import FINGERPRINT, saved_base, slippery_runs, tiny_config

PROMPT = "task " + " ".join(f"n{i % 40}" for i in range(50)) + " "
STEPS = ["act n1 obs fine ", "act n2 obs slip ", "", "act n3 n4 n5 obs fine "]
ONE_TASK = [[PROMPT, *STEPS[:k], *(f"n{m} " for m in range(n))] for k in range(5) for n in range(4)]
OTHER_TASK = [["task " * 40, *STEPS[:k]] for k in range(5)]
STATES = [*ONE_TASK, *OTHER_TASK, ["go"], ["task n1 go "]]


def value_of(base: Path, max_length: int = 200, **options: object) -> TransformerValue:
    torch.manual_seed(0)
    model = new_model(base, 1, tokenizer=None, lora=False, device=pick_device("cpu"))
    with torch.no_grad():
        model.head.weight.normal_()
    model.network.eval()
    head = ReturnHead("bce", 0.0, 1.0, binary=True)
    return TransformerValue(model, ValueSpec.of(model, head, max_length, FINGERPRINT), **options)


@pytest.mark.parametrize("max_length", [200, 40])
@pytest.mark.parametrize("max_tokens", [32_768, 150, 1])
def test_packed_shared_and_one_by_one_agree(any_base: Path, max_length: int, max_tokens: int) -> None:
    packed = value_of(any_base, max_length, max_tokens=max_tokens).score(STATES)
    apart = value_of(any_base, max_length, max_tokens=max_tokens, share_prefix=False).score(STATES)
    alone = value_of(any_base, max_length, share_prefix=False)
    each = np.array([alone.score([state])[0] for state in STATES])
    assert packed.dtype == np.float64
    assert np.abs(packed - each).max() < 1e-5
    assert np.abs(apart - each).max() < 1e-5
    assert np.ptp(each) > 0.01


def test_a_sliding_window_shares_its_prefix_too(tmp_path: Path) -> None:
    config = tiny_config("qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=1)
    base = saved_base(tmp_path, config)
    shared, apart = (value_of(base, share_prefix=share).score(STATES) for share in (True, False))
    assert np.abs(shared - apart).max() < 1e-5


def test_a_shared_prefix_is_encoded_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = value_of(base)
    seen: list[torch.Size] = []
    hidden = type(value._model).hidden

    def counting(self: object, ids: torch.Tensor, **cache: object) -> torch.Tensor:
        seen.append(ids.shape)
        return hidden(self, ids, **cache)

    monkeypatch.setattr(type(value._model), "hidden", counting)
    value.score([[PROMPT, f"act n{i} obs fine"] for i in range(8)])
    assert seen == [(1, 52), (8, 3)]  # the prompt and "act" once, then what differs, for all eight
    seen.clear()
    value.score([[PROMPT, "act n1"]] * 8)
    assert seen == [(1, 1)]  # equal states are one row, and known up to the token at which it is read
    value = value_of(base, cache_bytes=0)
    seen.clear()
    value.score([[PROMPT, "act n1"]] * 8)
    assert seen == [(1, 53)]


def test_families_leave_every_state_its_last_token() -> None:
    long = np.arange(100)
    found = families([long, long[:50], long[:60], np.arange(7)], share=True)
    assert found == [(49, [1, 2, 0]), (0, [3])]
    assert families([long, long[:50]], share=False) == [(0, [1, 0])]
    assert families([long, long[:50]], share=True, known=[20, 20]) == [(0, [1, 0])]
    assert families([long, long[:60]], share=True, known=[20, 20]) == [(59, [1, 0])]


def test_left_truncation_forgets_the_oldest_tokens(base: Path) -> None:
    value = value_of(base, max_length=32)
    tail = [f"n{i % 40} " for i in range(60)]
    first, second = value.score([["task go ", *tail], ["slip act ", *tail]])
    assert first == second
    first, second = value.score([["task go ", *tail[:10]], ["slip act ", *tail[:10]]])
    assert first != second


def test_nothing_to_score(base: Path) -> None:
    value = value_of(base)
    assert value.score([]).shape == (0,)
    assert value.soft_score([], 0.1).shape == (0,)


def test_the_soft_score_is_the_exact_tilt(base: Path) -> None:
    value = value_of(base)
    assert isinstance(value, SoftValueFunction)
    p = value.score(STATES)
    beta = 0.25
    expected = beta * np.log(1 - p + p * math.exp(1 / beta))
    assert np.abs(value.soft_score(STATES, beta) - expected).max() < 1e-6
    assert np.isfinite(value.soft_score(STATES, 1e-4)).all()


def test_threads_get_the_scores_of_their_own_states(base: Path) -> None:
    value = value_of(base)
    expected = value.score(STATES)
    with ThreadPoolExecutor(4) as pool:
        scores = list(pool.map(lambda state: value.score([state])[0], STATES * 3))
    assert np.abs(np.array(scores) - np.tile(expected, 3)).max() < 1e-5


def test_scoring_needs_some_budget(base: Path) -> None:
    with pytest.raises(ConfigurationError, match="max_tokens"):
        value_of(base, max_tokens=0)


def test_a_value_trained_on_graded_means_has_no_soft_score(base: Path, tmp_path: Path) -> None:
    runs = [r.with_outcome(0.25 + 0.5 * (r.outcome or 0.0)) for r in slippery_runs(tasks=2)]
    train_value(runs, base, out=tmp_path / "v", epochs=1)
    with pytest.raises(ConfigurationError, match="hl_gauss"):
        load_value(tmp_path / "v").soft_score(STATES, 0.1)


def test_a_transcript_that_is_cut_is_said_once(base: Path, recwarn: pytest.WarningsRecorder) -> None:
    value = value_of(base, max_length=32)
    value.score([("short",)])
    assert not cuts(recwarn)
    value.score([("a tale that is " * 100,)])
    value.score([("another tale that is " * 100,)])
    assert len(cuts(recwarn)) == 1


def cuts(warned: pytest.WarningsRecorder) -> list[str]:
    return [str(w.message) for w in warned.list if "beginning is cut off" in str(w.message)]
