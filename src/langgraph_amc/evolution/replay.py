"""From a history to weights: go on with a run, or make its tuned model again from the one it started from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from langgraph_amc.checks import check_path
from langgraph_amc.evolution.errors import HistoryError, WeightsError
from langgraph_amc.evolution.history import History, Log, Record, read
from langgraph_amc.evolution.layout import Scope, layout
from langgraph_amc.evolution.weights import Weights
from langgraph_amc.policy.loading import load_model

if TYPE_CHECKING:
    import torch

    from langgraph_amc.evolution.asktell import State, Update

Verify = Literal["last", "every"]


def resume(log: Log, weights: Weights, *, verify: Verify = "last") -> State:
    """Bring freshly loaded weights to where a history ends, and say where the run goes on.

    Parameters
    ----------
    verify: compare hashes after the last generation, or after every one (one pass over the weights each).

    Raises
    ------
    HistoryError: the weights are not those that the history started from.
    WeightsError: a hash differs: the history or the replay is not what it was.
    """
    if weights.layout.fingerprint() != log.header.layout:
        raise HistoryError("the model's parameters are not those of the history: load the model that it started from")
    found = weights.hash()
    if found != log.header.weights:
        raise HistoryError(
            f"the model's weights (hash {found}) are not those that the history started from "
            f"({log.header.weights}): load the same files, in the same type of number"
        )
    for record in log.records:
        weights.apply(record.update)
        if verify == "every" or record is log.records[-1]:
            _check(weights, record)
    return log.state


def take(history: History, weights: Weights, update: Update, state: State, rewards: Any, **notes: Any) -> Record:
    """Finish a generation: apply its update, hash the weights, write the record. Returns what was written.

    ``update`` and ``state`` are what ``tell`` gave; ``notes`` are plain data kept with them.
    """
    weights.apply(update)
    record = Record(update, np.asarray(rewards, np.float64), state, weights.hash(), notes)
    history.append(record)
    return record


def replay(history: str | Path, model: str | Path, *, verify: Verify = "last", dtype: Any = "auto") -> Weights:
    """Load the model that a history started from and apply all its updates.

    Parameters
    ----------
    history: the file, or the folder of a run. model: folder (or name) of the model that the run started from; a peft
        adapter's folder for a run of scope ``"lora"``. dtype: as for ``from_pretrained``; must be what the run was
        loaded with.

    Raises HistoryError and WeightsError as ``resume``, ConfigurationError where the model cannot be loaded.
    """
    path = check_path("the history", history)
    log = read(path / "history.jsonl" if path.is_dir() else path)
    loaded = load(model, dtype=dtype)
    anchor = "copy" if log.header.strategy.decay else None
    weights = Weights(loaded, layout(loaded, cast(Scope, log.header.scope)), anchor=anchor)
    resume(log, weights, verify=verify)
    return weights


def load(folder: str | Path, *, dtype: Any = "auto") -> torch.nn.Module:
    """A causal language model from its folder, or with an adapter if the folder is one of peft's; safetensors only.

    Raises ConfigurationError where there is none, or not all of it.
    """
    return cast("torch.nn.Module", load_model(check_path("the model", folder), dtype=dtype).eval())


def _check(weights: Weights, record: Record) -> None:
    found = weights.hash()
    if found != record.weights:
        raise WeightsError(
            f"after generation {record.update.generation.number} the weights' hash is {found}, not {record.weights} "
            "as in the history: the file was edited, or something else changed the weights"
        )
