"""Float32 master weights behind a model's own, for the price of the bits that the model's type lacks.

float32: the parameter is its own master, nothing is kept. bfloat16: its 16 bits are the upper half of a float32, the
lower half is kept beside it (2 bytes per weight). float16 is no half of a float32: the master itself is kept (4 bytes).
The model holds the nearest number to the master, where bfloat16 rounds ties away from zero, which can be undone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from langgraph_amc.errors import ConfigurationError

EXTRA_BYTES = {torch.float32: 0, torch.bfloat16: 2, torch.float16: 4}
"""Bytes kept per changed weight beside the model, by the model's type."""


class Master:
    """Master of one logical parameter; ``view`` is the model's own memory, [rows, ...] (not always contiguous)."""

    def __init__(self, view: torch.Tensor) -> None:
        if view.dtype not in EXTRA_BYTES:
            raise ConfigurationError(
                f"weights of type {view.dtype} cannot be tuned: load the model in float32, bfloat16 or float16"
            )
        self._view = view
        self._kept: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return self._view.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self._view.dtype

    @property
    def device(self) -> torch.device:
        return self._view.device

    def read(self, first: int, last: int) -> torch.Tensor:
        """Rows of the master as a new contiguous float32 tensor."""
        served = self._view[first:last].contiguous()
        if self._kept is None or self.dtype == torch.float32:
            return served.to(torch.float32, copy=True)
        kept = self._kept[first:last]
        if self.dtype == torch.float16:
            return kept.clone()
        lower = kept.to(torch.int32).bitwise_and_(0xFFFF)
        upper = served.view(torch.int16).to(torch.int32) - (lower >= 0x8000).to(torch.int32)
        return (upper << 16).bitwise_or_(lower).view(torch.float32)

    def write(self, first: int, last: int, values: torch.Tensor) -> bool:
        """Set rows of the master and of the model; whether the model's own are all finite."""
        served, kept = _SPLIT[self.dtype](values)
        self._view[first:last].copy_(served)
        if kept is not None:
            if self._kept is None:
                self._kept = self._first_kept(kept.dtype)
            self._kept[first:last].copy_(kept)
        return bool(served.isfinite().all())

    def _first_kept(self, dtype: torch.dtype) -> torch.Tensor:
        """What is kept of weights that have never changed."""
        if dtype == torch.float32:
            return self._view.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        return torch.zeros(self._view.shape, dtype=dtype, device=self.device)


def _split_float32(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    return master, None


def _split_bfloat16(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    bits = master.view(torch.int32)
    upper = ((bits >> 16) + ((bits >> 15) & 1)).to(torch.int16)
    lower = ((bits << 16) >> 16).to(torch.int16)
    return upper.view(torch.bfloat16), lower


def _split_float16(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    return master.to(torch.float16), master


_SPLIT: dict[torch.dtype, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]] = {
    torch.float32: _split_float32,
    torch.bfloat16: _split_bfloat16,
    torch.float16: _split_float16,
}
