"""Heads against closed forms: the mean and the exact soft value."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
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


@pytest.mark.parametrize("loss", get_args(Loss))
@given(p=st.floats(1e-4, 1 - 1e-4), beta=st.sampled_from([1e-300, 1e-12, 1e-5, 0.1, 1.0, 7.0, 1e3, 1e9]))
def test_the_soft_value_lies_between_the_mean_and_the_best_return_for_every_beta(
    loss: Loss, p: float, beta: float
) -> None:
    chosen = head(loss)
    found = float(chosen.soft_value(two_atoms(chosen, p), beta))
    slack = 1e-3 if loss == "hl_gauss" else 1e-6  # float32 targets
    assert p - slack <= found <= 1 + slack
    expected = soft(torch.tensor([0.0, 1.0]), torch.tensor([1 - p, p], dtype=torch.float64), max(beta, 1e-12))
    if beta <= 1e3:
        assert found == pytest.approx(expected, abs=slack)
    else:
        assert found == pytest.approx(p, abs=slack)


@pytest.mark.parametrize("loss", ["bce", "mse", "two_hot"])
@given(p=st.floats(0.01, 0.98), beta=st.sampled_from([1e-2, 0.2, 1.0, 30.0]))
def test_the_soft_value_grows_with_the_chance(loss: Loss, p: float, beta: float) -> None:
    chosen = head(loss)
    low, high = (float(chosen.soft_value(two_atoms(chosen, x), beta)) for x in (p, p + 0.01))
    assert high > low


def two_atoms(chosen: ReturnHead, p: float) -> torch.Tensor:
    """Logits of a 0/1 return that is 1 with chance p."""
    if chosen.loss == "mse":
        return torch.tensor([[p]], dtype=torch.float64)
    if chosen.loss == "bce":
        return torch.tensor([[p]], dtype=torch.float64).logit()
    ends = chosen.encode(torch.tensor([0.0, 1.0])).double()
    return ((1 - p) * ends[0] + p * ends[1]).log()[None]


@given(p=st.floats(0.01, 0.99), mean=st.floats(0.01, 0.99), beta=st.sampled_from([1e-3, 0.1, 1.0, 100.0]))
def test_a_calibrated_mean_moves_a_distribution_of_two_atoms_to_that_chance(p: float, mean: float, beta: float) -> None:
    wanted = np.array([mean])
    plain = head("bce").soft_value(two_atoms(head("bce"), p), beta, wanted)
    atoms = head("two_hot").soft_value(two_atoms(head("two_hot"), p), beta, wanted)
    assert float(atoms) == pytest.approx(float(plain), abs=1e-7)


@pytest.mark.parametrize("loss", DISTRIBUTIONS)
@given(mean=st.floats(-1.9, 2.9), seed=st.integers(0, 99))
def test_a_distribution_moves_as_little_as_its_calibrated_mean_asks(loss: Loss, mean: float, seed: int) -> None:
    chosen = head(loss, low=-2.0, high=3.0, binary=False)
    logits = torch.randn(1, chosen.bins, generator=torch.Generator().manual_seed(seed))
    own = chosen.mean(logits).numpy()
    assert float(chosen.soft_value(logits, 0.5, own)) == pytest.approx(float(chosen.soft_value(logits, 0.5)), abs=1e-9)
    assert float(chosen.soft_value(logits, 1e7, np.array([mean]))) == pytest.approx(mean, abs=1e-5)
    sharp, flat = (float(chosen.soft_value(logits, beta, np.array([mean]))) for beta in (0.1, 1.0))
    assert mean - 1e-9 <= flat <= sharp <= 3.0 + 0.5


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
