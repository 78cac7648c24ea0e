"""Ensembles: members without a score are left out, and how far the members differ is told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value import SoftValueFunction, ValueFunction, ValueScoreError, as_value
from langgraph_amc.value.ensembles import Ensemble, ensemble, mean_and_spread

nan = float("nan")
STATES = [("a",), ("b",), ("c",), ("d",)]


def fixed(*scores: float | None) -> object:
    return lambda transcripts: list(scores)


class Chance:
    """A value function that knows the chance of success."""

    def __init__(self, *chances: float) -> None:
        self.chances = np.array(chances)

    def score(self, transcripts: Sequence[object]) -> np.ndarray:
        return self.chances

    def soft_score(self, transcripts: Sequence[object], beta: float) -> np.ndarray:
        return beta * np.log(1 - self.chances + self.chances * np.exp(1 / beta))


def test_missing_members_are_left_out() -> None:
    value = ensemble([fixed(0.1, 0.2, None, None), fixed(0.3, nan, 0.5, nan), fixed(0.8, 0.4, nan, nan)])
    assert isinstance(value, ValueFunction)
    mean, spread = value.score_with_spread(STATES)
    np.testing.assert_allclose(mean, [0.4, 0.3, 0.5, nan])
    np.testing.assert_allclose(spread, [np.std([0.1, 0.3, 0.8], ddof=1), np.std([0.2, 0.4], ddof=1), nan, nan])
    np.testing.assert_array_equal(value.score(STATES), mean)
    np.testing.assert_array_equal(as_value(value).score(STATES), mean)
    assert mean.dtype == spread.dtype == np.float64


def test_the_median_is_not_moved_by_one_wild_member() -> None:
    value = ensemble([fixed(0.1, nan, nan, nan), fixed(0.3, 0.2, nan, 1.0), fixed(99.0, 0.4, nan, nan)], how="median")
    np.testing.assert_allclose(value.score(STATES), [0.3, 0.3, nan, 1.0])


def test_weights() -> None:
    members = [fixed(0.0, 0.0, nan, 0.0), fixed(1.0, nan, 1.0, 1.0)]
    np.testing.assert_allclose(ensemble(members, weights=[3, 1]).score(STATES), [0.25, 0.0, 1.0, 0.25])
    np.testing.assert_allclose(ensemble(members, "median", weights=[3, 1]).score(STATES), [0.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(ensemble(members, "median").score(STATES), [0.5, 0.0, 1.0, 0.5])


def test_it_is_soft_where_all_members_are() -> None:
    one, two = Chance(0.1, 0.2, 0.3, 0.9), Chance(0.5, 0.2, 0.7, 1.0)
    soft = ensemble([one, two])
    assert isinstance(soft, SoftValueFunction)
    for beta in (0.02, 0.5, 5.0):
        mixture = Chance(*((one.chances + two.chances) / 2))
        np.testing.assert_allclose(soft.soft_score(STATES, beta), mixture.soft_score(STATES, beta), rtol=1e-9)
    middle = ensemble([one, two, two], how="median")
    np.testing.assert_allclose(middle.soft_score(STATES, 0.5), two.soft_score(STATES, 0.5))  # type: ignore[attr-defined]
    assert not isinstance(ensemble([one, fixed(1, 1, 1, 1)]), SoftValueFunction)
    gap = ensemble([one, Chance(0.5, nan, nan, 1.0), Chance(0.5, nan, 0.3, 1.0)])
    found = gap.soft_score(STATES, 0.5)  # type: ignore[attr-defined]
    assert found[1] == pytest.approx(one.soft_score(STATES, 0.5)[1])
    with np.errstate(all="raise"):
        assert np.isnan(ensemble([Chance(nan, nan, nan, nan)]).soft_score(STATES, 0.5)).all()  # type: ignore[attr-defined]


def test_members_are_checked() -> None:
    with pytest.raises(ValueScoreError):
        ensemble([fixed(0.1)]).score(STATES)
    with pytest.raises(ValueScoreError, match="infinite"):
        ensemble([fixed(0.1, 0.2, float("inf"), 0.0)]).score(STATES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"values": []},
        {"values": "folder"},
        {"values": fixed()},
        {"values": [3]},
        {"how": "max"},
        {"weights": [1]},
        {"weights": [1, 0]},
        {"weights": [1, nan]},
        {"weights": [1, float("inf")]},
    ],
)
def test_arguments_that_cannot_work(wrong: dict[str, object]) -> None:
    given_ = {"values": [fixed(0.1), fixed(0.2)], **wrong}
    with pytest.raises(ConfigurationError):
        ensemble(**given_)  # type: ignore[arg-type]


scores = st.lists(st.one_of(st.just(nan), st.floats(-1e3, 1e3)), min_size=1, max_size=7)


@given(scores, st.data())
@settings(max_examples=300, deadline=None)
def test_it_agrees_with_numpy_on_the_members_that_are_there(members: list[float], data: st.DataObject) -> None:
    column = np.array(members)[:, None]
    there = column[~np.isnan(column)]
    mean, spread = mean_and_spread(column)
    median = ensemble([fixed(m) for m in members], "median").score([("a",)])
    if not len(there):
        assert np.isnan([*mean, *spread, *median]).all()
        return
    assert mean[0] == pytest.approx(np.mean(there), abs=1e-9)
    assert median[0] == pytest.approx(np.median(there), abs=1e-9)
    assert np.isnan(spread[0]) if len(there) < 2 else spread[0] == pytest.approx(np.std(there, ddof=1), abs=1e-6)
    order = data.draw(st.permutations(range(len(members))))
    assert mean_and_spread(column[order])[0][0] == pytest.approx(mean[0], abs=1e-9)
    assert there.min() - 1e-9 <= mean[0] <= there.max() + 1e-9


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.data())
@settings(max_examples=200, deadline=None)
def test_a_weight_is_so_many_members(weights: list[int], data: st.DataObject) -> None:
    values = [float(data.draw(st.integers(-5, 5))) for _ in weights]
    repeated = [v for v, w in zip(values, weights, strict=True) for _ in range(w)]
    for how in ("mean", "median"):
        weighed = ensemble([fixed(v) for v in values], how, weights).score([("a",)])
        plain = ensemble([fixed(v) for v in repeated], how).score([("a",)])
        np.testing.assert_allclose(weighed, plain, atol=1e-9)


def test_a_plain_ensemble_has_no_soft_value() -> None:
    assert not hasattr(Ensemble, "soft_score")
