"""The direction of each pair: noise of unit variance as integers (low-rank form: EGGROLL, arXiv 2511.16652).

Low rank, for a logical matrix W [m, n]: E = A B^T / sqrt(r), with A [m, r] and B [n, r]. Full rank and 1-D
parameters: one number per element. A member's weights are W + sign * sigma * E.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.layout import Entry
from langgraph_amc.evolution.members import Generation
from langgraph_amc.evolution.noise import UNIT, NoiseKind, integers, integers_numpy, noise_key

_SHORT = 1 << 17
"""Streams up to this length are made by NumPy on a CPU: the same bits, at a fraction of what torch's calls cost."""


def is_low_rank(entry: Entry, rank: int | None) -> bool:
    """Whether this entry is perturbed through factors: matrices under a rank; 1-D parameters never."""
    return rank is not None and entry.kind != "vector"


def unit_of(entry: Entry, kind: NoiseKind, rank: int | None) -> float:
    """What one unit of an entry's integer direction stands for: unit^2 / sqrt(r) under a rank, else unit."""
    if rank is not None and is_low_rank(entry, rank):
        return UNIT[kind] ** 2 / math.sqrt(rank)
    return UNIT[kind]


def factors(
    generation: Generation,
    pair: int,
    entry: Entry,
    *,
    rows: tuple[int, int] | None = None,
    device: torch.device | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Integer factors A [m, r] and B [n, r] (int16) of a pair's direction A B^T * unit_of(...) for one matrix.

    ``rows = (first, last)`` gives only these rows of A (a shard, or the tokens that occur); B is always whole.
    """
    return (
        factor(generation, pair, entry, "A", rows=rows, device=device),
        factor(generation, pair, entry, "B", device=device),
    )


def factor(
    generation: Generation,
    pair: int,
    entry: Entry,
    side: Literal["A", "B"],
    *,
    rows: tuple[int, int] | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """One of the two factors, or some rows of it: int16 [rows, r]."""
    rank = generation.rank
    if rank is None or not is_low_rank(entry, rank):
        raise ConfigurationError(f"{entry.name} has no factors in this generation: ask for dense()")
    first, last = rows or (0, entry.shape[0] if side == "A" else entry.shape[1])
    return _stream(generation, pair, entry, side, (last - first) * rank, first * rank, device).view(-1, rank)


def dense(
    generation: Generation,
    pair: int,
    entry: Entry,
    *,
    start: int = 0,
    count: int | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Integer direction (int16, flat, row-major in the logical shape) of an entry that is perturbed elementwise."""
    if is_low_rank(entry, generation.rank):
        raise ConfigurationError(f"{entry.name} has a low-rank direction in this generation: ask for factors()")
    count = entry.numel - start if count is None else count
    return _stream(generation, pair, entry, "full", count, start, device)


def _stream(
    generation: Generation,
    pair: int,
    entry: Entry,
    stream: str,
    count: int,
    start: int,
    device: torch.device | str | None,
) -> torch.Tensor:
    key = noise_key(generation.seed, generation.number, pair, entry.name, stream)
    if count <= _SHORT and torch.device("cpu" if device is None else device).type == "cpu":
        return torch.from_numpy(integers_numpy(generation.kind, key, count, start=start))
    return integers(generation.kind, key, count, start=start, device=device)
