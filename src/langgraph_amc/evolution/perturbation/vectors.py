"""Vectors (norm gains, biases) of each row's own: v + s sigma e, with a number per element.

A module finds the vectors of the rows under its parameter's name in its instance dictionary, which Python looks up
before torch's own: the parameter stays where and what it is. In types narrower than float32 the vectors are kept in
float32, so that perturbations below the precision of the parameter act.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import layer_norm

from langgraph_amc.evolution.directions import dense
from langgraph_amc.evolution.layout import Entry
from langgraph_amc.evolution.members import Generation
from langgraph_amc.evolution.noise import UNIT
from langgraph_amc.evolution.perturbation.rows import Rows
from langgraph_amc.evolution.perturbation.sites import Gain


class Vectors:
    """The vectors of a generation's members, side by side in one table, and those of the rows of the pass.

    Parameters
    ----------
    entries: each with its present value, or ``None`` for a bias, of which only the change is wanted.
    """

    def __init__(
        self, generation: Generation, entries: Sequence[tuple[Entry, torch.Tensor | None]], device: torch.device
    ) -> None:
        self.dtype = torch.float32
        for _, value in entries:
            if value is not None:
                self.dtype = torch.promote_types(self.dtype, value.dtype)
        self.sigma = generation.sigma
        self.places: dict[str, slice] = {}
        first = 0
        for entry, _ in entries:
            self.places[entry.name] = slice(first, first + entry.numel)
            first += entry.numel
        start = [torch.zeros(e.numel, device=device) if v is None else v for e, v in entries]
        self.start = torch.cat([one.to(self.dtype) for one in start])
        self.table = torch.stack(
            [
                torch.cat([dense(generation, pair, e, device=device) for e, _ in entries])
                for pair in range(generation.pairs)
            ]
        ).to(self.dtype)
        self.table.mul_(UNIT[generation.kind])

    def of(self, rows: Rows) -> torch.Tensor:
        """Of each row: shape (rows, all elements)."""
        return torch.addcmul(self.start, self.table[rows.pair], rows.sign.unsqueeze(1).to(self.dtype), value=self.sigma)


class GainRows:
    """Puts the vectors of the rows into a norm-like module."""

    def __init__(self, gain: Gain, vectors: Vectors) -> None:
        self.module = gain.module
        self.places = [(leaf, vectors.places[entry.name]) for leaf, entry in gain.vectors]
        self.between = (1,) * (gain.dims - 2)

    def put(self, values: torch.Tensor) -> None:
        """Let the module compute with these values (of `Vectors.of`)."""
        for leaf, place in self.places:
            one = values[:, place]
            self.module.__dict__[leaf] = one.view(one.shape[0], *self.between, one.shape[1])

    def clear(self) -> None:
        """Let the module compute with its parameters."""
        for leaf, _ in self.places:
            self.module.__dict__.pop(leaf, None)


def perturbed_gain(gain: Gain, original: Callable[..., Any]) -> Callable[..., Any] | None:
    """The forward function of a norm, where it is not its own: LayerNorm takes no vector per row, and types differ."""
    module = gain.module
    own = module.__dict__
    leaf, _ = gain.vectors[0]
    if type(module) is torch.nn.LayerNorm:

        def normalise(x: torch.Tensor) -> torch.Tensor:
            if leaf not in own:
                return original(x)
            weight, bias = module.weight, module.bias
            y = layer_norm(x.to(own[leaf].dtype), module.normalized_shape, None, None, module.eps)
            return (y * weight if bias is None else torch.addcmul(bias, y, weight)).to(x.dtype)

        return normalise
    if module.get_parameter(leaf).dtype in (torch.float32, torch.float64):
        return None

    def cast(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        y = original(x, *args, **kwargs)
        return y.to(x.dtype) if leaf in own else y

    return cast


def perturbed_bias(
    original: Callable[[torch.Tensor], torch.Tensor],
    change: Callable[[], torch.Tensor | None],
    places: list[tuple[int, slice]],
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The forward function of a linear layer with biases of the rows' own.

    ``change`` gives the rows' values, ``None`` if all are unperturbed; ``places``: first output, and where in them.
    """

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = original(x)
        values = change()
        if values is not None:
            for first, place in places:
                y.narrow(-1, first, place.stop - place.start).add_(values[:, place].unsqueeze(1))
        return y

    return forward
