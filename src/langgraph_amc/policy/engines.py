"""One engine per model path and device in this process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.forward import pick_device

_engines: dict[tuple[str, str], BatchEngine] = {}
_lock = threading.Lock()


def get_engine(path: str | Path, *, device: str | None = None, **options: Any) -> BatchEngine:
    """The engine that serves this path, loaded on first use; options count then only.

    Parameters
    ----------
    path: a Hugging Face directory or hub id.
    device: where to run; by default CUDA, MPS or CPU, whichever is there first.
    options: see `BatchEngine`.

    Raises ConfigurationError where no model can be loaded from there.
    """
    key = _key(path, device)
    with _lock:
        engine = _engines.get(key)
        if engine is None or engine.closed:
            engine = _engines[key] = BatchEngine.from_path(key[0], device=key[1], **options)
        return engine


def loaded_engine(path: str | Path, *, device: str | None = None) -> BatchEngine | None:
    """The engine that serves this path if it is loaded already."""
    engine = _engines.get(_key(path, device))
    return None if engine is None or engine.closed else engine


def _key(path: str | Path, device: str | None) -> tuple[str, str]:
    local = Path(path).expanduser()
    return str(local.resolve()) if local.exists() else str(path), str(pick_device(device))
