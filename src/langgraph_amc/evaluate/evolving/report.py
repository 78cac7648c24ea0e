"""What a run of evolution has come to: its learning curve, its validations, and base against tuned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evaluate.statistics import Estimate, estimate, paired
from langgraph_amc.evolution.errors import HistoryError
from langgraph_amc.evolution.fields import is_whole, items
from langgraph_amc.evolution.history import Record
from langgraph_amc.evolution.loop import Column

Floats = NDArray[np.float64]
_RESAMPLES = 1000
"""For intervals that are shown on the way."""


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """One generation.

    Attributes
    ----------
    reward: mean over tasks and members. best: of the best member over its tasks, flattered by having been chosen.
    step: root mean square of the step per weight. signal_to_noise: of the update; ``None`` where one task only was
        run, or nothing differed.
    known: share of the population's rollouts that have a reward.
    """

    number: int
    reward: Estimate
    best: float
    sigma: float
    step: float
    signal_to_noise: float | None
    known: float
    weights: str


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """The weights after ``done`` generations on the validation tasks."""

    done: int
    reward: Estimate


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Base and tuned weights on the same held-out tasks, with the same sampling noise; 95 % intervals over tasks."""

    tasks: int
    repeats: int
    base: Estimate
    tuned: Estimate
    difference: Estimate


@dataclass(frozen=True, slots=True)
class Evolution:
    """A finished run.

    Attributes
    ----------
    model: folder of the tuned model, ``None`` where it was not written. weights: its hash.
    best: after how many generations the weights were best on the validation tasks; the last without such tasks.
    stopped: why there was no further generation. held_out: ``None`` without held-out tasks.
    moved: whether the tuned weights are others than the base's. remarks: what a reader has to know beside the numbers.
    rollouts: run by this call, of which ``failed`` failed, ``unjudged`` got no reward, and ``broken_off`` were ended by
    a limit. found: further ones, run by earlier calls and kept. first_failure, first_unjudged: why.
    """

    model: str | None
    weights: str
    generations: tuple[GenerationReport, ...]
    validations: tuple[ValidationReport, ...]
    best: int
    stopped: str
    held_out: HeldOut | None
    moved: bool
    remarks: tuple[str, ...]
    rollouts: int
    found: int
    failed: int
    unjudged: int
    broken_off: int
    first_failure: str | None
    first_unjudged: str | None
    tokens: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``; NaN and infinities are ``None``."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        return plain

    def to_text(self) -> str:
        """Lines for a terminal."""
        lines = [f"{len(self.generations)} generations; {self.stopped}"]
        if self.validations:
            measured = ", ".join(f"{v.done}: {v.reward.mean:.3f}" for v in self.validations)
            lines.append(f"validation after generation … {measured}; best after {self.best}")
        if self.held_out is not None:
            h = self.held_out
            d = h.difference
            lines += [
                f"held out, {h.tasks} tasks × {h.repeats}, mean reward with 95 % interval:",
                f"  base   {h.base}",
                f"  tuned  {h.tuned}",
                f"  tuned − base  {d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]",
            ]
        lines.append(
            f"{self.rollouts:,} rollouts ({self.failed:,} failed, {self.unjudged:,} without a reward, "
            f"{self.broken_off:,} broken off), {self.tokens:,} tokens, {self.seconds:,.0f} seconds"
        )
        if self.found:
            lines.append(f"{self.found:,} further rollouts are kept from earlier calls")
        if self.first_failure is not None:
            lines.append(f"first failure: {self.first_failure}")
        if self.first_unjudged is not None:
            lines.append(f"first missing reward: {self.first_unjudged}")
        lines += self.remarks
        if self.model is not None:
            lines.append(f"the {'tuned model' if self.moved else 'base, unchanged,'} is in {self.model}")
        return "\n".join(lines)


def generation_report(record: Record, columns: Sequence[Column]) -> GenerationReport:
    """What is told of a generation."""
    update, rewards = record.update, record.rewards
    known = ~np.isnan(rewards)
    rows = np.where(known, rewards, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    by_task = rewards.T.reshape(len({c.task for c in columns}), -1)
    best = float(rows[known.any(axis=1)].max()) if known.any() else float("nan")
    return GenerationReport(
        update.generation.number,
        estimate(by_task, resamples=_RESAMPLES),
        best,
        update.generation.sigma,
        update.rms,
        update.signal_to_noise,
        float(known.mean()),
        record.weights,
    )


def columns_of(record: Record) -> tuple[Column, ...]:
    """The tasks and repeats that a stored generation ran; raises HistoryError where its notes do not say."""
    try:
        tasks = items(record.notes, "tasks", lambda task: isinstance(task, str), "ids of tasks")
        repeats = items(record.notes, "repeats", is_whole, "integers")
        if not len(tasks) == len(repeats) == record.rewards.shape[1]:
            raise HistoryError(f"{len(tasks)} tasks and {len(repeats)} repeats for {record.rewards.shape[1]} columns")
    except HistoryError as error:
        number = record.update.generation.number
        raise HistoryError(f"the notes of generation {number} (line {number + 2} of the history): {error}") from error
    return tuple(map(Column, tasks, repeats))


def held_out_report(base: Floats, tuned: Floats) -> HeldOut:
    """Base against tuned, [tasks, repeats] each."""
    tasks, repeats = base.shape
    return HeldOut(tasks, repeats, estimate(base), estimate(tuned), paired(tuned, base))
