"""Float32 masters: small steps add up in a model whose own numbers are too coarse for them."""

from __future__ import annotations

import torch
from langgraph_amc_trl.optimizer import MasterAdamW

RATE, STEPS = 1e-5, 200


def moved(optimizer_class: type[torch.optim.Optimizer], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    start = torch.randn(1000).to(dtype)
    weight = torch.nn.Parameter(start.clone())
    optimizer = optimizer_class([weight], lr=RATE, weight_decay=0.0)  # type: ignore[call-arg]
    for _ in range(STEPS):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        optimizer.zero_grad()
        assert weight.grad is None
    return (weight.detach().float() - start.float()).mean()


def test_steps_below_the_type_add_up() -> None:
    whole = -RATE * STEPS
    assert abs(moved(MasterAdamW, torch.bfloat16) / whole - 1) < 0.05
    # The point of masters: without them nearly all of it is rounded away.
    assert abs(moved(torch.optim.AdamW, torch.bfloat16) / whole) < 0.1


def test_a_float32_model_is_trained_as_by_adamw_itself() -> None:
    assert torch.equal(moved(MasterAdamW, torch.float32), moved(torch.optim.AdamW, torch.float32))


def test_frozen_parameters_are_left_alone() -> None:
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    free = torch.nn.Parameter(torch.ones(2))
    optimizer = MasterAdamW([frozen, free], lr=0.1)
    assert [p for group in optimizer.param_groups for p in group["params"]] == [free]
