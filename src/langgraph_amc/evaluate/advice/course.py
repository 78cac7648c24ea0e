"""The course of an app's runs as a model: a hidden state per run that V sees dimly, and from which clones go on.

What AMC can harvest is how much the *true* chance of success differs, at a boundary, between the particles of one
task. Independent runs show one future per state, so it takes a model: a hidden Markov model (Rabiner 1989) of two
states. A run begins *on course*, may leave it and come back, with chances that depend on the step and on the class of
its task (a mixture of a few, from easy to hopeless); it ends with a chance that depends on the step; one that ends on
course has succeeded. V is what the state shows of itself, up to an offset per task, which nobody who compares
particles of one task is misled by. Fitted by expectation-maximisation, with priors that pull steps and classes to
their means. Unlike a replay of logged runs it does not hold a task's few runs for its fate: where none of eight
succeeded, a ninth may.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evaluate.logged import LoggedRuns

Floats = NDArray[np.float64]
CLASSES, LEVELS, ROUNDS = 3, 6, 40
_STAY = np.array([[8.0, 0.5], [1.0, 8.0]])
"""Prior counts of [from, to], 0 off and 1 on course: both last, and few come back."""
_POOL = 12.0
"""How many moves the mean over steps counts for at one step, and that over classes in one class."""


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """V of the logged states, taken apart.

    Attributes
    ----------
    unit: whether V lies in [0, 1], so that offsets are in logits. live, last: offsets of V per task, [tasks].
    level: which part of all states at its step V is in, [runs, longest + 1]; −1 where there is none.
    rest, end: V without offset, [runs, longest + 1] and, of the last states, [runs]; −inf where the run failed.
    """

    unit: bool
    live: Floats
    last: Floats
    level: NDArray[np.int64]
    rest: Floats
    end: Floats

    def value(self, rest: float, offset: float) -> float:
        """V again."""
        return float(1 / (1 + np.exp(-(rest + offset)))) if self.unit else rest + offset


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """A fitted model.

    Attributes
    ----------
    share: chance that a task is of each class, [tasks, classes].
    on: chance to be on course at a step, by class and by the state before, [classes, longest + 1, 2].
    end: chance to end at a step, by class and by the state there, [classes, longest + 1, 2].
    shows: chance of each level of V, by step and state, [longest + 1, 2, levels].
    weight: posterior of the hidden states of the logged runs, [runs, longest + 1, 2]; 0 after a run's end.
    """

    share: Floats
    on: Floats
    end: Floats
    shows: Floats
    weight: Floats

    def decided(self) -> Floats:
        """Share of the outcome's variance within a task that is decided at each step, [longest + 1]."""
        classes, steps, _ = self.on.shape
        chance = np.zeros((classes, steps, 2))
        chance[:, -1] = [0.0, 1.0]
        for t in range(steps - 2, -1, -1):
            later = self.end[:, t + 1] * [0.0, 1.0] + (1 - self.end[:, t + 1]) * chance[:, t + 1]
            stays = self.on[:, t + 1]
            chance[:, t] = (1 - stays) * later[:, :1] + stays * later[:, 1:]
        live = np.zeros((classes, 2))
        live[:, 1] = 1.0
        weights = self.share.mean(axis=0)
        success = chance[:, 0, 1]
        total = float(weights @ (success * (1 - success)))
        won = np.zeros(classes)
        found = np.zeros(steps)
        for t in range(1, steps):
            arrived = np.stack([(live * (1 - self.on[:, t])).sum(axis=1), (live * self.on[:, t]).sum(axis=1)], axis=1)
            won = won + arrived[:, 1] * self.end[:, t, 1]
            live = arrived * (1 - self.end[:, t])
            spread = won + (live * chance[:, t] ** 2).sum(axis=1) - success**2
            found[t] = float(weights @ spread) / total if total > 0 else 0.0
        return np.clip(found, 0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """Logged runs as arrays, one row each: task, steps, return scaled to [0, 1]."""

    task: NDArray[np.int64]
    tasks: int
    steps: NDArray[np.int64]
    well: Floats
    sight: Sight

    def of(self, tasks: NDArray[np.int64]) -> Log:
        """The runs of these tasks, as often as they are named: a bootstrap sample."""
        rows = [np.flatnonzero(self.task == task) for task in tasks]
        at = np.concatenate(rows)
        s = self.sight
        sight = Sight(s.unit, s.live[tasks], s.last[tasks], s.level[at], s.rest[at], s.end[at])
        number = np.repeat(np.arange(len(tasks)), [len(r) for r in rows])
        return Log(number, len(tasks), self.steps[at], self.well[at], sight)


def values_of(runs: LoggedRuns) -> Floats:
    """V [runs, longest + 1]; NaN at the first state and after the last."""
    values = np.full((len(runs.runs), max(run.steps for run in runs.runs) + 1), np.nan)
    for row, run in enumerate(runs.runs):
        values[row, : run.steps + 1] = run.values
    return values


def read_log(runs: LoggedRuns) -> Log:
    """Runs with V at every state; returns are scaled by their range."""
    names = {task: i for i, task in enumerate(runs.tasks)}
    task = np.array([names[run.task] for run in runs.runs])
    steps = np.array([run.steps for run in runs.runs])
    totals = np.array([run.total for run in runs.runs])
    spread = float(np.ptp(totals))
    well = (totals - totals.min()) / spread if spread > 0 else np.ones(len(totals))
    failed = np.array([run.failed for run in runs.runs])
    return Log(task, len(names), steps, well, _sight(values_of(runs), task, steps, well, failed))


def fit(log: Log, start: Course | None = None, rounds: int = ROUNDS) -> Course:
    """Fit the model; ``start``: go on from the chances of another one."""
    longest = int(log.steps.max())
    level = log.sight.level[:, : longest + 1]
    ease = np.array([log.well[log.task == i].mean() for i in range(log.tasks)])
    if start is None:
        share, on = _guess(ease, longest, float(log.steps.mean()))
        end = np.tile(_hazard(log.steps, longest)[None, :, None], (CLASSES, 1, 2))
        rising = np.arange(1.0, LEVELS + 1)
        shows = np.tile(np.stack([rising[::-1], rising]) / rising.sum(), (longest + 1, 1, 1))
    else:
        share, on, end, shows = start.share, start.on, start.end.copy(), start.shows
        on, end, shows = on[:, : longest + 1], end[:, : longest + 1], shows[: longest + 1]
        end[:, -1] = 1.0
    mixture = share.mean(axis=0)
    for _ in range(rounds):
        single, pairs, likelihood = _expected(level, log.steps, log.well, on, end, shows)
        by_task = np.stack([np.bincount(log.task, one, minlength=log.tasks) for one in likelihood], axis=1)
        by_task += np.log(mixture)
        share = np.exp(by_task - by_task.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        mixture = (share.sum(axis=0) + 1) / (log.tasks + CLASSES)
        per_run = share.T[:, log.task]
        on = _moves(np.einsum("cr,crtij->ctij", per_run, pairs))
        end = _ends(np.einsum("cr,crti->crti", per_run, single), log.steps)
        weight = np.einsum("cr,crti->rti", per_run, single)
        shows = _shown(weight, level)
    return Course(share, on, end, shows, weight)


def _guess(ease: Floats, longest: int, steps: float) -> tuple[Floats, Floats]:
    """Classes at first: thirds of the tasks by their success, each leaving the course at one rate."""
    eased = 0.9 * ease + 0.1 * ease.mean()
    centres = np.clip(np.quantile(eased, (np.arange(CLASSES) + 0.5) / CLASSES), 0.01, 0.97)
    near = np.exp(-np.abs(eased[:, None] - centres) / 0.15)
    on = np.empty((CLASSES, longest + 1, 2))
    on[:, :, 1] = (centres ** (1 / steps))[:, None]
    on[:, :, 0] = 0.03
    return near / near.sum(axis=1, keepdims=True), on


def _hazard(steps: NDArray[np.int64], longest: int) -> Floats:
    at = np.arange(longest + 1)
    ended = (steps[:, None] == at).sum(axis=0)
    return np.where(at == longest, 1.0, (ended + 0.1) / ((steps[:, None] >= at).sum(axis=0) + 1.0)) * (at > 0)


def _expected(
    level: NDArray[np.int64], steps: NDArray[np.int64], well: Floats, on: Floats, end: Floats, shows: Floats
) -> tuple[Floats, Floats, Floats]:
    """Given each class: posterior of states [c, runs, steps, 2], of moves [c, runs, steps, 2, 2] into a step, log-
    likelihood [c, runs]. All 0 after a run's end.
    """
    classes, longest = len(on), on.shape[1] - 1
    runs = len(steps)
    change = np.stack([1 - on, on], axis=-1)  # [c, t, from, to]
    at = np.arange(longest + 1)
    seen = np.where((level < 0)[:, :, None], 1.0, shows[at, :, np.maximum(level, 0)])
    outcome = np.stack([1 - well, well], axis=1)
    local = np.ones((classes, runs, longest + 1, 2))
    ended, live = at[None, :] == steps[:, None], at[None, :] < steps[:, None]
    local = np.where(live[None, :, :, None], (1 - end)[:, None] * seen[None], local)
    local = np.where(ended[None, :, :, None], end[:, None] * outcome[None, :, None, :], local)
    forward = np.zeros_like(local)
    forward[:, :, 0, 1] = 1.0
    total = np.zeros((classes, runs))
    for t in range(1, longest + 1):
        ahead = np.einsum("cri,cij->crj", forward[:, :, t - 1], change[:, t]) * local[:, :, t]
        norm = np.maximum(ahead.sum(axis=-1, keepdims=True), 1e-300)
        running = (at[t] <= steps)[None, :, None]
        forward[:, :, t] = np.where(running, ahead / norm, 0.0)
        total += np.where(running, np.log(norm), 0.0)[..., 0]
    single, pairs = np.zeros_like(local), np.zeros((*local.shape, 2))
    backward = np.ones((classes, runs, 2))
    for t in range(longest, 0, -1):
        into = local[:, :, t] * backward
        both = forward[:, :, t - 1, :, None] * change[:, None, t] * into[:, :, None, :]
        norm = np.maximum(both.sum(axis=(-2, -1), keepdims=True), 1e-300)
        running = (at[t] <= steps)[None, :, None, None]
        pairs[:, :, t] = np.where(running, both / norm, 0.0)
        single[:, :, t] = pairs[:, :, t].sum(axis=-2)
        back = np.einsum("cij,crj->cri", change[:, t], into)
        back /= np.maximum(back.sum(axis=-1, keepdims=True), 1e-300)
        backward = np.where(running[..., 0], back, 1.0)
    return single, pairs, total


def _moves(pairs: Floats) -> Floats:
    """Chance to be on course [classes, steps, from], from expected moves [classes, steps, from, to]."""
    everywhere = pairs.sum(axis=(0, 1)) + _STAY
    everywhere /= everywhere.sum(axis=-1, keepdims=True)
    of_class = pairs.sum(axis=1) + _POOL * everywhere
    of_class /= of_class.sum(axis=-1, keepdims=True)
    counts = pairs + _POOL * of_class[:, None]
    on: Floats = counts[..., 1] / counts.sum(axis=-1)
    return on


def _ends(single: Floats, steps: NDArray[np.int64]) -> Floats:
    """Chance to end [classes, steps, state], from the expected states [classes, runs, steps, state]."""
    at = np.arange(single.shape[2])
    ended = (single * (at == steps[:, None])[None, :, :, None]).sum(axis=1)
    there = single.sum(axis=1)
    pooled = (ended.sum(axis=0) + 0.05) / (there.sum(axis=0) + 1.0)
    end: Floats = (ended + _POOL * pooled) / (there + _POOL)
    end[:, 0], end[:, -1] = 0.0, 1.0
    return end


def _shown(weight: Floats, level: NDArray[np.int64]) -> Floats:
    """Chance of each level [steps, state, levels]."""
    counts = np.stack([(weight * (level == k)[:, :, None]).sum(axis=0) for k in range(LEVELS)], axis=-1)
    pooled = counts.sum(axis=0) + 1.0
    pooled /= pooled.sum(axis=-1, keepdims=True)
    counts = counts + _POOL * pooled
    shows: Floats = counts / counts.sum(axis=-1, keepdims=True)
    return shows


def _sight(
    values: Floats, task: NDArray[np.int64], steps: NDArray[np.int64], well: Floats, failed: NDArray[np.bool_]
) -> Sight:
    known = values[np.isfinite(values)]
    unit = bool(known.size) and bool((known >= 0).all() and (known <= 1).all())
    clipped = np.clip(values, 1e-4, 1 - 1e-4)
    shown = np.log(clipped / (1 - clipped)) if unit else values
    at = np.arange(values.shape[1])[None, :]
    live = np.where((at > 0) & (at < steps[:, None]), shown, np.nan)
    end = np.where(failed, np.nan, shown[np.arange(len(steps)), steps])
    live_offset, last_offset = _offsets(live, task, well), _offsets(end[:, None], task, well)
    rest = live - live_offset[task][:, None]
    level = np.full(values.shape, -1)
    for t in range(1, values.shape[1]):
        going = np.flatnonzero(np.isfinite(rest[:, t]))
        if len(going) >= LEVELS:
            ranks = np.searchsorted(np.sort(rest[going, t]), rest[going, t])  # equal values share a level
            level[going, t] = ranks * LEVELS // len(going)
    last = np.where(np.isnan(end), -np.inf, end - last_offset[task])
    return Sight(unit, live_offset, last_offset, level, rest, last)


def _offsets(shown: Floats, task: NDArray[np.int64], well: Floats) -> Floats:
    """How much higher V stands on a task than its runs' success explains, [tasks], shrunk by its error."""
    known = np.isfinite(shown)
    centred = np.full(shown.shape, np.nan)
    for good in (False, True):
        rows = (well > 0.5) == good
        count = known[rows].sum(axis=0)
        mean = np.where(known[rows], shown[rows], 0.0).sum(axis=0) / np.maximum(count, 1)
        centred[rows] = shown[rows] - mean
    count = known.sum(axis=1)
    run = np.where(known, centred, 0.0).sum(axis=1) / np.maximum(count, 1)
    tasks = int(task.max()) + 1
    n = np.bincount(task, count > 0, minlength=tasks)
    mean = np.bincount(task, run, minlength=tasks) / np.maximum(n, 1)
    within = float(np.square(run - mean[task]).sum() / max(1, len(run) - tasks))
    between = max(0.0, float(np.var(mean) - np.mean(within / np.maximum(n, 1))))
    offset: Floats = mean * between / np.maximum(between + within / np.maximum(n, 1), 1e-12)
    return offset
