"""What a run leaves: one line of JSON per step and measurement, and its result."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.statistics import Estimate

STEPS, MODEL = "steps.jsonl", "model"
"""Names in a run's folder."""

Rewards = NDArray[np.float64]
"""[tasks, repeats]; NaN where missing."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One batch of rollouts and what was learned from it.

    Attributes
    ----------
    step: from 1. trajectories: run up to here, whatever came of them, without those of measurements.
    reward: mean of the ``judged`` ones of this step. failed, unjudged: runs of this step that are left out.
    unequal: groups whose rewards differ; the others teach nothing.
    sequences: that the judged trajectories are (`sequences`). sampled_tokens: of them, all of which may be trained on.
    prompt_tokens, answer_tokens: of all model calls up to here, failed runs included.
    loss, entropy, clipped, kl, gradient_norm: TRL's, mean over the step's optimiser steps; entropy and the clipped part
        are over the tokens of trajectories with an advantage, and ``None`` where there was none.
    rollout_seconds, training_seconds: of this step.
    """

    step: int
    trajectories: int
    reward: float
    judged: int
    failed: int
    unjudged: int
    unequal: int
    sequences: int
    sampled_tokens: int
    prompt_tokens: int
    answer_tokens: int
    learning_rate: float
    loss: float | None
    entropy: float | None
    clipped: float | None
    kl: float | None
    gradient_norm: float | None
    rollout_seconds: float
    training_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """Held-out tasks with the weights after ``step`` steps, always with the same random numbers.

    Attributes
    ----------
    trajectories: trained on up to here. rewards: [tasks, repeats], NaN where missing. estimate: their mean with its
    95 % interval.
    """

    step: int
    trajectories: int
    rewards: Rewards
    estimate: Estimate


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """The result of a run.

    Attributes
    ----------
    model: folder of the tuned model. weights: their hash (`evolution.weights`). trajectories: run for training.
    gain: held-out tasks, last measurement minus first, paired; ``None`` where none were given.
    first_failure: why the first failed run failed.
    """

    model: str
    weights: str
    steps: tuple[StepRecord, ...]
    measurements: tuple[Measurement, ...]
    trajectories: int
    gain: Estimate | None
    first_failure: str | None
    seconds: float


class Ledger:
    """Appends records to a file as they come.

    Raises ConfigurationError where the folder holds a run already: a run of policy gradients cannot be gone on with.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = (folder / STEPS).open("x", encoding="utf-8")
        except FileExistsError as error:
            raise ConfigurationError(f"{folder} holds a run already, or is a file: give another folder") from error
        except OSError as error:
            raise ConfigurationError(f"{folder} cannot be written ({error.strerror}): give another folder") from error

    def note(self, record: str, about: Mapping[str, Any]) -> None:
        """The first line, what is run, and the last, what it has come to."""
        self._write({"record": record, **about})

    def add(self, record: StepRecord | Measurement) -> None:
        """One more record."""
        if isinstance(record, StepRecord):
            self._write({"record": "step", **asdict(record)})
        else:
            about = {"step": record.step, "trajectories": record.trajectories, **asdict(record.estimate)}
            self._write({"record": "measurement", **about, "rewards": record.rewards.tolist()})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: dict[str, Any]) -> None:
        self._file.write(json.dumps(_plain(data), allow_nan=False) + "\n")
        self._file.flush()


def _plain(value: Any) -> Any:
    """The value with ``null`` for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
