"""Rollouts that have ended: their rewards, their storing, and how many there are of which kind."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from langgraph_amc.evaluate.runner import NoRewardError, Outcome, paid
from langgraph_amc.trajectories.store import Record, TrajectoryStore
from langgraph_amc.trajectories.types import Trajectory, Usage

TOGETHER = 1.0
"""Seconds of rollouts that are stored in one transaction: short ones take no longer than their storing, one by one."""


@dataclass(slots=True)
class Tally:
    """What the rollouts of this call have brought; ``found``: those that earlier calls had stored."""

    run: int = 0
    found: int = 0
    failed: int = 0
    missing: int = 0
    broken_off: int = 0
    usage: Usage = field(default_factory=Usage)
    first_failure: str | None = None
    first_missing: str | None = None

    def note(self, outcome: Outcome) -> None:
        """Count a rollout of one particle."""
        [trajectory] = outcome.trajectories
        self.usage = self.usage + outcome.result.usage
        self.run += 1
        if trajectory.status == "failed":
            self.failed += 1
            self.first_failure = self.first_failure or trajectory.error
        if outcome.missing:
            self.missing += 1
            self.first_missing = self.first_missing or outcome.missing[0]
        self.broken_off += not paid(trajectory)


class Ended:
    """Rollouts that have ended; they are stored together, and while ``held`` not at all."""

    def __init__(self, store: TrajectoryStore, *, held: bool) -> None:
        self._store = store
        self._held = held
        self._records: list[Record] = []
        self._stored = time.monotonic()

    def add(self, record: Record) -> None:
        self._records.append(record)
        if time.monotonic() - self._stored >= TOGETHER:
            self.flush()

    def release(self) -> None:
        """They can be stored, and those that follow."""
        self._held = False

    def flush(self) -> None:
        if self._held:
            return
        records, self._records = self._records, []
        self._store.add_records(lambda: records, on_conflict="skip")
        self._stored = time.monotonic()


def all_broken_off(count: int) -> NoRewardError:
    """What to say where none of so many rollouts came to an end, and it was not the budget of the whole run."""
    return NoRewardError(
        f"each of {count} rollouts was broken off by the limit that every rollout has: raise --rollout-seconds or "
        "leave it out (in Python: budget in options={…}, which is not the budget of the whole run)"
    )


def reward_of(trajectory: Trajectory) -> float:
    """The reward of a stored rollout; NaN for one that failed or could not be judged."""
    if trajectory.status == "failed" or trajectory.outcome is None:
        return math.nan
    return trajectory.outcome
