"""The runs an advice rests on: independent ones with a known return, and what their transcripts tell."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import AMCError
from langgraph_amc.trajectories.types import Trajectory

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class PilotError(AMCError, ValueError):
    """Runs from which nothing can be advised."""


@dataclass(frozen=True, slots=True, eq=False)
class Pilot:
    """Independent runs, one row each.

    Attributes
    ----------
    trajectories: finished and failed ones.
    tasks: names; task: index into them, [runs].
    reward: return of the whole run, [runs].
    steps: agent steps, [runs]: a run is live at the boundaries 1 … steps − 1.
    left_out: stored trajectories that were not used, by reason.
    """

    trajectories: tuple[Trajectory, ...]
    tasks: tuple[str, ...]
    task: Ints
    reward: Floats
    steps: Ints
    left_out: dict[str, int]

    @property
    def per_task(self) -> list[Ints]:
        """Rows of each task."""
        return [np.flatnonzero(self.task == i) for i in range(len(self.tasks))]

    def with_runs(self, fewest: int) -> Pilot:
        """Only the tasks that have so many runs."""
        counts = np.bincount(self.task, minlength=len(self.tasks))
        return _pilot([t for t, i in zip(self.trajectories, self.task, strict=True) if counts[i] >= fewest], {})


def read_pilot(trajectories: Iterable[Trajectory]) -> Pilot:
    """Independent runs with a known return, failures included.

    Left out are runs that were resampled, all of them: what survived was chosen. So are runs that a budget or a
    person stopped, and those without a reward.

    Raises PilotError where nothing is left, or transcripts written with different options are mixed.
    """
    found = list(trajectories)
    resampled = {t.run_id for t in found if t.parent is not None or t.status == "pruned"}
    kept: list[Trajectory] = []
    left_out: Counter[str] = Counter()
    for trajectory in found:
        if trajectory.run_id in resampled:
            left_out["of resampled populations"] += 1
        elif trajectory.status not in ("finished", "failed"):
            left_out[trajectory.status] += 1
        elif trajectory.outcome is None:
            left_out["without a reward"] += 1
        elif len(trajectory.segments) < 2:
            left_out["without a step, or without a transcript"] += 1
        else:
            kept.append(trajectory)
    if not kept:
        raise PilotError(
            f"no independent run with a known reward (left out: {dict(left_out) or 'nothing'}): collect some with "
            "`amc collect`, several runs for each task"
        )
    if len({t.fingerprint for t in kept}) > 1:
        raise PilotError("transcripts written with different options are mixed: advise on runs of one app")
    return _pilot(kept, dict(left_out))


def _pilot(kept: Sequence[Trajectory], left_out: dict[str, int]) -> Pilot:
    names = [t.run_id if t.task_id is None else t.task_id for t in kept]
    tasks = tuple(sorted(set(names)))
    number = {name: i for i, name in enumerate(tasks)}
    return Pilot(
        tuple(kept),
        tasks,
        np.array([number[name] for name in names], dtype=np.int64),
        np.array([t.total for t in kept], dtype=np.float64),
        np.array([len(t.segments) - 1 for t in kept], dtype=np.int64),
        left_out,
    )


def state_keys(pilot: Pilot) -> Ints:
    """A number per state, [runs, longest + 1], equal where the transcripts up to it are; −1 after a run's end."""
    keys = np.full((len(pilot.trajectories), int(pilot.steps.max()) + 1), -1, dtype=np.int64)
    numbers: dict[tuple[int, bytes], int] = {}
    for row, (trajectory, task) in enumerate(zip(pilot.trajectories, pilot.task.tolist(), strict=True)):
        prefix = hashlib.blake2b(digest_size=16)
        for step, segment in enumerate(trajectory.segments):
            data = segment.encode("utf-8", "surrogatepass")
            prefix.update(len(data).to_bytes(8, "big") + data)
            keys[row, step] = numbers.setdefault((task, prefix.digest()), len(numbers))
    return keys


def first_calls(pilot: Pilot, tools: Iterable[str]) -> dict[str, Ints]:
    """For each tool the step in which each run first called it, [runs]; 0 where it never did."""
    marks = {tool: f"\n{tool} {{" for tool in tools}
    found = {tool: np.zeros(len(pilot.trajectories), dtype=np.int64) for tool in marks}
    for row, trajectory in enumerate(pilot.trajectories):
        for tool, mark in marks.items():
            calls = (step for step, segment in enumerate(trajectory.segments) if step and mark in segment)
            found[tool][row] = next(calls, 0)
    return found
