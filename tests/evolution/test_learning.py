"""The parts together find what they look for: a linear map from rewards alone, at every rank and type of number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from langgraph_amc.evolution.asktell import ask, start, tell
from langgraph_amc.evolution.directions import dense, factors, is_low_rank, unit_of
from langgraph_amc.evolution.layout import layout
from langgraph_amc.evolution.members import Generation, Member
from langgraph_amc.evolution.schedules import Automatic, Cosine
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.evolution.weights import Weights

INPUTS = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
TARGETS = INPUTS @ torch.randn(6, 4, generator=torch.Generator().manual_seed(2))


def rewards_of(weight: torch.Tensor) -> np.ndarray:
    """One reward per task: minus the squared error of its answer."""
    return -((INPUTS @ weight.detach().float().T - TARGETS) ** 2).mean(dim=1).double().numpy()


def member_weight(model, entry, generation: Generation, member: Member) -> torch.Tensor:
    if is_low_rank(entry, generation.rank):
        a, b = factors(generation, member.pair, entry)
        direction = a.double() @ b.double().T
    else:
        direction = dense(generation, member.pair, entry).double().view(entry.shape)
    moved = member.sign * generation.sigma * unit_of(entry, generation.kind, generation.rank) * direction
    return model.weight.detach().float() + moved.float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "options",
    [
        {"rank": 1},
        {"rank": 4, "noise": "gaussian"},
        {"rank": None, "antithetic": False},
        {"rank": 2, "shaping": "ranks", "sigma": Automatic(0.1, low=0.05, high=0.3)},
        {"rank": 1, "shaping": "none", "alpha_ratio": 20.0, "trust_region": 0.03},
    ],
    ids=str,
)
def test_a_linear_map_is_found(options, dtype):
    model = torch.nn.Linear(6, 4, bias=False)
    torch.nn.init.zeros_(model.weight)
    model = model.to(dtype)
    weights = Weights(model, layout(model))
    (entry,) = weights.layout.entries
    strategy = Strategy(**{"population": 16, "sigma": Cosine(0.1, 0.02, 120), "alpha_ratio": 1.0, "seed": 5} | options)
    state, before = start(strategy), rewards_of(model.weight).mean()
    for _ in range(120):
        generation = ask(strategy, state)
        rewards = np.stack([rewards_of(member_weight(model, entry, generation, m)) for m in generation.members])
        update, state = tell(strategy, state, generation, rewards)
        weights.apply(update)
    after = rewards_of(model.weight).mean()
    assert after > 0.25 * before, "three quarters of the error should be gone"
