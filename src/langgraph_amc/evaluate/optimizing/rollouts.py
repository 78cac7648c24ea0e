"""Rollouts of one app with different libraries in its prompt, through the runner, rewards and store of any evaluation.

Whatever the library, a task's repeat has the same seed and the same sampling noise, so that rewards differ by what the
skills say. Each rollout is stored under a name made of everything that fixes it, the library's digest included: one
that has ended is never run again. One that failed, was broken off or could not be judged has no reward: missing, not 0.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evaluate.evolving.rollouts import OutOfBudgetError, SkillsNotReachedError
from langgraph_amc.evaluate.evolving.tally import Tally, all_broken_off
from langgraph_amc.evaluate.execution.executor import Executor
from langgraph_amc.evaluate.runner import Job, NoRewardError, Outcome, paid
from langgraph_amc.policy.budget import Limit, amount
from langgraph_amc.policy.gate import current_account
from langgraph_amc.policy.seeds import mix
from langgraph_amc.runtime.settings import Settings
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.tasks.task import Task
from langgraph_amc.trajectories.store import Record, TrajectoryStore
from langgraph_amc.trajectories.types import Trajectory, Usage

Floats = NDArray[np.float64]
TRAIN, VALIDATION, HELD_OUT = "train", "validation", "held-out"
_COUNTED: tuple[Limit, ...] = ("usd", "tokens", "calls")
MARGIN = 1.5
"""How many times the mean of past rollouts is set aside for one to come: they vary."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a task: in which phase, which task, which time it is."""

    phase: str
    task: str
    repeat: int


@dataclass(slots=True)
class LibraryRollouts:
    """Runs an app with a library, and keeps every trajectory.

    Attributes
    ----------
    tasks: all of them, by id. settings: of one particle. progress: told ``(title, done, total)``.
    tally: what the rollouts of this process have brought. taken: usage of rollouts so far, those in the store too.
    seen: names of rollouts that were asked for. reached: whether a call of the app was given the skills.
    """

    executor: Executor
    store: TrajectoryStore
    settings: Settings
    tasks: Mapping[str, Task]
    seed: int
    concurrency: int
    progress: Callable[[str, int, int], None]
    tally: Tally = field(default_factory=Tally)
    taken: list[Usage] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    reached: bool = False

    async def rewards(
        self, phase: str, library: SkillLibrary, tasks: Sequence[str], repeats: int, title: str
    ) -> Floats:
        """Rewards [tasks, repeats]; NaN where missing."""
        cells = [Cell(phase, task, repeat) for task in tasks for repeat in range(repeats)]
        found = await self._run(library, cells, title)
        rewards = [math.nan if t is None else reward_of(t) for t in found]
        return np.array(rewards, np.float64).reshape(len(tasks), repeats)

    async def trajectories(
        self, library: SkillLibrary, runs: Sequence[tuple[str, int]], title: str
    ) -> list[Trajectory]:
        """Runs of training tasks, (task, repeat) each; those that a budget broke off are left out."""
        cells = [Cell(TRAIN, task, repeat) for task, repeat in runs]
        return [t for t in await self._run(library, cells, title) if t is not None]

    def missing(self, phase: str, library: SkillLibrary, tasks: Sequence[str], repeats: int) -> int:
        """How many of these rollouts have not ended yet."""
        names = [self._name(library, Cell(phase, task, repeat)) for task in tasks for repeat in range(repeats)]
        return len(names) - sum(1 for _ in self.store.trajectories(run_ids=names))

    def affordable(self) -> float:
        """How many more rollouts the budget is likely to pay for, by what they have taken; infinite without one."""
        account, most = current_account.get(), math.inf
        for one in () if account is None else account.chain:
            for limit in _COUNTED:
                left = one.remaining(limit)
                each = math.fsum(amount(usage, limit) for usage in self.taken) / max(1, len(self.taken))
                if left is not None and each:
                    most = min(most, left / (MARGIN * each))
        return most

    async def _run(self, library: SkillLibrary, cells: Sequence[Cell], title: str) -> list[Trajectory | None]:
        """The trajectories of these cells, from the store or run now; ``None`` for one that was broken off."""
        names = [self._name(library, cell) for cell in cells]
        stored = {t.run_id: t for t in self.store.trajectories(run_ids=names)}
        new = [t for name, t in stored.items() if name not in self.seen]
        self.tally.found += len(new)
        self.taken += [t.usage for t in new]
        self.seen.update(names)
        missing = {i: names[i] for i in range(len(cells)) if names[i] not in stored}
        self.progress(title, len(stored), len(cells))
        place = {(cells[i].task, self._noise(cells[i])): i for i in missing}
        failures: list[str] = []
        unjudged: list[str] = []
        instructed = ended = 0
        work = [self._job(library, cells[i]) for i in missing]
        async with aclosing(self.executor.run(work, concurrency=self.concurrency)) as outcomes:
            async for outcome in outcomes:
                i = place[outcome.job.task.id, outcome.job.noise or ()]
                trajectory = self._note(outcome, cells[i], names[i], library)
                instructed += outcome.instructed
                ended += trajectory is not None
                unjudged += outcome.missing
                if trajectory is not None:
                    stored[names[i]] = trajectory
                    failures += [trajectory.error] if trajectory.status == "failed" and trajectory.error else []
                self.progress(title, len(stored), len(cells))
        self.reached = self.reached or instructed > 0 or ended == len(failures)
        self._check([stored.get(name) for name in names], failures, unjudged)
        return [stored.get(name) for name in names]

    def _note(self, outcome: Outcome, cell: Cell, name: str, library: SkillLibrary) -> Trajectory | None:
        """Store a rollout that ended by itself."""
        [trajectory] = outcome.trajectories
        tally = self.tally
        tally.usage = tally.usage + outcome.result.usage
        self.taken.append(outcome.result.usage)
        tally.run += 1
        tally.failed += trajectory.status == "failed"
        tally.missing += len(outcome.missing)
        if not paid(trajectory):
            return None
        trajectory = replace(trajectory, run_id=name)
        about = {"optimizing": cell.phase, "repeat": cell.repeat, "skills": library.digest}
        self.store.add_records(lambda: [Record(trajectory, asdict(outcome.job.task), about)], on_conflict="skip")
        return trajectory

    def _check(self, found: Sequence[Trajectory | None], failures: list[str], unjudged: list[str]) -> None:
        """Raise where going on would be of no use, or would count what a budget stopped as missing."""
        account = current_account.get()
        if account is not None and account.refused is not None:
            raise OutOfBudgetError(f"the budget is used up ({account.refused})")
        if not self.reached:
            raise SkillsNotReachedError(
                "the app ran without one model call that takes skills: let it call its model through "
                "langgraph_amc.chat_model(…), or give create_agent a SkillsMiddleware, or put skills_text() into the "
                "prompt that it makes itself (docs/skills.md)"
            )
        if any(t is not None and not math.isnan(reward_of(t)) for t in found) or not found:
            return
        if failures:
            raise NoRewardError(f"all {len(failures)} rollouts failed, the first with {failures[0]}")
        if unjudged:
            raise NoRewardError(f"none of {len(found)} rollouts could be judged, the first because {unjudged[0]}")
        if any(t is not None for t in found):
            raise NoRewardError(
                f"none of {len(found)} rollouts of an earlier call has a reward, and what has ended is not run again: "
                "give another folder"
            )
        raise all_broken_off(len(found))

    def _job(self, library: SkillLibrary, cell: Cell) -> Job:
        seed = mix(self.seed, cell.phase, cell.repeat)
        return Job(self.tasks[cell.task], seed, self.settings, noise=self._noise(cell), skills=library)

    def _noise(self, cell: Cell) -> tuple[Hashable, ...]:
        return self.seed, cell.phase, cell.task, cell.repeat

    def _name(self, library: SkillLibrary, cell: Cell) -> str:
        told = repr((self.seed, library.digest, cell.phase, cell.task, cell.repeat))
        return "skills-" + hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def reward_of(trajectory: Trajectory) -> float:
    """The reward of a stored rollout; NaN for one that failed or could not be judged."""
    if trajectory.status == "failed" or trajectory.outcome is None:
        return math.nan
    return trajectory.outcome
