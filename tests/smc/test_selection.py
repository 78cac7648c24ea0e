"""Selection: honest rules, ties, missing scores, failures, and an oracle that cannot be mistaken for one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.smc import (
    Candidate,
    SelectionError,
    WeightError,
    argmax,
    best_reward,
    best_value,
    oracle,
    sample,
    vote,
)

RNG = np.random.default_rng(0)
SELECTORS = {
    "sample": sample,
    "argmax": argmax,
    "best_value": best_value,
    "best_reward": best_reward,
    "vote": vote(),
}
every_selector = pytest.mark.parametrize("select", SELECTORS.values(), ids=SELECTORS)


def candidate(log_weight=0.0, value=0.5, reward=0.5, output="x", **kinds) -> Candidate:
    return Candidate(log_weight, value, reward, output, **kinds)


def test_sample_draws_by_weight():
    candidates = [candidate(math.log(w) + 500) for w in (1, 2, 7)]
    candidates[1:1] = [candidate(math.log(90) + 500, failed=True), candidate(-math.inf)]
    drawn = np.bincount([sample(RNG, candidates) for _ in range(4000)], minlength=5) / 4000
    np.testing.assert_allclose(drawn, [0.1, 0, 0, 0.2, 0.7], atol=4.5 * math.sqrt(0.25 / 4000))


def test_argmax_best_value_and_best_reward_each_look_at_their_own_number():
    candidates = [candidate(3.0, 0.1, 0.2), candidate(1.0, 0.9, 0.3), candidate(2.0, 0.2, 0.8)]
    assert argmax(RNG, candidates) == 0
    assert best_value(RNG, candidates) == 1
    assert best_reward(RNG, candidates) == 2


def test_ties_go_to_the_larger_weight_then_to_the_first():
    candidates = [candidate(1.0, 0.3), candidate(1.0, 0.9), candidate(2.0, 0.9), candidate(2.0, 0.9)]
    assert best_value(RNG, candidates) == 2
    assert argmax(RNG, candidates) == 2
    assert argmax(RNG, candidates[:2]) == 0


def test_vote_adds_up_weight_and_not_heads():
    crowd = [candidate(0.0, output="crowd") for _ in range(3)]
    assert vote()(RNG, [*crowd, candidate(math.log(2.9), output="alone")]) == 0
    assert vote()(RNG, [*crowd, candidate(math.log(3.1), output="alone")]) == 3


def test_vote_returns_the_winners_heaviest_candidate_and_compares_by_key():
    candidates = [candidate(0.1, output=" Yes"), candidate(0.3, output="no"), candidate(0.2, output="yes ")]
    assert vote()(RNG, candidates) == 1
    assert vote(key=lambda text: text.strip().lower())(RNG, candidates) == 2


def test_vote_ties_go_to_the_answer_given_more_often_then_first():
    once, twice = candidate(math.log(2.0), output="once"), candidate(0.0, output="twice")
    assert vote()(RNG, [once, twice, twice]) == 1
    assert (
        vote()(RNG, [candidate(output="b"), candidate(output="a"), candidate(output="a"), candidate(output="b")]) == 0
    )


def test_vote_needs_something_hashable():
    with pytest.raises(SelectionError, match="key"):
        vote()(RNG, [candidate(output={"answer": 1})])
    assert vote(key=lambda output: output["answer"])(RNG, [candidate(output={"answer": 1})]) == 0


@every_selector
@given(
    kinds=st.lists(st.sampled_from(["done", "running", "failed"]), min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
def test_failed_never_unfinished_only_if_nobody_finished(select, kinds, seed):
    rng = np.random.default_rng(seed)
    weights = {"done": -5.0, "running": 5.0, "failed": 50.0}
    candidates = [
        candidate(weights[k] * rng.random(), weights[k], weights[k], done=k == "done", failed=k == "failed")
        for k in kinds
    ]
    if set(kinds) == {"failed"}:
        with pytest.raises(SelectionError, match="failed"):
            select(rng, candidates)
    else:
        assert kinds[select(rng, candidates)] == ("done" if "done" in kinds else "running")


@every_selector
def test_if_no_weight_is_above_zero_somebody_is_chosen_all_the_same(select):
    candidates = [candidate(-math.inf, failed=True), candidate(-math.inf), candidate(-math.inf)]
    assert {select(np.random.default_rng(seed), candidates) for seed in range(30)} <= {1, 2}


def test_missing_scores_are_not_zeros():
    candidates = [candidate(value=None, reward=None), candidate(value=-3.0, reward=-2.0)]
    assert best_value(RNG, candidates) == 1
    assert best_reward(RNG, candidates) == 1
    with pytest.raises(SelectionError, match="only for an observable reward"):
        best_reward(RNG, candidates[:1])
    with pytest.raises(SelectionError, match="value function"):
        best_value(RNG, candidates[:1])
    with pytest.raises(SelectionError, match="NaN"):
        best_value(RNG, [candidate(value=math.nan)])


def test_oracle_sees_true_rewards_only_if_handed_them():
    candidates = [candidate(reward=9.0), candidate(reward=0.0), candidate(done=False), candidate(failed=True)]
    assert oracle(candidates, [0.0, 1.0, 0.5, 7.0]) == 1
    assert oracle(candidates, [0.0, None, 0.5, 7.0]) == 2  # an upper bound: unfinished ones count as well
    with pytest.raises(SelectionError, match="2 true rewards for 4"):
        oracle(candidates, [0.0, 1.0])
    with pytest.raises(SelectionError, match="none is known"):
        oracle(candidates, [None, None, None, 1.0])
    with pytest.raises((TypeError, AttributeError)):
        oracle(RNG, candidates)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_candidate_of_impossible_weight_is_refused(bad):
    with pytest.raises(WeightError):
        candidate(bad)
