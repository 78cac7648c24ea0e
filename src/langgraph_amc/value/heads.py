"""What the head's numbers mean: losses, the mean, and the soft value β·log E[exp(R/β)] (AMC, soft value).

``mse`` is the paper's regression on the mean return. ``bce`` is a success probability, for returns in [0, 1].
``two_hot`` and ``hl_gauss`` (Farebrother et al. 2024, "Stop Regressing") are distributions over returns: from
one set of logits the soft value follows for every β at run time, without training again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value import soft
from langgraph_amc.value.soft import FloatArray

Loss = Literal["bce", "mse", "two_hot", "hl_gauss"]
LOSSES: tuple[str, ...] = get_args(Loss)
_SMOOTHING = 0.75  # standard deviation of HL-Gauss in bin widths, the value its paper recommends
_MARGIN = 3  # bins beyond the range on each side, so that a smoothed target at its end keeps its mean


@dataclass(frozen=True, slots=True)
class ReturnHead:
    """The reading of a head's logits.

    Attributes
    ----------
    loss: which of `LOSSES`.
    low, high: range of the returns that were trained on; the ends of the grid of a distribution.
    binary: every return that was trained on is 0 or 1, so that the mean says all about the distribution.
    bins: number of logits of a distribution.
    shift, scale: the ``mse`` logit is (return − shift)/scale while training; folded into the head at the end.
    """

    loss: Loss
    low: float
    high: float
    binary: bool
    bins: int = 51
    shift: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ConfigurationError(f"loss {self.loss!r} is unknown: choose one of {', '.join(LOSSES)}")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigurationError(f"the return range [{self.low}, {self.high}] is not an interval")
        if self.distributional and self.bins < 2 * _MARGIN + 2:
            raise ConfigurationError(f"a distribution needs at least {2 * _MARGIN + 2} bins, got {self.bins}")

    @property
    def distributional(self) -> bool:
        """Whether the logits are a distribution over returns."""
        return self.loss in ("two_hot", "hl_gauss")

    @property
    def size(self) -> int:
        """Number of logits."""
        return self.bins if self.distributional else 1

    @property
    def soft(self) -> bool:
        """Whether `soft_value` is exact: a distribution, or 0/1 returns."""
        return self.distributional or self.binary

    def grid(self) -> Tensor:
        """Return at each bin, float64 [bins]; HL-Gauss has a margin so that the ends of the range fit inside."""
        margin = _MARGIN if self.loss == "hl_gauss" else 0
        width = (self.high - self.low) / (self.bins - 1 - 2 * margin)
        return self.low + width * (torch.arange(self.bins, dtype=torch.float64) - margin)

    def encode(self, returns: Tensor) -> Tensor:
        """Training target of each return: float32 [n, size]. Targets may be averaged over sibling runs."""
        returns = returns.to(torch.float64)
        if not self.distributional:
            return ((returns - self.shift) / self.scale).to(torch.float32)[:, None]
        grid = self.grid()
        width = grid[1] - grid[0]
        if self.loss == "two_hot":
            return (1 - (returns[:, None] - grid).abs() / width).clamp(min=0).to(torch.float32)
        return _gaussian_bins(returns, grid, width).to(torch.float32)

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of each readout, [n]."""
        if self.loss == "mse":
            return F.mse_loss(logits, targets, reduction="none")[:, 0]
        if self.loss == "bce":
            return F.binary_cross_entropy_with_logits(logits, targets, reduction="none")[:, 0]
        return F.cross_entropy(logits, targets, reduction="none")

    def mean(self, logits: Tensor) -> Tensor:
        """Expected return, float64 [n], in units of reward."""
        logits = logits.to(torch.float64)
        if self.loss == "mse":
            return logits[:, 0] * self.scale + self.shift
        if self.loss == "bce":
            return logits[:, 0].sigmoid()
        return logits.softmax(-1) @ self.grid().to(logits.device)

    def soft_value(self, logits: Tensor, beta: float, mean: FloatArray | None = None) -> Tensor:
        """β·log E[exp(R/β)], float64 [n], in units of reward, for any β > 0.

        For 0/1 returns this is the exact tilt β·log(1 − p + p·e^{1/β}). For HL-Gauss the smoothing of the targets
        is divided out; the result is exact for returns on the grid.

        Parameters
        ----------
        mean: calibrated means [n] in place of the logits' own; a distribution becomes the nearest with that mean.

        Raises
        ------
        ConfigurationError: β is not positive and finite, or only the mean of graded returns is known.
        """
        soft.check_beta(beta)
        if self.distributional:
            grid = self.grid().numpy()
            found = logits.to("cpu", torch.float64).log_softmax(-1).numpy()
            if mean is not None:
                found = soft.with_mean(found, grid, mean)
            return torch.from_numpy(soft.soft_of_distribution(found, grid, beta) - self._smoothing_bonus(beta))
        if not self.binary:
            raise ConfigurationError(
                f"this value function was trained with loss={self.loss!r} on graded returns: it knows their mean,"
                " and the soft value needs their distribution; train it with loss='two_hot' or 'hl_gauss'"
            )
        if self.loss == "bce" and mean is None:
            success, failure = (F.logsigmoid(sign * logits[:, 0].double()).cpu() for sign in (1, -1))
        else:
            p = self.mean(logits).cpu() if mean is None else torch.from_numpy(mean)
            success, failure = p.clamp(0.0, 1.0).log(), torch.log1p(-p.clamp(0.0, 1.0))
        return torch.from_numpy(soft.soft_of_chance(success.numpy(), failure.numpy(), beta))

    def _smoothing_bonus(self, beta: float) -> float:
        """What the smoothing of HL-Gauss adds to the soft value of a return known for certain."""
        if self.loss != "hl_gauss":
            return 0.0
        grid = self.grid()
        middle = grid[self.bins // 2]
        kernel = _gaussian_bins(middle[None], grid, grid[1] - grid[0])
        return float(soft.soft_of_distribution(kernel.log().numpy(), grid.numpy(), beta)[0] - middle)

    def initial_bias(self, target: Tensor) -> Tensor:
        """Bias [size] at which the head predicts the mean training target, [size]."""
        if self.loss == "mse":
            return target
        if self.loss == "bce":
            return target.clamp(0.01, 0.99).logit()
        return (target + 0.1 / self.size).log()

    def standardised(self, returns: Tensor, has_bias: bool) -> ReturnHead:
        """For ``mse``: a head whose logits are standardised returns, so that one learning rate fits all units."""
        if self.loss != "mse":
            return self
        returns = returns.to(torch.float64)
        shift = float(returns.mean()) if has_bias else 0.0
        scale = float((returns - shift).square().mean().sqrt())
        return replace(self, shift=shift, scale=scale if scale > 0 else 1.0)

    @torch.no_grad()
    def fold(self, weight: Tensor, bias: Tensor | None) -> ReturnHead:
        """Move shift and scale into the head's own weights, in place: the logits are in units of reward then."""
        weight.mul_(self.scale)
        if bias is not None:
            bias.mul_(self.scale).add_(self.shift)
        return replace(self, shift=0.0, scale=1.0)


def _gaussian_bins(returns: Tensor, grid: Tensor, width: Tensor) -> Tensor:
    """Mass of N(return, (0.75 width)²) in the bin around each grid point, float64 [n, bins].

    Cut off at the margin on both sides, so that the smoothing is the same everywhere in the range.
    """
    scale = math.sqrt(2.0) * _SMOOTHING * width
    edges = torch.cat([grid - width / 2, grid[-1:] + width / 2])
    mass = torch.special.erf((edges - returns[:, None]) / scale).diff(dim=-1)
    mass = mass * ((grid - returns[:, None]).abs() < (_MARGIN + 0.5) * width)
    return mass / mass.sum(-1, keepdim=True)
