"""Members of a generation: who is perturbed, along which direction, and how far. No weights, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from langgraph_amc.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph_amc.evolution.noise import NoiseKind

Scope = Literal["all", "linear", "vectors", "lora"]
SCOPES: tuple[Scope, ...] = ("all", "linear", "vectors", "lora")
"""What of a model is perturbed (`layout`)."""
NOISES: tuple[NoiseKind, ...] = ("rademacher", "gaussian")
"""What directions are made of (`noise`, which needs torch)."""


@dataclass(frozen=True, slots=True)
class Member:
    """One perturbed copy of the weights: ``sign`` (+1 or -1) times the direction of ``pair``."""

    pair: int
    sign: int

    def __post_init__(self) -> None:
        if self.pair < 0 or self.sign not in (1, -1):
            raise ConfigurationError(f"a member has pair >= 0 and sign +1 or -1, got {self.pair} and {self.sign}")


@dataclass(frozen=True, slots=True)
class Generation:
    """Everything that fixes the perturbations of one generation.

    Attributes
    ----------
    number: from 0. seed: the run's seed. sigma: standard deviation of the perturbation of each weight.
    rank: r of the low-rank form; ``None`` perturbs every element on its own (the paper's form).
    members: in the order of the rows of the rewards.
    """

    number: int
    seed: int
    sigma: float
    kind: NoiseKind
    rank: int | None
    members: tuple[Member, ...]

    @property
    def pairs(self) -> int:
        """Number of directions."""
        return 1 + max((m.pair for m in self.members), default=-1)
