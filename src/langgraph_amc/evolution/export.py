"""Tuned weights as ordinary files: a plain Hugging Face folder, or a LoRA adapter."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.layout import parameters_of
from langgraph_amc.evolution.weights import Weights

_WEIGHT_FILES = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".index.json")
_RUN_FILES = (".jsonl", ".sqlite", ".sqlite-wal", ".sqlite-shm", ".sqlite-journal")
_RUN_NAMES = ("result.json", "validations.json", "amc_evolution.json")
"""What runs leave in their folders: answers of the app's users may be in there."""


def export(
    weights: Weights,
    folder: str | Path,
    *,
    source: str | Path | None = None,
    dtype: torch.dtype | None = None,
    finish: Callable[[Path], None] | None = None,
    replace: bool = False,
) -> Path:
    """Write the model as it is now; a model with adapters is written as an adapter (``adapter_model.safetensors``).

    Parameters
    ----------
    folder: must not exist, or be empty; it appears whole or not at all. One process at a time writes there.
    source: the folder that the model came from; what is not weights there (tokenizer, chat template) is copied.
    dtype: ``torch.float32`` writes the float32 masters of a bfloat16 or float16 model, with nothing rounded away, by
        way of a copy of the model in host memory. Default: the model's own type, as it was served.
    finish: called with the folder before it appears under its name; what it writes there appears with it.
    replace: the folder may be there: it is kept until the new one is whole. A call that was killed in between leaves
        what `settle` puts right, which every call begins with.

    Raises
    ------
    ConfigurationError: the folder is not empty; another dtype than these.
    """
    folder = Path(folder)
    settle(folder)
    if not replace and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is there already: name a new folder for the tuned model")
    model: Any = weights.model
    own = next(model.parameters()).dtype
    if dtype not in (None, torch.float32, own):
        raise ConfigurationError(f"the tuned model can be written as {own} or torch.float32, not {dtype}")
    partial, former = _beside(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        (_in_float32(weights) if dtype not in (None, own) else model).save_pretrained(partial)
        if source is not None:
            _copy_rest(Path(source), partial)
        if finish is not None:
            finish(partial)
        if folder.exists():
            folder.rename(former)
        partial.rename(folder)
    finally:
        settle(folder)
    return folder


def settle(folder: Path) -> None:
    """Remove what an `export` that was killed left beside the folder; where it had moved the folder, put it back."""
    partial, former = _beside(folder)
    shutil.rmtree(partial, ignore_errors=True)
    if former.exists() and not folder.exists():
        former.rename(folder)
    shutil.rmtree(former, ignore_errors=True)


def _beside(folder: Path) -> tuple[Path, Path]:
    """Where a new folder is written, and where the one that it replaces goes."""
    return folder.with_name(f".{folder.name}.partial"), folder.with_name(f".{folder.name}.former")


def _in_float32(weights: Weights) -> Any:
    copied = copy.deepcopy(weights.model).to("cpu", torch.float32)
    parameters = parameters_of(copied, weights.layout.entries)
    with torch.no_grad():
        for entry in weights.layout.entries:
            entry.view(parameters[entry.parameter]).copy_(weights.master(entry))
    return copied


def _copy_rest(source: Path, folder: Path) -> None:
    """Copy what is of the model, but neither weights nor written by the model itself."""
    if not source.is_dir():
        raise ConfigurationError(f"source is the folder that the model was loaded from; {source} is none")
    for path in source.iterdir():
        of_run = path.name in _RUN_NAMES or path.name.startswith(".")
        of_model = not of_run and not path.name.endswith((*_WEIGHT_FILES, *_RUN_FILES))
        if of_model and path.is_file() and not (folder / path.name).exists():
            shutil.copy2(path, folder / path.name)
