"""Heads against closed forms: the mean and the exact soft value."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value.heads import Loss, ReturnHead

BETAS = [1e-3, 0.02, 0.3, 1.0, 50.0]
DISTRIBUTIONS = ["two_hot", "hl_gauss"]


def head(loss: Loss, **changes: object) -> ReturnHead:
    return ReturnHead(**{"loss": loss, "low": 0.0, "high": 1.0, "binary": True, "bins": 51, **changes})


def soft(values: torch.Tensor, chances: torch.Tensor, beta: float) -> float:
    return float(beta * torch.logsumexp(values.double() / beta + chances.double().log(), 0))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("p", [1e-6, 0.2, 0.999])
def test_a_success_probability_gives_the_exact_tilt(p: float, beta: float) -> None:
    expected = soft(torch.tensor([0.0, 1.0]), torch.tensor([1 - p, p], dtype=torch.float64), beta)
    logit = torch.tensor([[p]], dtype=torch.float64).logit()
    assert float(head("bce").soft_value(logit, beta)) == pytest.approx(expected, abs=1e-6)
    mean = torch.tensor([[p]], dtype=torch.float64)
    assert float(head("mse").soft_value(mean, beta)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("loss", DISTRIBUTIONS)
def test_a_distribution_gives_the_exact_soft_value_of_returns_on_its_grid(loss: Loss, beta: float) -> None:
    chosen = head(loss, low=-2.0, high=3.0, binary=False)
    values = chosen.grid()[[3, 10, 30, 47]]
    chances = torch.tensor([0.1, 0.2, 0.65, 0.05], dtype=torch.float64)
    logits = (chosen.encode(values).double() * chances[:, None]).sum(0).log()[None]
    assert float(chosen.mean(logits)) == pytest.approx(float(values @ chances), abs=1e-6)
    assert float(chosen.soft_value(logits, beta)) == pytest.approx(soft(values, chances, beta), abs=1e-5)


@pytest.mark.parametrize("loss", DISTRIBUTIONS)
@given(value=st.floats(-1.5, 4.0))
def test_targets_keep_the_mean_anywhere_in_the_range(loss: Loss, value: float) -> None:
    chosen = head(loss, low=-1.5, high=4.0, binary=False)
    target = chosen.encode(torch.tensor([value], dtype=torch.float64))
    assert float(target.sum()) == pytest.approx(1.0, abs=1e-5)
    assert float(target.double() @ chosen.grid()) == pytest.approx(value, abs=5e-4)


@pytest.mark.parametrize("loss", get_args(Loss))
@given(logit=st.floats(-6, 6), small=st.floats(0.05, 1), factor=st.floats(1.5, 10))
def test_the_soft_value_falls_with_beta_and_stays_above_the_mean(
    loss: Loss, logit: float, small: float, factor: float
) -> None:
    chosen = head(loss)
    logits = torch.full((1, chosen.size), 0.5 if loss == "mse" else logit)
    if chosen.distributional:
        logits = (
            chosen.encode(torch.tensor([0.0, 1.0])).mul(torch.tensor([[1.0], [math.exp(logit)]])).sum(0).log()[None]
        )
    mean, sharp, flat = (
        float(x)
        for x in (
            chosen.mean(logits),
            chosen.soft_value(logits, small),
            chosen.soft_value(logits, small * factor),
        )
    )
    assert mean - 1e-5 <= flat <= sharp + 1e-6
    assert sharp <= 1 + 1e-5


def test_the_mean_of_graded_returns_is_not_taken_for_their_distribution() -> None:
    for loss in ("mse", "bce"):
        with pytest.raises(ConfigurationError, match="two_hot"):
            head(loss, binary=False).soft_value(torch.zeros(1, 1), 0.1)


@pytest.mark.parametrize("beta", [0.0, -1.0, math.inf, math.nan])
def test_beta_is_positive_and_finite(beta: float) -> None:
    with pytest.raises(ConfigurationError, match="beta"):
        head("bce").soft_value(torch.zeros(1, 1), beta)


def test_standardised_regression_folds_into_the_weights() -> None:
    returns = torch.tensor([-300.0, 100.0, 500.0])
    layer, x = torch.nn.Linear(4, 1), torch.randn(5, 4)
    trained = head("mse", low=-300.0, high=500.0, binary=False).standardised(returns, has_bias=True)
    assert trained.encode(returns).mean() == pytest.approx(0, abs=1e-6)
    before = trained.mean(layer(x)).detach()
    folded = trained.fold(layer.weight, layer.bias)
    assert (folded.shift, folded.scale) == (0.0, 1.0)
    assert torch.allclose(folded.mean(layer(x)), before, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"loss": "huber"}, "huber"), ({"low": 1.0}, "interval"), ({"loss": "two_hot", "bins": 3}, "bins")],
)
def test_a_head_that_cannot_work_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        head(**{"loss": "bce", **changes})
