"""Training that went wrong ends with an error, not with a folder that holds a broken model."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from langgraph_amc.errors import AMCError


class DivergedError(AMCError):
    """Losses or weights are no numbers any more; no model is written."""


def check_trained(model: torch.nn.Module, learning_rate: float, losses: Iterable[float | None]) -> None:
    """Raise DivergedError unless every loss that was measured, and every weight, is finite."""
    where = "a loss" if any(loss is not None and not math.isfinite(loss) for loss in losses) else None
    where = next((name for name, p in model.named_parameters() if not bool(p.isfinite().all())), where)
    if where is not None:
        raise DivergedError(
            f"training has diverged at learning rate {learning_rate:g}: {where} is not finite. "
            "No model is written: lower the learning rate"
        )
