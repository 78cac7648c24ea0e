"""What one arm of policy gradients is: GRPO (Shao et al. 2024, DeepSeekMath), and its PPO-like form with more passes.

A task's `group` trajectories are each other's baseline: A = (r - mean) / std. With more than one optimiser step per
batch of rollouts the ratio to the policy that sampled them is clipped, as in PPO (Schulman et al. 2017), without a
critic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from langgraph_amc.errors import ConfigurationError

Scale = Literal["group", "batch", "none"]
"""What advantages are divided by: the standard deviation of the group, of the batch, or nothing (as in RLOO)."""


@dataclass(frozen=True, slots=True)
class GRPO:
    """Settings of a run; ``steps * tasks * group`` trajectories in all.

    Attributes
    ----------
    steps: batches of rollouts. tasks: of each batch. group: trajectories per task.
    learning_rate: of AdamW on float32 weights, constant after ``warmup`` optimiser steps that raise it from 0.
    epochs: passes over each batch of rollouts; minibatches: optimiser steps per pass; 1 and 1 is on policy.
    accumulation: forward and backward passes per optimiser step; more take less memory and change nothing else.
    clip: the ratio of new to old probability counts within 1 - clip and 1 + clip.
    beta: weight of the KL divergence from the model in the files; 0 keeps no second model.
    scale: what advantages are divided by (`Scale`).
    temperature: that the app samples at; log-probabilities are those of this temperature.
    max_grad_norm: gradients are scaled down to this norm. weight_decay: of AdamW.
    seed: of tasks, sampling and minibatches.
    """

    steps: int = 100
    tasks: int = 8
    group: int = 8
    learning_rate: float = 1e-5
    warmup: int = 0
    epochs: int = 1
    minibatches: int = 1
    accumulation: int = 1
    clip: float = 0.2
    beta: float = 0.0
    scale: Scale = "group"
    temperature: float = 1.0
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in _WHOLE.items():
            _check_whole(name, getattr(self, name), least)
        for name, positive in _REAL.items():
            _check_real(name, getattr(self, name), positive)
        if self.clip >= 1:
            raise ConfigurationError(f"clip is below 1, got {self.clip!r}: 0.2 is usual")
        if self.scale not in ("group", "batch", "none"):
            raise ConfigurationError(f"scale is 'group', 'batch' or 'none', got {self.scale!r}")
        if self.batch % self.passes:
            raise ConfigurationError(
                f"tasks * group ({self.batch} trajectories) must be a multiple of minibatches * accumulation "
                f"({self.passes}): change one of them"
            )

    @property
    def batch(self) -> int:
        """Trajectories per step."""
        return self.tasks * self.group

    @property
    def trajectories(self) -> int:
        """Trajectories of the whole run, those of measurements not counted."""
        return self.steps * self.batch

    @property
    def passes(self) -> int:
        """Forward and backward passes per epoch."""
        return self.minibatches * self.accumulation

    @property
    def updates(self) -> int:
        """Optimiser steps per batch of rollouts."""
        return self.epochs * self.minibatches

    @property
    def on_policy(self) -> bool:
        """Whether every gradient is taken at the weights that sampled."""
        return self.updates == 1


_WHOLE = {"steps": 1, "tasks": 1, "group": 2, "warmup": 0, "epochs": 1, "minibatches": 1, "accumulation": 1, "seed": 0}
"""Whole numbers, and the least each may be."""
_REAL = {
    "learning_rate": True,
    "clip": True,
    "beta": False,
    "temperature": True,
    "max_grad_norm": True,
    "weight_decay": False,
}
"""Real numbers, and whether they must be above 0."""


def _check_whole(name: str, given: object, least: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise ConfigurationError(f"{name} is a whole number of at least {least}, got {given!r}")


def _check_real(name: str, given: object, positive: bool) -> None:
    known = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    if not known or given < 0 or (positive and given == 0):  # type: ignore[operator]
        raise ConfigurationError(f"{name} is a number {'above' if positive else 'of at least'} 0, got {given!r}")
