"""The tuned model as a folder of its own, made again from the base and the history, and checked by its hash.

It is written in the type of number that was served: on a CPU that is float32, whatever the base's files have.

A mark in the folder says which run's and which generation's it is, and what its files were. It is written before the
folder appears under its name, so there is never one without the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.export import export, settle
from langgraph_amc.evolution.history import Header, Log
from langgraph_amc.evolution.layout import Scope, layout
from langgraph_amc.evolution.replay import load, resume
from langgraph_amc.evolution.weights import Weights
from langgraph_amc.policy.forward import pick_device
from langgraph_amc.policy.loading import serving_dtype, without_bars

MARK = "amc_evolution.json"


def export_best(log: Log, best: int, model: str, folder: Path, dtype: str | None = None) -> Path:
    """Write the weights after ``best`` generations; a folder that this function wrote for the same run is replaced.

    ``dtype``: the type of number that was served, like ``float32``; by default what this machine would serve.

    Raises WeightsError where the replay does not give the weights of the history, ConfigurationError for a folder
    that is another's, or was changed since it was written.
    """
    with _alone(folder):
        _write(Log(log.header, log.records[:best]), model, folder, dtype)
    return folder


def _write(cut: Log, model: str, folder: Path, dtype: str | None) -> None:
    """Make the weights at the end of a history, and write them where they are not there already."""
    mark = check_place(folder, cut.header)
    if mark is not None:
        if mark.get("weights") == cut.weights:
            return
        if more := sorted(_files(folder).keys() - mark["files"].keys()):
            raise ConfigurationError(f"{folder} is to be written anew, and {more[0]} in it is not ours: move it away")
    about = {"base": model, "run": run_of(cut.header), "generations": len(cut.records), "weights": cut.weights}

    def finish(written: Path) -> None:
        (written / MARK).write_text(json.dumps(about | {"files": _files(written)}, indent=1), encoding="utf-8")

    with without_bars():
        loaded = load(model, dtype=serving_dtype(pick_device()) if dtype is None else getattr(torch, dtype))
        anchor = "copy" if cut.header.strategy.decay else None
        weights = Weights(loaded, layout(loaded, cast(Scope, cut.header.scope)), anchor=anchor)
        resume(cut, weights)
        source = model if Path(model).is_dir() else None
        export(weights, folder, source=source, finish=finish, replace=mark is not None)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for other processes that export to the same place, on systems that have such locks."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_place(folder: Path, header: Header) -> dict[str, Any] | None:
    """The mark of an earlier export of this very run; ``None`` where nothing is there.

    Puts right an export that was cut short. Raises ConfigurationError where the folder is another's, or was changed.
    """
    settle(folder)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    mark = _mark(folder / MARK)
    if mark is None or mark.get("run") != run_of(header):
        raise ConfigurationError(
            f"{folder} is where the tuned model goes, and it holds something that this run did not write: move it away"
        )
    found, told = _files(folder), mark.get("files")
    if not isinstance(told, dict) or any(found.get(name) != digest for name, digest in told.items()):
        raise ConfigurationError(
            f"{folder} is no longer as this run wrote it ({MARK} in it has the digest of every file): move it away or "
            "delete it, and run the command again"
        )
    return mark


def run_of(header: Header) -> str:
    """A digest of what makes a run: where it starts, what it perturbs, and how."""
    said = json.dumps([header.strategy.to_json(), header.scope, header.layout, header.weights], sort_keys=True)
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


def _mark(path: Path) -> dict[str, Any] | None:
    """What a mark says; ``None`` where there is none that can be read."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def _files(folder: Path) -> dict[str, str]:
    """Digest of every file but the mark, by name."""
    return {
        path.relative_to(folder).as_posix(): _digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MARK
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
