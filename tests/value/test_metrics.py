"""Ranking and calibration against scipy and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from langgraph_amc.value.metrics import (
    auc,
    binary_cross_entropy,
    bootstrap_interval,
    calibration,
    kendall_tau_b,
    pair_counts,
    within_task_ranking,
)

small = st.integers(0, 4)


@given(st.lists(st.tuples(small, small), min_size=2, max_size=20))
def test_kendall_agrees_with_scipy(pairs: list[tuple[int, int]]) -> None:
    x, y = zip(*pairs, strict=True)
    expected, ours = kendalltau(x, y).statistic, kendall_tau_b(pair_counts(x, y))
    if len(set(y)) == 1:
        assert math.isnan(ours)
    elif len(set(x)) == 1:
        assert ours == 0  # scipy says NaN; a constant score ranks nothing, which is no better than chance
    else:
        assert ours == pytest.approx(expected)


@given(st.lists(st.tuples(small, st.booleans()), min_size=2, max_size=20))
def test_auc_is_the_chance_to_rank_a_success_above_a_failure(pairs: list[tuple[int, bool]]) -> None:
    good = [s for s, won in pairs if won]
    bad = [s for s, won in pairs if not won]
    wins = [1.0 if g > b else 0.5 if g == b else 0.0 for g in good for b in bad]
    ours = auc(pair_counts([s for s, _ in pairs], [w for _, w in pairs]))
    assert ours == pytest.approx(np.mean(wins)) if wins else math.isnan(ours)


def test_equal_states_are_not_pairs() -> None:
    counts = pair_counts([0.5, 0.5, 0.9], [0, 1, 1], states=[7, 7, 8])
    assert (counts.comparable, counts.concordant) == (1, 1)


def test_ranking_averages_tasks_and_never_compares_two() -> None:
    scores = [0.1, 0.2, 0.9, 0.8, 0.5]
    ranking = within_task_ranking(scores, [0, 1, 0, 1, 1], ["a", "a", "b", "b", "c"])
    assert (ranking.value, ranking.tasks, ranking.pairs) == (0.5, 2, 2)
    assert ranking.metric == "auc"
    assert (ranking.low, ranking.high) == (0.0, 1.0)


def test_ranking_compares_equal_steps_only_and_adds_their_pairs_up() -> None:
    scores, returns = [0.1, 0.2, 0.9, 0.3, 0.0], [0, 1, 0, 1, 1]
    ranking = within_task_ranking(scores, returns, np.zeros(5), steps=[1, 1, 2, 2, 3])
    assert (ranking.value, ranking.pairs, ranking.tasks) == (0.5, 2, 1)


def test_graded_returns_are_ranked_by_kendall() -> None:
    ranking = within_task_ranking([1, 2, 3], [0.1, 0.5, 0.7], ["t"] * 3, graded=True)
    assert (ranking.metric, ranking.value) == ("kendall", 1.0)


@pytest.mark.parametrize("returns", [[0, 0, 0], []])
def test_no_pairs_no_ranking(returns: list[int]) -> None:
    ranking = within_task_ranking([0.1, 0.2, 0.3][: len(returns)], returns, ["t"] * len(returns))
    assert ranking.value is None
    assert ranking.tasks == 0


def test_the_bootstrap_interval_covers_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = [low <= 0.5 <= high for low, high in (bootstrap_interval(rng.random(40), samples=400) for _ in range(200))]
    assert 0.88 <= np.mean(hits) <= 0.99


def test_calibration_by_hand() -> None:
    table, error = calibration([0.05, 0.15, 0.12, 1.0, -3.0], [0, 1, 0, 1, 0])
    assert [(b.low, b.count) for b in table] == [(0.0, 2), (0.1, 2), (0.9, 1)]
    assert table[1].predicted == pytest.approx(0.135)
    assert error == pytest.approx((2 * abs(-2.95 / 2) + 2 * abs(0.135 - 0.5) + 0) / 5)


def test_cross_entropy_by_hand() -> None:
    assert binary_cross_entropy([0.25, 0.5], [0.0, 1.0]) == pytest.approx(-(math.log(0.75) + math.log(0.5)) / 2)
