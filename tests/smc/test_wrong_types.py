"""Options of a wrong type: an error that says what to give, at once and never a TypeError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc import (
    Candidate,
    abstain,
    adaptive,
    agreement,
    argmax,
    backtrack,
    best_value,
    fit_abstention,
    quorum,
    value_above,
    vote,
)

WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (value_above, ("x",), {}),
    (value_above, (None,), {}),
    (value_above, (True,), {}),
    (value_above, (np.zeros(2),), {}),
    (agreement, ("x",), {}),
    (agreement, (float("nan"),), {}),
    (agreement, (), {"among": "3"}),
    (agreement, (), {"key": "final_text"}),
    (quorum, ("x",), {}),
    (quorum, (None,), {}),
    (quorum, (0.8,), {"patience": "x"}),
    (quorum, (0.8,), {"seconds": "x"}),
    (quorum, (0.8,), {"seconds": float("inf")}),
    (backtrack, ("x",), {}),
    (backtrack, (), {"most": "x"}),
    (adaptive, ("2",), {}),
    (adaptive, (), {"enough": "x"}),
    (adaptive, (), {"enough": agreement}),
    (vote, ("final_text",), {}),
    (abstain, ("x",), {}),
    (abstain, (np.zeros(2),), {}),
    (abstain, (None,), {}),
    (abstain, (0.5, 3), {}),
    (abstain, (0.5,), {"confidence": 0.5}),
    (fit_abstention, (["a"] * 99, [1] * 99), {}),
    (fit_abstention, ([[1], [1, 2]], [1, 1]), {}),
    (fit_abstention, ([0.5] * 99, ["yes"] * 99), {}),
    (fit_abstention, ([0.5] * 99, [1] * 99), {"risk": "a"}),
]


@pytest.mark.parametrize(("option", "given", "named"), WRONG)
def test_a_wrong_type_is_an_error_that_says_what_to_give(
    option: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError):
        option(*given, **named)


def test_rules_combine_with_rules_only() -> None:
    with pytest.raises(ConfigurationError, match="combine rules"):
        agreement() | "value_above(1)"
    with pytest.raises(ConfigurationError, match="combine rules"):
        agreement() & value_above


def test_numbers_of_numpy_are_numbers() -> None:
    assert value_above(np.float32(0.5)) == value_above(0.5)
    assert quorum(np.float64(0.5)) == quorum(0.5)


def test_abstain_takes_the_name_of_a_selector() -> None:
    assert abstain(0.5, "best_value") == abstain(0.5, best_value)
    candidates = [Candidate(0.0, 0.2, None, "a"), Candidate(1.0, 0.9, None, "b")]
    assert abstain(0.1, by="argmax").by is argmax
    assert abstain(0.1, by="vote")(np.random.default_rng(0), candidates) == 1
    with pytest.raises(ConfigurationError, match="argmax, best_reward, best_value, sample, vote"):
        abstain(0.5, by="best")
