"""Advantages: each group is its own baseline, and what is missing is not there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from langgraph_amc_trl.advantages import advantages_of
from langgraph_amc_trl.method import Scale

REWARDS = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(2, 5)), elements=st.sampled_from([0.0, 0.5, 1.0, np.nan])
)
SCALES = st.sampled_from(["group", "batch", "none"])


@given(REWARDS, SCALES)
def test_what_is_missing_stays_missing_and_moves_nobody_else(rewards: np.ndarray, scale: Scale) -> None:
    found = advantages_of(rewards, scale)
    assert np.array_equal(np.isnan(found), np.isnan(rewards))
    for row, advantages in zip(rewards, found, strict=True):
        known = advantages[~np.isnan(row)]
        assert known.sum() == pytest.approx(0, abs=1e-9)
        if scale == "group" and known.size:
            alone = advantages_of(row[None, ~np.isnan(row)], scale)[0]
            assert known == pytest.approx(alone)


@given(REWARDS, SCALES, st.sampled_from([-1.0, 2.0]))
def test_a_group_of_equals_teaches_nothing(rewards: np.ndarray, scale: Scale, level: float) -> None:
    same = np.where(np.isnan(rewards), np.nan, level)
    assert np.all(np.nan_to_num(advantages_of(same, scale)) == 0)


def test_by_hand() -> None:
    rewards = np.array([[1.0, 0.0, 0.0, np.nan], [1.0, 1.0, 0.0, 0.0]])
    centred = np.array([[2 / 3, -1 / 3, -1 / 3, np.nan], [0.5, 0.5, -0.5, -0.5]])
    assert advantages_of(rewards, "none") == pytest.approx(centred, nan_ok=True)
    deviations = np.array([[np.sqrt(1 / 3)], [np.sqrt(1 / 3)]])
    assert advantages_of(rewards, "group") == pytest.approx(centred / (deviations + 1e-4), nan_ok=True)
    whole = np.std([1, 0, 0, 1, 1, 0, 0], ddof=1)
    assert advantages_of(rewards, "batch") == pytest.approx(centred / (whole + 1e-4), nan_ok=True)
