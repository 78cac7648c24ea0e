"""Matrices with a low-rank perturbation per row: y = x W^T + s (sigma / sqrt r) (x B) A^T (EGGROLL, arXiv 2511.16652).

Two forms. `Wide`: all pairs at once, U = x [B_1 ... B_P], of which a mask leaves each row its own columns, then
y += U [A_1 ... A_P]^T: one narrow product more, no factors per row. `Grouped`: rows sorted by pair and a batched
product with each pair's factors, for populations whose columns together are not narrow. In both, projections of the
same input share the first product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from langgraph_amc.evolution.directions import factors
from langgraph_amc.evolution.layout import Entry
from langgraph_amc.evolution.members import Generation
from langgraph_amc.evolution.noise import UNIT
from langgraph_amc.evolution.perturbation.rows import Rows

WIDE = 32
"""Up to this many columns (pairs times rank) the wide form is the faster one, on a CPU at least."""


@dataclass(slots=True)
class Live:
    """What all perturbed modules of a model look at: the rows of the pass, and the last first product."""

    rows: Rows | None = None
    x: torch.Tensor | None = None
    u: torch.Tensor | None = None
    owner: Form | None = None

    def release(self) -> None:
        """Hold on to no activations."""
        self.x = self.u = self.owner = None


@dataclass(frozen=True, slots=True)
class Part:
    """One logical matrix [m, n] of a projection: its A, where its columns begin in U, and its first output."""

    a: torch.Tensor
    """Shape (pairs, rank, m)."""
    number: int
    first: int

    @property
    def size(self) -> int:
        """Outputs."""
        return self.a.shape[2]


class Form(Protocol):
    """How the projections of one input are perturbed."""

    def first(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        """The first product U of every projection, scaled; x of shape (rows, tokens, n)."""
        ...

    def add(self, y: torch.Tensor, u: torch.Tensor, part: Part, rows: Rows) -> None:
        """Add the second product of one matrix to the output y of shape (rows, tokens, outputs)."""
        ...


class Wide:
    """All pairs at once; ``b``: the B of each part, of shape (pairs, n, rank)."""

    def __init__(self, b: list[torch.Tensor]) -> None:
        pairs, self.n, rank = b[0].shape
        self.parts, self.width = len(b), pairs * rank
        self.b = torch.cat([one.transpose(0, 1).reshape(self.n, self.width) for one in b], 1)

    def first(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        u = torch.mm(x.reshape(-1, self.n), self.b)
        u.view(rows.count, -1, self.parts * self.width).mul_(rows.mask(self.parts))
        return u

    def add(self, y: torch.Tensor, u: torch.Tensor, part: Part, rows: Rows) -> None:
        out, width = y.view(-1, y.shape[-1]), self.width
        if self.parts > 1:
            u = u.narrow(1, part.number * width, width)
        if part.size < out.shape[1]:
            out = out.narrow(1, part.first, part.size)
        out.addmm_(u, part.a.view(width, part.size))


class Grouped:
    """Pair by pair; ``b`` as in `Wide`."""

    def __init__(self, b: list[torch.Tensor]) -> None:
        self.n, self.rank = b[0].shape[1:]
        self.b = torch.cat(b, 2)

    def first(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        s = rows.sorted
        own = x.index_select(0, s.order).view(s.groups, -1, self.n)
        u = torch.bmm(own, _of(self.b, s.present))
        u.view(s.groups, s.size, -1, self.b.shape[2]).mul_(s.scale)
        return u

    def add(self, y: torch.Tensor, u: torch.Tensor, part: Part, rows: Rows) -> None:
        s = rows.sorted
        change = torch.bmm(u.narrow(2, part.number * self.rank, self.rank), _of(part.a, s.present))
        out = y.narrow(-1, part.first, part.size)
        out.index_add_(0, s.order, change.view(-1, *out.shape[1:]))


def _of(factor: torch.Tensor, present: torch.Tensor | None) -> torch.Tensor:
    return factor if present is None else factor.index_select(0, present)


class Factors:
    """The factors of a generation as floats in their unit, made when first asked for."""

    def __init__(self, generation: Generation, device: torch.device) -> None:
        self.generation = generation
        self.device = device
        self._made: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(self, entry: Entry, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """A of shape (pairs, rank, m) and B of shape (pairs, n, rank)."""
        made = self._made.get(entry.name)
        if made is None:
            pairs = range(self.generation.pairs)
            both = [factors(self.generation, pair, entry, device=self.device) for pair in pairs]
            unit = UNIT[self.generation.kind]
            a, b = (torch.stack(list(one)).to(dtype).mul_(unit) for one in zip(*both, strict=True))
            made = self._made[entry.name] = a.transpose(1, 2).contiguous(), b
        return made


def perturbed_projection(
    original: Callable[[torch.Tensor], torch.Tensor], live: Live, form: Form, parts: list[Part], *, last: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The forward function of a linear layer; ``last`` of those that share an input."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = original(x)
        rows = live.rows
        if rows is None:
            return y
        if live.x is x and live.owner is form and live.u is not None:
            u = live.u
        else:
            u = form.first(x, rows)
            live.x, live.u, live.owner = x, u, form
        for part in parts:
            form.add(y, u, part, rows)
        if last:
            live.release()
        return y

    return forward


def perturbed_lookup(
    original: Callable[[torch.Tensor], torch.Tensor], live: Live, a: torch.Tensor, b: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The forward function of an embedding: E[token] + s (sigma / sqrt r) A[token] B^T."""

    def forward(ids: torch.Tensor) -> torch.Tensor:
        y = original(ids)
        rows = live.rows
        if rows is None:
            return y
        own = a[rows.pair.unsqueeze(1), :, ids].mul_(rows.scale.view(-1, 1, 1))
        return y.baddbmm_(own, b[rows.pair].transpose(1, 2))

    return forward
