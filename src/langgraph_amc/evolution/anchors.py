"""Where the starting weights are found again, towards which anchored weight decay goes (arXiv 2605.30148)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.layout import Entry, Layout, LayoutMismatchError, parameters_of


class Anchor(Protocol):
    """The starting weights, rows at a time."""

    def rows(self, entry: Entry, first: int, last: int) -> torch.Tensor:
        """Rows of a logical parameter as it was at the start, in float32 on the CPU."""
        ...


class Copied:
    """A copy in host memory: as many bytes as the perturbed weights have in the model."""

    def __init__(self, model: torch.nn.Module, layout: Layout) -> None:
        parameters = parameters_of(model, layout.entries)
        self._copies = {name: p.detach().to("cpu", copy=True) for name, p in parameters.items()}

    def rows(self, entry: Entry, first: int, last: int) -> torch.Tensor:
        return entry.view(self._copies[entry.parameter])[first:last].to(torch.float32)


class Stored:
    """The safetensors files of the model's folder, mapped into memory: read again at every update, nothing is kept.

    Each generation with decay reads the perturbed weights once, from the file cache or the disk.

    Raises
    ------
    ConfigurationError: the folder has no safetensors files.
    LayoutMismatchError: a parameter is not in them, or differs from the model's: the model must be as it was loaded.
    """

    def __init__(self, model: torch.nn.Module, layout: Layout, folder: str | Path) -> None:
        self._files = _tensors(Path(folder))
        parameters = parameters_of(model, layout.entries)
        self._dtypes = {name: p.dtype for name, p in parameters.items()}
        self._keys = {e.parameter: _key(e, self._files, Path(folder)) for e in layout.entries}
        for name, parameter in parameters.items():
            stored = self._files[self._keys[name]].get_tensor(self._keys[name])
            if not torch.equal(stored.to(parameter.dtype), parameter.detach().cpu()):
                raise LayoutMismatchError(
                    f"{name} is not as in {folder}: give the weights' folder before the first update, or anchor='copy'"
                )

    def rows(self, entry: Entry, first: int, last: int) -> torch.Tensor:
        key = self._keys[entry.parameter]
        part = self._files[key].get_slice(key)
        low, high = entry.first + first, entry.first + last
        rows: torch.Tensor = part[:, low:high].T if entry.transposed else part[low:high]
        return rows.to(self._dtypes[entry.parameter]).to(torch.float32)


def _tensors(folder: Path) -> dict[str, Any]:
    """The open file that holds each tensor of a folder."""
    from safetensors import safe_open

    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ConfigurationError(f"{folder} has no safetensors files: name the model's folder, or use anchor='copy'")
    found: dict[str, Any] = {}
    for path in paths:
        file = safe_open(path, framework="pt")
        found |= dict.fromkeys(file.keys(), file)
    return found


def _key(entry: Entry, files: Mapping[str, Any], folder: Path) -> str:
    """The name under which a folder holds a parameter: its own, a tied one's, without adapter or outer module."""
    parts = entry.parameter.split(".")
    inner = ".".join(parts[1:])
    for name in (entry.parameter, *entry.tied_to, entry.name, inner):
        if name in files:
            return name
    raise LayoutMismatchError(f"{folder} holds no tensor {entry.parameter!r}: use anchor='copy'")
