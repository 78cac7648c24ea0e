"""What a state's return is worth as a target, where resampling has chosen who lives to have one. Numpy only.

A run that ends by itself gives each of its states its return. In a resampled population that is biased: of the
particles that stood at a state, those that came to look good had more descendants, and the pruned ones have no
return at all. Let particle i have m·W_i expected offspring at a resampling. A descendant counts 1/(m·W_i) for every
state *before* it, and fully for states after it; docs/equations.md shows that the weighted returns of a state are
then those of the policy itself, whatever V steered the population, and without a clipped or guessed ratio.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.checks import check_items, is_number
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc.weights import LogWeights
from langgraph_amc.trajectories.types import Trajectory

FloatArray = NDArray[np.float64]

RESAMPLED = "resampled"
"""Key in a trajectory's metadata: ``[[boundary, log m·W], …]`` of the resamplings its lineage came through.

``null`` for log m·W says that survivors of that boundary cannot be weighted: earlier states were gone back to.
"""


class Resampling(Protocol):
    """One boundary of a run, as `runtime.result.Check` reports it.

    ``ancestors`` is empty where nobody was drawn, ``past`` where no earlier states could be gone back to.
    """

    @property
    def boundary(self) -> int: ...
    @property
    def particles(self) -> Sequence[str]: ...
    @property
    def log_weights(self) -> Sequence[float]: ...
    @property
    def ancestors(self) -> Sequence[int]: ...
    @property
    def past(self) -> Sequence[str]: ...


def task_of(trajectory: Trajectory) -> str:
    """The task a trajectory belongs to; runs without a task are a task of their own."""
    return trajectory.run_id if trajectory.task_id is None else trajectory.task_id


def with_resamplings(trajectories: Iterable[Trajectory], checks: Iterable[Resampling]) -> list[Trajectory]:
    """The trajectories of *one* run with the resamplings they came through in their metadata.

    ``checks`` are those of the run (`AMCResult.checks`). A run that was not resampled is left as it is.
    """
    run = check_items("trajectories", trajectories, Trajectory)
    resampled = [check for check in checks if check.ancestors]
    if not resampled:
        return run
    by_name = {t.particle: t for t in run}
    drawn = [_expected_offspring(check) for check in resampled if not check.past]
    gone_back: list[list[float | None]] = [[check.boundary, None] for check in resampled if check.past]
    return [replace(t, metadata={**t.metadata, RESAMPLED: _passed(t, by_name, drawn) + gone_back}) for t in run]


def known_from(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """By run, the first state whose descendants' returns can be weighted; 0, and left out, where all can.

    Where particles were cloned or pruned and no resampling is recorded for that boundary (older stores, or a choice
    before an effect), nobody knows how likely the survivors were to survive: states before it have no target.
    Give whole runs, pruned particles included.
    """
    forks: dict[str, set[int]] = defaultdict(set)
    recorded: dict[str, set[int]] = defaultdict(set)
    for trajectory in trajectories:
        if trajectory.parent is not None and trajectory.forked_at is not None:
            forks[trajectory.run_id].add(trajectory.forked_at)
        if trajectory.status == "pruned":
            forks[trajectory.run_id].add(len(trajectory.segments) - 1)
        for boundary, log_offspring in trajectory.metadata.get(RESAMPLED, ()):
            (forks if log_offspring is None else recorded)[trajectory.run_id].add(boundary)
    unexplained = {run: boundaries - recorded[run] for run, boundaries in forks.items()}
    return {run: max(boundaries) for run, boundaries in unexplained.items() if boundaries}


def importance(trajectory: Trajectory, known: int = 0) -> FloatArray:
    """Weight [T + 1] of the return of each state: Π 1/(m·W) over the resamplings after it, 0 before ``known``.

    Given the state, its descendants' weights sum to 1 in expectation.
    """
    states = np.arange(len(trajectory.segments))
    log_weight = np.zeros(len(states))
    for boundary, log_offspring in trajectory.metadata.get(RESAMPLED, ()):
        log_weight[states < boundary] -= 0.0 if log_offspring is None else log_offspring
    return np.where(states < known, 0.0, np.exp(log_weight))


def lambda_returns(trajectory: Trajectory, lam: float) -> tuple[float, ...] | None:
    """TD(λ) targets of the T + 1 states: G_t = r_t + (1 − λ)·V(s_{t+1}) + λ·G_{t+1}; ``None`` without an outcome.

    V is what the trajectory stores; where a state was not scored its G stands for it. λ = 1 gives the returns
    themselves (Monte Carlo); less has less noise and V's bias (Sutton & Barto 2018, chapter 12).
    """
    if not (is_number(lam) and 0 <= lam <= 1):
        raise ConfigurationError(f"td_lambda lies in [0, 1], got {lam!r}")
    if trajectory.outcome is None or lam == 1 or not trajectory.values:
        return trajectory.returns()
    found = [trajectory.outcome]
    for t in reversed(range(len(trajectory.rewards))):
        value = trajectory.values[t + 1]
        ahead = found[-1] if value is None else (1 - lam) * value + lam * found[-1]
        found.append(trajectory.rewards[t] + ahead)
    return tuple(reversed(found))


def _expected_offspring(check: Resampling) -> tuple[int, dict[str, float]]:
    """The boundary, and log m·W by the name of each particle that could be drawn."""
    log_weights = LogWeights(np.array(check.log_weights))
    log_offspring = np.log(len(check.ancestors)) + log_weights.log - log_weights.log_sum
    drawable = zip(check.particles, log_offspring.tolist(), strict=True)
    return check.boundary, {name: log for name, log in drawable if log > -np.inf}


def _passed(
    trajectory: Trajectory, by_name: Mapping[str, Trajectory], drawn: Sequence[tuple[int, Mapping[str, float]]]
) -> list[list[float | None]]:
    """``[boundary, log m·W]`` of the resamplings after which the lineage of a trajectory went on."""
    found: list[list[float | None]] = []
    pruned_at = len(trajectory.segments) - 1 if trajectory.status == "pruned" else None
    for boundary, log_offspring in drawn:
        if pruned_at is not None and boundary >= pruned_at:
            continue
        ancestor: Trajectory | None = trajectory
        while ancestor is not None and ancestor.forked_at is not None and ancestor.forked_at >= boundary:
            ancestor = None if ancestor.parent is None else by_name.get(ancestor.parent)
        if ancestor is not None and ancestor.particle in log_offspring:
            found.append([boundary, log_offspring[ancestor.particle]])
    return found
