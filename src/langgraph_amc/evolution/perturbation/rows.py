"""Which member each row of a forward pass is of, as tensors: made once per composition, not once per layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from langgraph_amc.evolution.members import Member


class Rows:
    """The rows of a pass, some of them perturbed: rows without a member have sign 0.

    Parameters
    ----------
    members: of each row.
    pairs, rank: of the generation.
    scale: what a member's sign stands for: sigma / sqrt(rank).
    """

    def __init__(
        self, members: Sequence[Member | None], pairs: int, rank: int, scale: float, device: torch.device
    ) -> None:
        self.count = len(members)
        self.members = members
        self.rank = rank
        self.width = pairs * rank
        self.pairs = pairs
        self.device = device
        self.pair = torch.tensor([m.pair if m is not None else 0 for m in members], device=device)
        self.sign = torch.tensor([float(m.sign) if m is not None else 0.0 for m in members], device=device)
        self.scale = self.sign * scale
        self._masks: dict[int, torch.Tensor] = {}

    def mask(self, parts: int) -> torch.Tensor:
        """The columns that are a row's own, times its scale: shape (rows, 1, parts * pairs * rank), else 0."""
        mask = self._masks.get(parts)
        if mask is None:
            one = torch.zeros(self.count, self.pairs, self.rank, device=self.device)
            one[torch.arange(self.count, device=self.device), self.pair] = self.scale.unsqueeze(1)
            mask = self._masks[parts] = one.view(self.count, 1, self.width).repeat(1, 1, parts)
        return mask

    @cached_property
    def sorted(self) -> Sorted:
        """The perturbed rows by pair."""
        return Sorted(self.members, self.scale, self.pairs)


class Sorted:
    """Perturbed rows in groups of one pair each, filled up to equal size with rows of the same pair at scale 0.

    Filling up with a row's own pair keeps numbers that went bad within the rows of that pair.

    Attributes
    ----------
    order: rows, group by group: shape (groups * size,). scale: of each: shape (groups, size, 1, 1).
    present: the pair of each group; ``None`` if there is a group for every pair.
    """

    def __init__(self, members: Sequence[Member | None], scale: torch.Tensor, pairs: int) -> None:
        groups: dict[int, list[int]] = {}
        for row, member in enumerate(members):
            if member is not None:
                groups.setdefault(member.pair, []).append(row)
        found = sorted(groups)
        self.groups, self.size = len(found), max(map(len, groups.values()))
        rows = [groups[p] + groups[p][:1] * (self.size - len(groups[p])) for p in found]
        real = [[float(i < len(groups[p])) for i in range(self.size)] for p in found]
        device = scale.device
        self.order = torch.tensor(rows, device=device).flatten()
        self.scale = (scale[self.order] * torch.tensor(real, device=device).flatten()).view(-1, self.size, 1, 1)
        self.present = None if len(found) == pairs else torch.tensor(found, device=device)
