"""One engine per model path and device in this process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.forward import pick_device

_engines: dict[tuple[str, str], BatchEngine] = {}
_lock = threading.Lock()
UNLOADABLE = (OSError, ValueError, KeyError)
"""What transformers raises for a path that is no model."""


def get_engine(path: str | Path, *, device: str | None = None, **options: Any) -> BatchEngine:
    """The engine that serves this path, loaded on first use; options count then only.

    Parameters
    ----------
    path: a Hugging Face directory or hub id.
    device: where to run; by default CUDA, MPS or CPU, whichever is there first.
    options: see `BatchEngine`.
    """
    key = _key(path, device)
    with _lock:
        engine = _engines.get(key)
        if engine is None or engine.closed:
            engine = _engines[key] = _load(*key, **options)
        return engine


def put_engine(path: str | Path, engine: BatchEngine, *, device: str | None = None) -> None:
    """Let an engine that was made elsewhere answer the calls of this path; the one that did is closed."""
    with _lock:
        before, _engines[_key(path, device)] = _engines.get(_key(path, device)), engine
    if before is not None and before is not engine:
        before.close()


def _load(path: str, device: str, **options: Any) -> BatchEngine:
    try:
        return BatchEngine.from_path(path, device=device, **options)
    except UNLOADABLE as error:
        raise unloadable(path, error) from error


def unloadable(path: str | Path, error: Exception) -> ConfigurationError:
    """What to tell of a path that no model can be loaded from."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ConfigurationError(
        f"no causal language model can be loaded from {str(path)!r} ({reason}): give a folder with config.json, "
        "*.safetensors and tokenizer.json, or a hub id"
    )


def loaded_engine(path: str | Path, *, device: str | None = None) -> BatchEngine | None:
    """The engine that serves this path if it is loaded already."""
    engine = _engines.get(_key(path, device))
    return None if engine is None or engine.closed else engine


def _key(path: str | Path, device: str | None) -> tuple[str, str]:
    local = Path(path).expanduser()
    return str(local.resolve()) if local.exists() else str(path), str(pick_device(device))
