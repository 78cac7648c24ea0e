"""What can be measured on independent runs without any model. A figure that cannot be measured is ``None``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from langgraph_amc.evaluate.advice.pilot import Floats, Pilot, first_calls, state_keys
from langgraph_amc.evaluate.statistics import Estimate, estimate
from langgraph_amc.runtime.effects.policy import EffectRules
from langgraph_amc.smc import Check, Schedule, Tempering, effective_sample_size
from langgraph_amc.value.metrics import Ranking, within_task_ranking


@dataclass(frozen=True, slots=True)
class Rewards:
    """What one run and the best of N earn, means over tasks.

    Attributes
    ----------
    single: of one run (p@1 where rewards are 0/1).
    best: of the best of ``best_of`` runs (pass@N), where the reward is observable when serving.
    chosen: of the one among them that V prefers at its end; ``None`` without V.
    headroom: best − single.
    hopeless: share of tasks in which no run earned more than the least there is.
    """

    best_of: int
    single: Estimate
    best: Estimate
    chosen: Estimate | None
    headroom: Estimate
    hopeless: float


@dataclass(frozen=True, slots=True)
class Diversity:
    """How far runs of one task differ.

    Attributes
    ----------
    same_run, same_answer: share of pairs of runs with the same transcript, with the same last step.
    parted: mean number of steps that a pair has in common.
    """

    same_run: float
    same_answer: float
    parted: float


@dataclass(frozen=True, slots=True)
class Step:
    """One boundary.

    Attributes
    ----------
    live: share of runs that are still going.
    ranking: how V ranks the live states of one task by what became of them.
    ess: effective sample size as a share of the live runs of a task, mean over tasks; fires: share of tasks in
        which the schedule would resample.
    """

    boundary: int
    live: float
    ranking: Ranking
    ess: float | None
    fires: float | None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool that acts on the world: how it is treated, in how many runs it was called, and when first (median)."""

    name: str
    policy: str
    said_by: str
    runs: float
    first_step: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run, on average; ``None`` where the model reported no usage, or no price is known."""

    tokens: float | None
    usd: float | None


def best_of(scores: ArrayLike, rewards: ArrayLike, n: int) -> float:
    """Expected reward of the run with the highest score among n drawn without replacement; ties are drawn by lot.

    Unbiased for n independent runs. With the rewards themselves as scores and rewards of 0 or 1 it is pass@n
    (Chen et al. 2021, equation 1). Raises ValueError where there are fewer than n.
    """
    s, r = np.asarray(scores, dtype=np.float64), np.asarray(rewards, dtype=np.float64)
    if not 1 <= n <= len(s):
        raise ValueError(f"the best of {n} cannot be estimated from {len(s)} runs")
    _, tied = np.unique(s, return_inverse=True)
    shared = np.bincount(tied, r) / np.bincount(tied)
    chance = np.array([math.comb(k, n - 1) for k in range(len(s))], dtype=np.float64) / math.comb(len(s), n)
    return float(chance @ shared[np.sort(tied)])


def rewards(pilot: Pilot, n: int, final: Floats | None) -> Rewards:
    """One run and the best of n; ``final`` [runs]: V of the last states, −inf where a run failed."""
    least = pilot.reward.min()
    single, best, chosen, none = [], [], [], []
    for rows in pilot.per_task:
        earned = pilot.reward[rows]
        single.append(earned.mean())
        best.append(best_of(earned, earned, n))
        none.append(bool((earned <= least).all()))
        if final is not None:
            chosen.append(best_of(final[rows], earned, n))
    ones, bests = _column(single), _column(best)
    picked = None if final is None else estimate(_column(chosen))
    flat = float(np.ptp(pilot.reward)) == 0.0
    return Rewards(
        n, estimate(ones), estimate(bests), picked, estimate(bests - ones), math.nan if flat else float(np.mean(none))
    )


def diversity(pilot: Pilot) -> Diversity | None:
    """Of pairs of runs of one task; ``None`` where no task has two."""
    keys = state_keys(pilot)
    same_run, same_answer, parted = [], [], []
    for rows in pilot.per_task:
        if len(rows) < 2:
            continue
        i, j = (rows[k] for k in np.triu_indices(len(rows), 1))
        common = ((keys[i] == keys[j]) & (keys[i] >= 0)).sum(axis=1) - 1
        same_run.append(np.mean((common == pilot.steps[i]) & (common == pilot.steps[j])))
        parted.append(common.mean())
        last = [pilot.trajectories[row].segments[-1] for row in rows]
        same_answer.append(np.mean([last[a] == last[b] for a, b in zip(*np.triu_indices(len(rows), 1), strict=True)]))
    if not same_run:
        return None
    return Diversity(float(np.mean(same_run)), float(np.mean(same_answer)), float(np.mean(parted)))


def steps(pilot: Pilot, values: Floats, schedule: Schedule, tempering: Tempering, graded: bool) -> tuple[Step, ...]:
    """Each boundary at which at least a tenth of the runs are still going.

    ``values``: V [runs, longest + 1]. The ESS is that of a population which is weighed for the first time.
    """
    keys = state_keys(pilot)
    found = []
    for boundary in range(1, int(pilot.steps.max())):
        live = pilot.steps > boundary
        if live.mean() < 0.1:
            break
        scored = live & np.isfinite(values[:, boundary])
        ranking = within_task_ranking(
            values[scored, boundary],
            pilot.reward[scored],
            pilot.task[scored],
            states=keys[scored, boundary],
            graded=graded,
        )
        shares = [_ess(values[rows, boundary], pilot, rows, boundary, tempering) for rows in _by_task(pilot, scored)]
        known = [s for s in shares if s is not None]
        fires = [schedule.possible(boundary) and schedule.fires(Check(boundary, s)) for s in known]
        found.append(
            Step(
                boundary,
                float(live.mean()),
                ranking,
                float(np.mean(known)) if known else None,
                float(np.mean(fires)) if known else None,
            )
        )
    return tuple(found)


def ranking(pilot: Pilot, values: Floats, graded: bool, *, final: bool) -> Ranking:
    """How V ranks states of one task at one step, all live steps together, or the last states of its runs."""
    keys = state_keys(pilot)
    at = np.arange(values.shape[1])[None, :]
    chosen = np.isfinite(values) & ((at == pilot.steps[:, None]) if final else (at < pilot.steps[:, None]) & (at > 0))
    row, step = np.nonzero(chosen)
    return within_task_ranking(
        values[chosen],
        pilot.reward[row],
        pilot.task[row],
        steps=None if final else step,
        states=keys[chosen],
        graded=graded,
    )


def tools(pilot: Pilot, rules: EffectRules | None) -> tuple[ToolUse, ...]:
    """The app's tools that are not known to be pure, and when runs first call them."""
    if rules is None:
        return ()
    classified = {name: rules.classify(tool) for name, tool in rules.tools.items()}
    acting = {name: found for name, found in classified.items() if found[0] != "pure" or found[1] == "none"}
    uses = []
    for name, first in first_calls(pilot, acting).items():
        policy, source = acting[name]
        called = first[first > 0]
        median = float(np.median(called)) if called.size else None
        uses.append(ToolUse(name, "unknown" if source == "none" else policy, source, called.size / len(first), median))
    return tuple(sorted(uses, key=lambda use: use.first_step or math.inf))


def cost(pilot: Pilot) -> Cost:
    """Of one run."""
    used = [t.usage for t in pilot.trajectories if t.usage.calls]
    if not used or len(used) < len(pilot.trajectories) / 2:
        return Cost(None, None)
    prices = [u.cost for u in used if u.cost is not None]
    usd = float(np.mean(prices)) if len(prices) == len(used) else None
    return Cost(float(np.mean([u.tokens for u in used])), usd)


def _ess(values: Floats, pilot: Pilot, rows: ArrayLike, boundary: int, tempering: Tempering) -> float | None:
    if len(values) < 2:
        return None
    earned = np.array([sum(pilot.trajectories[row].rewards[:boundary]) for row in np.asarray(rows)], dtype=np.float64)
    potential = tempering.potential(earned, values, np.zeros(len(values), dtype=np.bool_))
    return effective_sample_size(tempering.sharpness(potential) * potential) / len(values)


def _by_task(pilot: Pilot, chosen: ArrayLike) -> list[np.ndarray]:
    mask = np.asarray(chosen)
    return [rows[mask[rows]] for rows in pilot.per_task]


def _column(scores: Sequence[float]) -> Floats:
    return np.array(scores, dtype=np.float64)[:, None]
