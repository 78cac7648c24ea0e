"""Schedule, sharpness, N and selection, chosen by data: `amc tune`.

Every setting of a grid is replayed on logged runs (`simulate`). The choice is the cheapest setting within one standard
error of the best one (Breiman et al. 1984, section 3.4.3), the error being that of the paired difference over tasks.
A maximum over many noisy numbers flatters itself, so the procedure as a whole is cross-validated: the choice is made
on all tasks but those of a fold and judged on these. Only where that shows a gain over the defaults, or as good
answers for less, the defaults are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.evaluate.logged import Floats, LoggedRuns, Progress
from langgraph_amc.evaluate.simulate import Arm, Simulated, Simulator
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.runtime.config import RunConfig
from langgraph_amc.smc import SELECTORS, Schedule, ess_below, ess_target, every, never
from langgraph_amc.smc.tempering import EssTarget
from langgraph_amc.value.metrics import bootstrap_interval

FEWEST_TASKS, FEWEST_RUNS = 10, 4
FOLDS = 5
TARGETS = (0.3, 0.5, 0.7)
"""ESS targets that are tried: the smaller, the sharper."""
SPACINGS = (1, 2, 3, 5)
TOLERANCE = 0.02
"""A loss of reward that is nothing, as a part of the range of returns."""
SAVING = 0.05
"""A part of the cost that is worth a change."""
DEFAULT_PARTICLES = 8

Verdict = Literal["better", "cheaper", "defaults"]


class TuningDataError(AMCError, ValueError):
    """Too little has been logged to tell one setting from another."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An arm and how its answer is selected."""

    arm: Arm
    select: str

    def __str__(self) -> str:
        return f"N = {self.arm.particles}, {self.arm.schedule!r}, {_sharpness(self.arm)}, {self.select}"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting's predicted figures, per task.

    Attributes
    ----------
    reward: mean true return of the answer, 95 % interval by bootstrap over tasks.
    gain: its difference to the default setting, paired by task.
    spent: tokens of all particles together (or steps, see `Tuning.unit`).
    """

    setting: Setting
    reward: Estimate
    gain: Estimate
    spent: float
    resamplings: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """What tuning found.

    Attributes
    ----------
    rows: all settings, the cheapest first.
    best: the setting of the highest predicted reward; picked: by the one-standard-error rule; chosen: the one to use.
    verdict: why the choice differs from the defaults, or that it does not.
    gain: cross-validated gain of picking over the default setting; saving: the part of the cost that it saves.
    """

    rows: tuple[Row, ...]
    default: Setting
    best: Setting
    picked: Setting
    chosen: Setting
    verdict: Verdict
    gain: Estimate
    saving: float
    single: Estimate
    tasks: int
    runs: int
    unit: str
    fingerprint: str
    notes: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """The verdict as a sentence."""
        gained = f"{self.gain.mean:+.3f} [{self.gain.low:+.3f}, {self.gain.high:+.3f}]"
        if self.verdict == "better":
            return f"cross-validated gain over the defaults: {gained}"
        if self.verdict == "cheaper":
            return f"{self.saving:.0%} fewer {self.unit} than the defaults, and as good: {gained}"
        return f"the data cannot tell the settings from the defaults (cross-validated gain {gained}), so these are kept"

    def row(self, setting: Setting) -> Row:
        """The figures of a setting."""
        return next(row for row in self.rows if row.setting == setting)

    def to_config(self, *, value: str | None = None, boundary: str | None = None) -> RunConfig:
        """The chosen setting as a configuration for `wrap`; ``value`` is the folder of V."""
        arm, row = self.chosen.arm, self.row(self.chosen)
        return RunConfig(
            particles=arm.particles,
            resample=repr(arm.schedule),
            tau=arm.tempering,
            select=self.chosen.select,
            boundary=boundary,
            value=value,
            transcript=self.fingerprint or None,
            tuned={
                "verdict": self.verdict,
                "reason": self.reason,
                "predicted_reward": asdict(row.reward),
                "predicted_" + self.unit: round(row.spent),
                "tasks": self.tasks,
                "runs": self.runs,
            },
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``."""
        rows = [
            {
                "setting": str(row.setting),
                "reward": asdict(row.reward),
                "gain": asdict(row.gain),
                "spent": row.spent,
                "resamplings": row.resamplings,
            }
            for row in self.rows
        ]
        names = {name: str(getattr(self, name)) for name in ("default", "best", "picked", "chosen")}
        return {
            "rows": rows,
            **names,
            "verdict": self.verdict,
            "reason": self.reason,
            "gain": asdict(self.gain),
            "saving": self.saving,
            "single": asdict(self.single),
            "tasks": self.tasks,
            "runs": self.runs,
            "unit": self.unit,
            "notes": list(self.notes),
        }


def tune(
    logged: LoggedRuns,
    *,
    particles: Sequence[int] = (4, 8),
    observable: bool = False,
    replicates: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tuning:
    """Replay a grid of settings on logged runs and choose one.

    Parameters
    ----------
    logged: independent runs of tasks that V did not learn from.
    particles: values of N; one that fewer than `FEWEST_TASKS` tasks have runs for is left out, with a note.
    observable: whether the reward of a finished run can be observed when serving; else V selects the answer.
    replicates: populations per task and setting.

    Raises TuningDataError where there are too few tasks or runs, or where all runs earned the same.
    """
    if not particles or min(particles) < 2:
        raise ConfigurationError(f"particles are numbers of at least 2, got {list(particles)}")
    notes: list[str] = []
    counts, log = _enough(logged, sorted(set(particles)), notes)
    simulator = Simulator(log, observable=observable)
    selects = ("best_reward",) if observable else ("best_value", "argmax")
    default = Setting(Arm(min(DEFAULT_PARTICLES, counts[-1]), every(3)), selects[0])
    arms = list(dict.fromkeys([default.arm, *grid(counts, int(np.median([run.steps for run in log.runs])))]))
    results: dict[Setting, tuple[Floats, Simulated]] = {}
    for done, arm in enumerate(arms, start=1):
        found = simulator.simulate(arm, {s: SELECTORS[s] for s in selects}, replicates=replicates, seed=seed)
        for select in selects if arm.schedule != never() else selects[:1]:
            results[Setting(arm, select)] = found.rewards[select], found
        if progress is not None:
            progress(done, len(arms))
    return _decide(results, default, log, tuple(notes))


def grid(particles: Iterable[int], steps: int) -> list[Arm]:
    """The arms that are tried for runs of about so many steps: best-of-N, and each spacing with each ESS target.

    At the usual target also a schedule that waits until it can be reached: where V tells no particles apart, never.
    """
    arms = []
    for n in particles:
        arms.append(Arm(n, never()))
        for k in SPACINGS:
            if k >= max(steps, 2):
                continue
            waiting: Schedule = ess_below(0.5) if k == 1 else every(k) & ess_below(0.5)
            arms += [Arm(n, every(k), ess_target(target)) for target in TARGETS] + [Arm(n, waiting)]
    return arms


def one_standard_error(rewards: Floats, spent: Floats) -> tuple[int, int]:
    """The best of the settings and the cheapest within one standard error of it, as indices.

    Parameters
    ----------
    rewards: [settings, tasks]; the error is that of the difference to the best one over tasks. spent: [settings].
    """
    best = max(range(len(rewards)), key=lambda i: (rewards[i].mean(), -spent[i]))
    behind = rewards[best] - rewards
    error = behind.std(axis=1, ddof=1) / np.sqrt(rewards.shape[1])
    near = np.flatnonzero(behind.mean(axis=1) <= error)
    return best, int(min(near, key=lambda i: (spent[i], -rewards[i].mean())))


def _enough(logged: LoggedRuns, particles: list[int], notes: list[str]) -> tuple[list[int], LoggedRuns]:
    """The values of N that can be simulated, and the tasks with runs enough for all of them."""
    held = {task: len(members) for task, members in logged.per_task.items()}
    counts = [n for n in particles if sum(k >= max(n, FEWEST_RUNS) for k in held.values()) >= FEWEST_TASKS]
    if not counts:
        most = max(held.values())
        raise TuningDataError(
            f"tuning needs at least {FEWEST_TASKS} tasks with {max(particles[0], FEWEST_RUNS)} independent runs each "
            f"that have a reward; the store has {len(held)} tasks with up to {most}: "
            f"amc collect … --particles {max(2 * particles[-1], FEWEST_RUNS)}"
        )
    if dropped := [n for n in particles if n not in counts]:
        notes.append(
            f"N = {', '.join(map(str, dropped))} left out: too few tasks have as many independent runs; collect more"
        )
    tasks = [task for task, k in held.items() if k >= max(counts[-1], FEWEST_RUNS)]
    if left := len(held) - len(tasks):
        notes.append(f"{left} of {len(held)} tasks left out: they have fewer than {counts[-1]} runs")
    log = logged.on(tasks)
    if np.ptp([run.total for run in log.runs]) == 0:
        raise TuningDataError(
            f"all {len(log.runs)} runs earned {log.runs[0].total:g}: there is nothing to choose by; take tasks that "
            "are sometimes solved, or check the reward"
        )
    if min(held[task] for task in tasks) < 1.5 * counts[-1]:
        notes.append(
            f"with N = {counts[-1]} of about as many runs per task, populations are nearly the same each time: "
            f"{2 * counts[-1]} runs per task would tell more"
        )
    return counts, log


def _decide(
    results: dict[Setting, tuple[Floats, Simulated]], default: Setting, log: LoggedRuns, notes: tuple[str, ...]
) -> Tuning:
    settings = list(results)
    rewards = np.stack([reward for reward, _ in results.values()])
    spent = np.stack([found.spent for _, found in results.values()])
    usual = settings.index(default)
    best, picked = one_standard_error(rewards, spent.mean(axis=1))
    held_reward, held_spent = _cross_validated(rewards, spent)
    gain = _over_tasks(held_reward - rewards[usual])
    saving = 1 - float(held_spent.mean() / spent[usual].mean())
    margin = TOLERANCE * float(np.ptp([run.total for run in log.runs]))
    verdict: Verdict = "defaults"
    if gain.low > 0:
        verdict = "better"
    elif saving >= SAVING and gain.low > -margin:
        verdict = "cheaper"
    rows = [
        Row(s, _over_tasks(r), _over_tasks(r - rewards[usual]), float(f.spent.mean()), float(f.resamplings.mean()))
        for s, (r, f) in results.items()
    ]
    per_task = log.per_task.values()
    single = np.array([np.mean([log.runs[i].total for i in members]) for members in per_task])
    return Tuning(
        tuple(sorted(rows, key=lambda row: row.spent)),
        default,
        settings[best],
        settings[picked],
        default if verdict == "defaults" else settings[picked],
        verdict,
        gain,
        saving,
        _over_tasks(single),
        len(per_task),
        len(log.runs),
        log.unit,
        log.fingerprint,
        notes,
    )


def _cross_validated(rewards: Floats, spent: Floats) -> tuple[Floats, Floats]:
    """Reward and cost on each task of what would be picked on the tasks of the other folds."""
    tasks = rewards.shape[1]
    fold = np.random.default_rng(0).permutation(tasks) % FOLDS
    found, cost = np.empty(tasks), np.empty(tasks)
    for f in range(FOLDS):
        inside = fold == f
        _, picked = one_standard_error(rewards[:, ~inside], spent[:, ~inside].mean(axis=1))
        found[inside], cost[inside] = rewards[picked, inside], spent[picked, inside]
    return found, cost


def _over_tasks(scores: Floats) -> Estimate:
    return Estimate(float(scores.mean()), *bootstrap_interval(scores))


def _sharpness(arm: Arm) -> str:
    if arm.schedule == never():
        return "no resampling"
    return f"ESS target {arm.tempering.fraction:g}" if isinstance(arm.tempering, EssTarget) else repr(arm.tempering)
