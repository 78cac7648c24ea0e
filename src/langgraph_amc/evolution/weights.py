"""Updates of a model's weights that are the same bits on every machine, framework, type of number and order.

S = sum_p q_p A_p B_p^T (or q_p times elementwise noise) is a sum of integers below 2^53, exact in float64 whatever the
order. Then W = W + float32(S * scale), as one multiplication in float64, one rounding and one float32 addition to the
master weights (``masters.py``); decay adds -float32(decay) * (W - W_start) to the step first, operation by operation.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.anchors import Anchor, Copied, Stored
from langgraph_amc.evolution.asktell import Update
from langgraph_amc.evolution.directions import dense, factor, is_low_rank, unit_of
from langgraph_amc.evolution.errors import WeightsError
from langgraph_amc.evolution.layout import Entry, Layout, parameters_of
from langgraph_amc.evolution.masters import EXTRA_BYTES, Master
from langgraph_amc.evolution.noise import PEAK

_CHUNK = 1 << 18  # elements worked on at once: 2 MiB in float64


class Weights:
    """The perturbed weights of a model, as they change.

    Parameters
    ----------
    model: its parameters are changed in place by ``apply``, and by nothing else.
    layout: what is perturbed (``layout.layout``).
    anchor: where the starting weights come from if the strategy decays: ``"copy"`` (host memory), or the model's
        folder. Both are taken here, so the model must still be as it was loaded.

    Raises
    ------
    ConfigurationError: parameters of a type that cannot be tuned.
    """

    def __init__(
        self, model: torch.nn.Module, layout: Layout, *, anchor: Literal["copy"] | str | Path | None = None
    ) -> None:
        parameters = parameters_of(model, layout.entries)
        self.model = model
        self.layout = layout
        self._masters = {e.name: Master(e.view(parameters[e.parameter])) for e in layout.entries}
        self._anchor: Anchor | None = None
        if anchor is not None:
            self._anchor = Copied(model, layout) if anchor == "copy" else Stored(model, layout, anchor)

    @property
    def extra_bytes(self) -> int:
        """Memory that updates take beside the model's own, once every weight has changed; without the anchor."""
        return sum(e.numel * EXTRA_BYTES[self._masters[e.name].dtype] for e in self.layout.entries)

    def master(self, entry: Entry) -> torch.Tensor:
        """A logical parameter in float32, as exact as it is known (a copy)."""
        return self._masters[entry.name].read(0, entry.shape[0])

    def apply(self, update: Update) -> None:
        """Take one step. Nothing may be served from the model meanwhile.

        Raises
        ------
        ConfigurationError: decay without an anchor; more or larger coefficients than are summed exactly.
        WeightsError: a weight left the range of its type; the model is then to be loaded anew.
        """
        if update.is_zero:
            return
        if update.decay and self._anchor is None:
            raise ConfigurationError(
                "decay goes back to the starting weights: give Weights(..., anchor='copy') or anchor=<model folder>"
            )
        _check_exact(update)
        with torch.no_grad():
            for entry in self.layout.entries:
                self._step(entry, update)

    def hash(self) -> str:
        """Hex digest of the float32 masters, by name and in the layout's order: equal on every machine and type."""
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            digests = pool.map(self._digest, self.layout.entries)
            whole = hashlib.blake2b(self.layout.fingerprint().encode(), digest_size=16)
            for digest in digests:
                whole.update(digest)
        return whole.hexdigest()

    def _step(self, entry: Entry, update: Update) -> None:
        master = self._masters[entry.name]
        scale = update.scale * unit_of(entry, update.generation.kind, update.generation.rank)
        summed = _Sum(entry, update, master.device)
        for first, last in _chunks(entry):
            weights = master.read(first, last)
            step = (summed.rows(first, last) * scale).to(torch.float32).view_as(weights)
            if update.decay and self._anchor is not None:
                away = weights - self._anchor.rows(entry, first, last).to(weights.device)
                step = step - away * torch.tensor(update.decay, dtype=torch.float32, device=weights.device)
            if not master.write(first, last, weights + step):
                raise WeightsError(
                    f"generation {update.generation.number} drove {entry.name} out of the range of {master.dtype}: "
                    "load the model again, and use a smaller alpha or a trust region"
                )

    def _digest(self, entry: Entry) -> bytes:
        found = hashlib.blake2b(entry.name.encode(), digest_size=16)
        for first, last in _chunks(entry):
            found.update(self._masters[entry.name].read(first, last).cpu().numpy().data)
        return found.digest()


class _Sum:
    """S of one logical parameter, rows at a time, as float64 that holds integers."""

    def __init__(self, entry: Entry, update: Update, device: torch.device) -> None:
        self._entry, self._generation, self._device = entry, update.generation, device
        self._used = [(pair, q) for pair, q in enumerate(update.coefficients) if q]
        self._low_rank = is_low_rank(entry, update.generation.rank)
        if self._low_rank and self._used:
            self._b = torch.cat([q * self._factor(pair, "B", 0, entry.shape[1]) for pair, q in self._used], dim=1).T

    def rows(self, first: int, last: int) -> torch.Tensor:
        width = self._entry.numel // self._entry.shape[0]
        if not self._used:
            return torch.zeros(last - first, width, dtype=torch.float64, device=self._device)
        if self._low_rank:
            return torch.cat([self._factor(pair, "A", first, last) for pair, _ in self._used], dim=1) @ self._b
        total = torch.zeros((last - first) * width, dtype=torch.float64, device=self._device)
        for pair, q in self._used:
            noise = dense(
                self._generation, pair, self._entry, start=first * width, count=len(total), device=self._device
            )
            total += noise.to(torch.float64) * q
        return total

    def _factor(self, pair: int, side: Literal["A", "B"], first: int, last: int) -> torch.Tensor:
        found = factor(self._generation, pair, self._entry, side, rows=(first, last), device=self._device)
        return found.to(torch.float64)


def _chunks(entry: Entry) -> list[tuple[int, int]]:
    """Ranges of rows of about _CHUNK elements."""
    rows = max(1, _CHUNK * entry.shape[0] // entry.numel)
    return [(first, min(first + rows, entry.shape[0])) for first in range(0, entry.shape[0], rows)]


def _check_exact(update: Update) -> None:
    rank, peak = update.generation.rank or 1, PEAK[update.generation.kind]
    if sum(map(abs, update.coefficients)) * rank * peak**2 >= 1 << 53:
        raise ConfigurationError("the population times the rank is too large to sum exactly: lower one of them")
