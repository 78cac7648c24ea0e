"""The intervals cover what they should, and pairing makes them narrower."""

from __future__ import annotations

import numpy as np
import pytest

from langgraph_amc.evaluate.statistics import estimate, paired


def test_interval_covers_the_true_mean() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for k in range(150):
        difficulty = rng.beta(1, 1, size=(40, 1))
        scores = (rng.random((40, 3)) < difficulty).astype(float)
        found = estimate(scores, seed=k, resamples=400)
        covered += found.low <= 0.5 <= found.high
    assert 0.88 <= covered / 150 <= 1.0


def test_seeds_of_one_task_are_not_independent() -> None:
    rng = np.random.default_rng(1)
    per_task = rng.random((30, 1))
    copied = estimate(np.repeat(per_task, 50, axis=1))
    single = estimate(per_task)
    assert copied.high - copied.low == pytest.approx(single.high - single.low, rel=0.15)


def test_pairing_removes_what_both_arms_share() -> None:
    rng = np.random.default_rng(2)
    shared = rng.random((60, 3))
    a, b = shared + 0.05, shared
    found = paired(a, b)
    assert found.low == pytest.approx(0.05)
    assert found.high == pytest.approx(0.05)
    assert estimate(a).low < estimate(b).mean


def test_missing_scores_are_left_out() -> None:
    scores = np.array([[1.0, np.nan], [0.0, 0.0], [np.nan, np.nan]])
    assert estimate(scores).mean == pytest.approx(0.5)
    assert np.isnan(estimate(np.full((2, 2), np.nan)).mean)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="tasks, seeds"):
        estimate(np.zeros(3))
    with pytest.raises(ValueError, match="equal shapes"):
        paired(np.zeros((2, 1)), np.zeros((1, 2)))
