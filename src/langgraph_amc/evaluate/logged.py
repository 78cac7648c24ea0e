"""Independent runs that were logged, with V of every state, as arrays: what a simulation of AMC draws from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import AMCError
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value.errors import ValueScoreError
from langgraph_amc.value.protocol import ValueFunction
from langgraph_amc.value.targets import task_of

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]


class LoggedRunsError(AMCError, ValueError):
    """Stored runs from which nothing can be simulated."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedRun:
    """One independent run of T steps.

    Attributes
    ----------
    values: V at each of the T + 1 states; the last one estimates the outcome.
    observed: step rewards up to each state, [T + 1].
    total: true return.
    spent: cost up to each state, [T + 1]: tokens, or steps where the model reported no usage.
    """

    task: str
    values: Floats
    observed: Floats
    total: float
    spent: Floats
    failed: bool

    @property
    def steps(self) -> int:
        return len(self.values) - 1


@dataclass(frozen=True, slots=True)
class LoggedRuns:
    """Runs by task, tasks in order of their names.

    Attributes
    ----------
    unit: what `LoggedRun.spent` counts.
    left_out: how many stored trajectories were not used, by reason.
    """

    runs: tuple[LoggedRun, ...]
    unit: str
    left_out: tuple[tuple[str, int], ...] = ()
    fingerprint: str = ""

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(sorted({run.task for run in self.runs}))

    @property
    def per_task(self) -> dict[str, tuple[int, ...]]:
        """Indices into ``runs`` by task."""
        found: dict[str, list[int]] = defaultdict(list)
        for i, run in enumerate(self.runs):
            found[run.task].append(i)
        return {task: tuple(found[task]) for task in sorted(found)}

    def on(self, tasks: Iterable[str]) -> LoggedRuns:
        """The runs of these tasks."""
        wanted = set(tasks)
        return LoggedRuns(
            tuple(run for run in self.runs if run.task in wanted), self.unit, self.left_out, self.fingerprint
        )


def read_runs(
    trajectories: Iterable[Trajectory], value: ValueFunction, *, batch: int = 64, progress: Progress | None = None
) -> LoggedRuns:
    """Independent runs with a known return, V scored once at every state but the first.

    Left out are clones and what was pruned (not independent), runs that a budget or a person stopped, and runs
    without an outcome; runs that failed are kept, with the return they were stored with.

    Parameters
    ----------
    value: must not have learned from these tasks. batch: runs that are scored at a time.

    Raises
    ------
    LoggedRunsError: nothing is left, or transcripts with different options are mixed.
    ValueScoreError: V is missing at some state.
    """
    left_out: Counter[str] = Counter()
    kept: list[Trajectory] = []
    for trajectory in trajectories:
        reason = _unusable(trajectory)
        if reason is None:
            kept.append(trajectory)
        else:
            left_out[reason] += 1
    if not kept:
        raise LoggedRunsError(
            f"no independent run with a known reward is stored (left out: {dict(left_out) or 'nothing'}): collect some "
            "with `amc collect`, several runs for each task"
        )
    fingerprints = {t.fingerprint for t in kept}
    if len(fingerprints) > 1:
        raise LoggedRunsError(
            "the store mixes transcripts written with different options: tune on runs of one app, with one transcript"
        )
    in_tokens = all(t.usage.tokens for t in kept)
    runs: list[LoggedRun] = []
    for start in range(0, len(kept), batch):
        part = kept[start : start + batch]
        for trajectory, values in zip(part, _score(part, value), strict=True):
            runs.append(_logged(trajectory, values, in_tokens))
        if progress is not None:
            progress(len(runs), len(kept))
    return LoggedRuns(
        tuple(runs), "tokens" if in_tokens else "steps", tuple(sorted(left_out.items())), fingerprints.pop()
    )


def _unusable(trajectory: Trajectory) -> str | None:
    if trajectory.parent is not None or trajectory.status == "pruned":
        return "clones and pruned runs"
    if trajectory.status not in ("finished", "failed"):
        return f"{trajectory.status} runs"
    if trajectory.total is None:
        return "runs without a reward"
    return "runs of no step" if len(trajectory.segments) < 2 else None


def _score(part: Sequence[Trajectory], value: ValueFunction) -> list[Floats]:
    """V of states 1 … T of each run; V of the first is the same for all and compared with nothing."""
    states = [t.segments[: s + 1] for t in part for s in range(1, len(t.segments))]
    scores = np.asarray(value.score(states), dtype=np.float64)
    if scores.shape != (len(states),) or not np.isfinite(scores).all():
        raise ValueScoreError(
            "V has to give one number for every state of the logged runs, and some are missing: make it answer, or "
            "collect again without the runs that it cannot read"
        )
    cuts = np.cumsum([len(t.segments) - 1 for t in part])[:-1]
    return [np.concatenate([[np.nan], own]) for own in np.split(scores, cuts)]


def _logged(trajectory: Trajectory, values: Floats, in_tokens: bool) -> LoggedRun:
    lengths = np.array([len(segment) for segment in trajectory.segments], dtype=np.float64)
    if in_tokens:
        # Each step reads the whole conversation so far and writes its own segment: by characters, scaled to what
        # the run took in all.
        read, written = np.cumsum(lengths)[:-1], lengths[1:]
        usage = trajectory.usage
        step = usage.input_tokens * _share(read) + usage.output_tokens * _share(written)
    else:
        step = np.ones(len(lengths) - 1)
    total = trajectory.total
    assert total is not None
    observed = np.concatenate([[0.0], np.cumsum(trajectory.rewards)])
    spent = np.concatenate([[0.0], np.cumsum(step)])
    return LoggedRun(task_of(trajectory), values, observed, total, spent, trajectory.status == "failed")


def _share(amounts: Floats) -> Floats:
    total = amounts.sum()
    return amounts / total if total else np.full(len(amounts), 1 / len(amounts))
