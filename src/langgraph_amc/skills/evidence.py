"""Evidence from stored trajectories: a success beside a failure of each task, siblings of one AMC run where there are.

Two clones of one particle have everything in common up to the boundary at which they split. If one succeeded and the
other failed, what made the difference stands in the steps after it: no other pair of runs says as much.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product

from langgraph_amc.skills.types import Contrast, Evidence
from langgraph_amc.trajectories.types import Trajectory

ALIKE = 1e-9
"""Returns that differ by less are the same."""


def gather(trajectories: Iterable[Trajectory], *, success: float | None = None) -> Evidence:
    """Sort runs into contrasts and tasks whose runs are all alike.

    Parameters
    ----------
    trajectories: those without a return or a task are left out: a pruned run and one that was not judged say nothing.
        A failed run counts: the app broke on it.
    success: the return from which a run succeeded; by default the best that any run has.
    """
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.task_id is not None and return_of(trajectory) is not None:
            by_task[trajectory.task_id].append(trajectory)
    if not by_task:
        return Evidence()
    best = max(_return(t) for runs in by_task.values() for t in runs)
    enough = (best if success is None else success) - ALIKE
    contrasts, failures, successes = [], [], []
    for task, runs in by_task.items():
        high, low = max(map(_return, runs)), min(map(_return, runs))
        if high - low > ALIKE:
            contrasts.append(_contrast(task, runs, high, low))
        elif high >= enough:
            successes.append(runs[0])
        else:
            failures.append(runs[0])
    return Evidence(tuple(sorted(contrasts, key=_sharpness)), tuple(failures), tuple(successes))


def return_of(trajectory: Trajectory) -> float | None:
    """What a run earned; ``None`` where nobody knows. A run that broke earned what it had until then."""
    if trajectory.status == "failed" and trajectory.outcome is None:
        return sum(trajectory.rewards)
    return trajectory.total


def shared_segments(one: Trajectory, other: Trajectory) -> int:
    """With how many equal segments both begin."""
    pairs = zip(one.segments, other.segments, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.segments), len(other.segments)))


def _contrast(task: str, runs: Sequence[Trajectory], high: float, low: float) -> Contrast:
    """The pair that has most in common: siblings of one run first, then the same beginning; the best and the worst."""
    good = [t for t in runs if high - _return(t) <= ALIKE]
    bad = [t for t in runs if _return(t) - low <= ALIKE]

    def in_common(pair: tuple[Trajectory, Trajectory]) -> tuple[bool, int]:
        return pair[0].run_id == pair[1].run_id, shared_segments(*pair)

    better, worse = max(product(good, bad), key=in_common)
    return Contrast(task, better, worse, shared_segments(better, worse))


def _sharpness(contrast: Contrast) -> tuple[bool, int, float]:
    siblings = contrast.better.run_id == contrast.worse.run_id and contrast.shared > 1
    return not siblings, -contrast.shared if siblings else 0, _return(contrast.worse) - _return(contrast.better)


def _return(trajectory: Trajectory) -> float:
    found = return_of(trajectory)
    assert found is not None, "only runs with a return are sorted"
    return found
