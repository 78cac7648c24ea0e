"""A model and its tokenizer from their files: all of its tensors, from safetensors only, an adapter with its base."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from langgraph_amc.errors import AMCError, ConfigurationError

_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_PASSED = (AMCError, ImportError, MemoryError, torch.OutOfMemoryError)
"""What is no fault of the files."""


def serving_dtype(device: torch.device) -> torch.dtype | Literal["auto"]:
    """The type of number that a model is served in: its files' own, but on a CPU, where bfloat16 is slow, float32."""
    return torch.float32 if device.type == "cpu" else "auto"


def load_model(path: str | Path, *, dtype: Any) -> Any:
    """A causal language model from a folder or hub id; where the folder is one of peft's, with its adapter.

    Raises ConfigurationError where there is none, or the files lack some of it.
    """
    folder = Path(path).expanduser()
    return _adapted(folder, dtype) if _is_adapter(folder) else _plain(path, dtype)


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer of a model, or of an adapter's base where the adapter has none.

    Raises ConfigurationError where there is none.
    """
    from transformers import AutoTokenizer

    folder = Path(path).expanduser()
    source, options = folder if folder.is_dir() else path, dict[str, Any]()
    if _is_adapter(folder) and not _has_tokenizer(folder):
        config = _adapter_config(folder)
        source, options = config.base_model_name_or_path, {"revision": config.revision}
    with _named(source, "tokenizer"):
        return AutoTokenizer.from_pretrained(str(source), **options)


@contextmanager
def without_bars() -> Iterator[None]:
    """Load and save models without transformers' own progress bars."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _plain(path: str | Path, dtype: Any, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    folder = Path(path).expanduser()
    with _named(path), without_bars():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(folder if folder.is_dir() else path),
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are told below, by name
            output_loading_info=True,
            **options,
        )
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        raise ConfigurationError(
            f"{str(path)!r} is incomplete: {len(missing)} tensors that its config.json speaks of are not in its "
            f"*.safetensors ({_first(missing)})"
        )
    if other := sorted(f"{name} is {list(its)}, not {list(said)}" for name, its, said in found["mismatched_keys"]):
        raise ConfigurationError(
            f"{str(path)!r}: {len(other)} tensors in its *.safetensors are not of the shapes that its config.json "
            f"tells ({_first(other)})"
        )
    return model


def _adapted(folder: Path, dtype: Any) -> Any:
    """The base that an adapter names, with the adapter, which can be trained."""
    from peft import PeftModelForCausalLM

    if not (folder / "adapter_model.safetensors").is_file():
        raise ConfigurationError(f"{folder} has no adapter_model.safetensors: save the adapter as safetensors")
    config = _adapter_config(folder)
    try:
        base = _plain(config.base_model_name_or_path, dtype, revision=config.revision)
    except ConfigurationError as error:
        raise ConfigurationError(f"the base model of the adapter {str(folder)!r}: {error}") from error
    if _has_tokenizer(folder):
        size = len(load_tokenizer(folder))
        if size > base.get_input_embeddings().weight.shape[0]:
            base.resize_token_embeddings(size)
    with _named(folder, "adapter"), warnings.catch_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys")
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return PeftModelForCausalLM.from_pretrained(base, str(folder), is_trainable=True)


def _is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file()


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer_config.json").is_file()


def _adapter_config(folder: Path) -> Any:
    from peft import PeftConfig

    with _named(folder, "adapter"):
        config = PeftConfig.from_pretrained(str(folder))
    if config.task_type not in (None, "CAUSAL_LM") or not config.base_model_name_or_path:
        raise ConfigurationError(
            f"adapter_config.json in {folder} names no causal language model as its base: task_type is "
            f"{config.task_type!r}, base_model_name_or_path {config.base_model_name_or_path!r}"
        )
    return config


@contextmanager
def _named(path: str | Path, what: str = "causal language model") -> Iterator[None]:
    """Garbled files make transformers raise almost anything: here it becomes an error that names the path."""
    try:
        yield
    except _PASSED:
        raise
    except Exception as error:
        raise _unloadable(path, what, error) from error


def _unloadable(path: str | Path, what: str, error: Exception) -> ConfigurationError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(path).expanduser().exists():
        said = f"no {what} can be loaded from {str(path)!r} ({reason})"
    else:
        hub = f", and as a hub id ({reason})" if _HUB_ID.fullmatch(str(path)) else ""
        said = f"there is no folder {str(path)!r}: no {what} can be loaded from there{hub}"
    return ConfigurationError(f"{said}: give a folder with config.json, *.safetensors and tokenizer.json, or a hub id")


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
