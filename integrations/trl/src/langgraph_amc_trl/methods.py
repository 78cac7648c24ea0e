"""What one run on stored data is: DPO (Rafailov et al. 2023), KTO (Ethayarajh et al. 2024), or SFT.

Defaults of the losses are TRL's. Its learning rates are for models of billions of weights: sweep them, on tasks of
their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from langgraph_amc.checks import check_whole, is_number
from langgraph_amc.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What all have in common.

    Attributes
    ----------
    epochs: passes over the data. batch: pairs or sequences per optimiser step.
    accumulation: forward and backward passes per optimiser step; more take less memory.
    learning_rate: of AdamW on float32 weights, constant after ``warmup`` optimiser steps that raise it from 0.
    max_grad_norm: gradients are scaled down to this norm. weight_decay: of AdamW. seed: of the order of the data.
    """

    epochs: int = 1
    batch: int = 16
    accumulation: int = 1
    learning_rate: float = 1e-6
    warmup: int = 0
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    seed: int = 0
    positive: ClassVar[tuple[str, ...]] = ("learning_rate", "max_grad_norm")

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 1), ("accumulation", 1), ("warmup", 0), ("seed", 0)):
            check_whole(name, getattr(self, name), least)
        for name in self.positive:
            if not is_number(getattr(self, name)) or getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} is a number above 0, got {getattr(self, name)!r}")
        if not is_number(self.weight_decay) or self.weight_decay < 0:
            raise ConfigurationError(f"weight_decay is a number of at least 0, got {self.weight_decay!r}")
        if self.batch % self.accumulation:
            raise ConfigurationError(f"batch ({self.batch}) must be a multiple of accumulation ({self.accumulation})")

    @property
    def micro_batch(self) -> int:
        """Pairs or sequences per forward pass."""
        return self.batch // self.accumulation


@dataclass(frozen=True, slots=True, kw_only=True)
class DPO(Method):
    """Direct preference optimisation on pairs.

    Attributes
    ----------
    beta: how close the policy stays to what it was; large is close.
    sft: weight of the mean negative log-probability of what was better, beside the loss of DPO: it keeps the policy
        from making both less likely (Pang et al. 2024, equation 1).
    """

    beta: float = 0.1
    sft: float = 0.0
    positive: ClassVar[tuple[str, ...]] = (*Method.positive, "beta")

    def __post_init__(self) -> None:
        Method.__post_init__(self)
        if not is_number(self.sft) or self.sft < 0:
            raise ConfigurationError(f"sft is a number of at least 0, got {self.sft!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KTO(Method):
    """Kahneman-Tversky optimisation on runs with a label; fewer of one kind count more each, so that both weigh alike.

    Attributes
    ----------
    beta: as in `DPO`.
    """

    beta: float = 0.1
    positive: ClassVar[tuple[str, ...]] = (*Method.positive, "beta")

    def __post_init__(self) -> None:
        Method.__post_init__(self)
        if self.micro_batch < 2:
            raise ConfigurationError(
                "KTO compares the runs of a forward pass with each other: batch must be at least twice accumulation"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SFT(Method):
    """Supervised fine-tuning on chosen runs: the likelihood of what the policy said in them."""

    learning_rate: float = 2e-5
