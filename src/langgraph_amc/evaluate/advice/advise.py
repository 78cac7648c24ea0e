"""An advice from runs: measured, simulated, judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.advice import measure
from langgraph_amc.evaluate.advice.course import values_of
from langgraph_amc.evaluate.advice.gain import Gain, expected_gain, scored
from langgraph_amc.evaluate.advice.pilot import Floats, Pilot, read_pilot
from langgraph_amc.evaluate.advice.verdict import Evidence, Verdict, is_blind, verdict
from langgraph_amc.runtime.effects.policy import EffectRules
from langgraph_amc.smc import Schedule, Tempering, ess_target, every
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value.metrics import Ranking
from langgraph_amc.value.protocol import ValueFunction

WORTH = 0.02
"""The least gain that counts, as a share of the range of rewards."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What AMC is expected to do for an app, and everything that it rests on; ``to_json`` gives plain data.

    Attributes
    ----------
    particles: N that the gain is for: the one asked for, or as many as the tasks have runs.
    runs: used; left_out: stored ones that were not, by reason.
    rewards, diversity, ranking, ranking_final, steps, gain: ``None`` or empty where they cannot be had, see ``notes``.
    steps_per_run: mean number of agent steps.
    observable: whether the reward is known when serving, so that the observable column counts.
    """

    verdict: Verdict
    particles: int
    tasks: int
    runs: int
    left_out: Mapping[str, int]
    observable: bool
    rewards: measure.Rewards | None
    diversity: measure.Diversity | None
    ranking: Ranking | None
    ranking_final: Ranking | None
    steps: tuple[measure.Step, ...]
    steps_per_run: float
    tools: tuple[measure.ToolUse, ...]
    cost: measure.Cost
    gain: Gain | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``; a number that is missing is ``None``."""
        plain: dict[str, Any] = _without_nan(asdict(self))
        return plain


def advise(
    trajectories: Iterable[Trajectory],
    value: ValueFunction | None = None,
    *,
    particles: int = 8,
    schedule: Schedule | None = None,
    tempering: Tempering | None = None,
    observable: bool = False,
    effects: EffectRules | None = None,
    replicates: int = 30,
    bootstrap: int = 24,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Advice:
    """Say from independent runs, several for each task, whether AMC will beat best-of-N at the same N.

    Parameters
    ----------
    trajectories: of a pilot or from logs, with rewards.
    value: must not have learned from these tasks; without one only what needs none is measured.
    schedule, tempering: as AMC will be run; the defaults of `wrap`.
    observable: the reward can be observed when serving, so that best-of-N takes the best run for sure.
    effects: policies of the app's tools (`read_effects`).
    replicates: simulated runs per task; bootstrap: samples of tasks, for the interval.

    Raises PilotError where no run can be used, and ConfigurationError for particles < 2.
    """
    if particles < 2:
        raise ConfigurationError(f"an advice is about N particles of at least 2, got {particles}")
    if replicates < 1 or bootstrap < 2:
        raise ConfigurationError(f"need replicates >= 1 and bootstrap >= 2, got {replicates} and {bootstrap}")
    schedule, tempering = schedule or every(3), tempering or ess_target(0.5)
    pilot = read_pilot(trajectories)
    counts = np.bincount(pilot.task)
    n = min(particles, int(np.median(counts)))
    full = pilot.with_runs(max(n, 2)) if int(counts.max()) >= 2 else None
    notes = _notes(pilot, full, particles, n)
    graded = len(np.unique(pilot.reward)) > 2
    runs = None if value is None or full is None else scored(full, value, progress)
    values = None if runs is None else values_of(runs)
    flat = float(np.ptp((full or pilot).reward)) == 0.0
    final = None if values is None or full is None else _final(full, values)
    rewards = None if full is None else measure.rewards(full, max(n, 2), final)
    ranking = ranking_final = None
    if values is not None and full is not None:
        ranking = measure.ranking(full, values, graded, final=False)
        ranking_final = measure.ranking(full, values, graded, final=True)
    sees = any(found is not None and not is_blind(found) for found in (ranking, ranking_final))
    gain = None
    if runs is not None and rewards is not None and not flat and sees:  # else the model has nothing to hold on to
        gain = expected_gain(runs, rewards, schedule, tempering, replicates=replicates, bootstrap=bootstrap, seed=seed)
    evidence = Evidence(
        tasks=len((full or pilot).tasks),
        runs_per_task=1 if full is None else n,
        particles=particles,
        observable=observable,
        worth=WORTH * (1.0 if flat else float(np.ptp((full or pilot).reward))),
        highest=float((full or pilot).reward.max()),
        rewards=rewards,
        diversity=measure.diversity(pilot),
        tools=measure.tools(pilot, effects),
        gain=gain,
        ranking=ranking,
        ranking_final=ranking_final,
        middle=round(float(np.median(pilot.steps)) / 2),
        first_check=float(next((b for b in range(1, 10_000) if schedule.possible(b)), math.inf)),
    )
    return Advice(
        verdict(evidence),
        max(n, 2),
        evidence.tasks,
        len(pilot.trajectories),
        pilot.left_out,
        observable,
        rewards,
        evidence.diversity,
        evidence.ranking,
        evidence.ranking_final,
        () if values is None or full is None else measure.steps(full, values, schedule, tempering, graded),
        float(pilot.steps.mean()),
        evidence.tools,
        measure.cost(pilot),
        gain,
        notes,
    )


def _final(pilot: Pilot, values: Floats) -> Floats:
    last = values[np.arange(len(values)), pilot.steps]
    failed = np.array([t.status == "failed" for t in pilot.trajectories])
    return np.where(failed, -np.inf, last)


def _notes(pilot: Pilot, full: Pilot | None, particles: int, n: int) -> tuple[str, ...]:
    notes = []
    if n < particles:
        notes.append(f"the tasks have {n} run(s) each, so this is about N = {max(n, 2)}, not {particles}")
    if full is not None and (fewer := len(pilot.tasks) - len(full.tasks)):
        notes.append(f"{fewer} task(s) with fewer runs are left out of the rewards and of the gain")
    if len(np.unique(pilot.reward)) > 2:
        notes.append("rewards are graded: a run counts as so much of a success as its reward is of the best one")
    return tuple(notes)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
