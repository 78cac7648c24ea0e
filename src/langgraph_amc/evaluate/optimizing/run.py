"""Optimising the skills of an app: search, write the best library and its diff, compare it with the start's held out.

Everything is kept in one folder: history, trajectories, model answers, the new library. The same call goes on with what
is there, whatever ended it, and pays for nothing twice.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.identity import check_identities, identities
from langgraph_amc.evaluate.evolving.opening import checked, in_a_loop, made, warn_of_tools
from langgraph_amc.evaluate.evolving.rollouts import OutOfBudgetError
from langgraph_amc.evaluate.execution.executor import LocalExecutor
from langgraph_amc.evaluate.execution.work import app_of
from langgraph_amc.evaluate.optimizing.answers import paid_answers
from langgraph_amc.evaluate.optimizing.history import History, Look, Proposed
from langgraph_amc.evaluate.optimizing.loop import Collected, Measured, Planned, Stopped, Tried, optimise
from langgraph_amc.evaluate.optimizing.report import Candidate, HeldOut, Optimization, changes, held_out_report
from langgraph_amc.evaluate.optimizing.rollouts import HELD_OUT, LibraryRollouts
from langgraph_amc.evaluate.optimizing.spending import check_calls
from langgraph_amc.evaluate.optimizing.standing import Standing, Watcher
from langgraph_amc.evaluate.optimizing.study import (
    ANSWERS,
    CHANGES,
    HISTORY,
    RESULT,
    SKILLS,
    STORE,
    Study,
    StudyOptions,
    check_same,
)
from langgraph_amc.evaluate.statistics import estimate
from langgraph_amc.files import write_whole
from langgraph_amc.policy.budget import Budget
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.skills.archive import best_on
from langgraph_amc.skills.edits import describe
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.proposers.extractive import ExtractiveProposer
from langgraph_amc.skills.types import Proposer
from langgraph_amc.tasks.loading import load_reward
from langgraph_amc.tasks.rewards import as_reward
from langgraph_amc.tasks.task import TaskSet
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.trajectories.types import Trajectory, Usage

CONCURRENCY = 16
"""Rollouts at a time, where nothing else is said."""


class RunOptions(StudyOptions, total=False):
    """Keyword arguments of `optimize`, described at `aoptimize`."""

    options: Mapping[str, Any] | None
    concurrency: int
    budget: Budget | None
    progress: Callable[[Standing], None] | None
    evidence: Iterable[Trajectory]
    accept_changes: bool


def optimize(
    app: Any,
    tasks: TaskSet,
    reward: Any,
    *,
    validation: TaskSet,
    out: str | Path,
    skills: SkillLibrary | str | Path | None = None,
    held_out: TaskSet | None = None,
    proposer: Proposer | None = None,
    **options: Unpack[RunOptions],
) -> Optimization:
    """`aoptimize` for a program without an event loop."""
    if in_a_loop():
        raise ConfigurationError("an event loop runs here: await aoptimize(…) instead")
    return asyncio.run(
        aoptimize(
            app,
            tasks,
            reward,
            validation=validation,
            out=out,
            skills=skills,
            held_out=held_out,
            proposer=proposer,
            **options,
        )
    )


async def aoptimize(
    app: Any,
    tasks: TaskSet,
    reward: Any,
    *,
    validation: TaskSet,
    out: str | Path,
    skills: SkillLibrary | str | Path | None = None,
    held_out: TaskSet | None = None,
    proposer: Proposer | None = None,
    options: Mapping[str, Any] | None = None,
    concurrency: int = CONCURRENCY,
    budget: Budget | None = None,
    progress: Callable[[Standing], None] | None = None,
    evidence: Iterable[Trajectory] = (),
    accept_changes: bool = False,
    **study: Unpack[StudyOptions],
) -> Optimization:
    """Find better skills for an unchanged app, from rewards alone: the weights are nobody's business here.

    Parameters
    ----------
    app, reward: objects, or their names as on the command line (``./agent.py:graph``).
    tasks: whose runs proposers see. validation: on which candidates are compared. held_out: on which old and new are
        compared at the end. Further fields of `Study` as keywords: ``rounds``, ``candidates``, ``measured``, …
    out: folder for the new library and everything else; a run that is there is gone on with.
    skills: the library to start from, or its folder, which is not written to; none is an empty one.
    proposer: `ExtractiveProposer()` by default, which asks no model; `LLMProposer("openai/gpt-5.1")`, or your own.
    options: of `wrap`, for the single particle of a rollout: ``effects``, ``boundary``, a ``budget`` per rollout.
    concurrency: rollouts at a time. budget: for all model calls of this call together.
    evidence: trajectories of training tasks from elsewhere, of AMC runs for example (`TrajectoryStore.trajectories`);
        those of other tasks are left out.
    accept_changes: go on although the app, the reward or the effects have changed since the run was begun.

    Raises
    ------
    ConfigurationError: something cannot work, the app's calls take no skills, or ``out`` holds another run.
    NoRewardError: all rollouts of a measurement failed, or none could be judged.
    OutOfBudgetError: the budget ended it in the middle; the best library so far is in ``out``.
    """
    about = Study(tasks, validation, TaskSet() if held_out is None else held_out, **study)
    check_calls(about, budget)
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise ConfigurationError(f"concurrency is how many rollouts run at a time, at least 1, got {concurrency!r}")
    base = skills if isinstance(skills, SkillLibrary) else SkillLibrary() if skills is None else _read(skills, out)
    load_litellm()  # before the app imports it: nothing is looked up in the network
    given = {"particles": 1, **checked(options)}
    graph = app_of(app)
    judge = load_reward(reward) if isinstance(reward, str) else as_reward(reward)
    settings = read_settings(graph, **given)
    warn_of_tools(graph, given.get("effects"))
    folder, watcher = made(Path(out)), Watcher(progress or (lambda _: None), about.rounds)
    same = identities(graph, judge, given.get("effects"))
    known = set(about.tasks.ids)
    more = [trajectory for trajectory in evidence if trajectory.task_id in known]
    with (
        History(folder / HISTORY, about.about() | same, base.digest) as history,
        TrajectoryStore(folder / STORE) as store,
        paid_answers(folder / ANSWERS) as answers,
        nullcontext() if budget is None else budget.open(),
    ):
        check_same(history.about, about.about(), folder)
        check_identities(history.about, same, folder, accept=accept_changes)
        every = {task.id: task for task in (*about.tasks, *about.validation, *about.held_out)}
        executor = LocalExecutor(graph, judge)
        rollouts = LibraryRollouts(executor, store, settings, every, about.seed, concurrency, watcher.tell)
        watcher.tally = rollouts.tally
        run = _Run(about, base, rollouts, history, folder, watcher)
        found = await run.through(proposer or ExtractiveProposer(), more, lambda: answers.given)
    write_whole(folder / RESULT, json.dumps(found.to_json(), indent=1))
    return found


@dataclass(slots=True)
class _Run:
    """One call's run, from the first task to what is written."""

    study: Study
    base: SkillLibrary
    rollouts: LibraryRollouts
    history: History
    folder: Path
    watcher: Watcher
    began: float = field(default_factory=time.perf_counter)

    async def through(self, proposer: Proposer, more: list[Trajectory], answers: Callable[[], int]) -> Optimization:
        """Search and compare."""
        watcher, champion = self.watcher, self.base
        stopped = Stopped(0, "", self.base, ())
        try:
            events = optimise(self.study, self.base, self.rollouts, proposer, self.history, more)
            async with aclosing(events):
                async for event in events:
                    match event:
                        case Planned(plan):
                            watcher.plan = plan
                            watcher.again()
                        case Measured(rewards):
                            watcher.old = watcher.new = estimate(rewards)
                        case Collected(number):
                            watcher.proposed(number, ())
                        case Proposed(number, proposals):
                            watcher.proposed(number, proposals)
                        case Tried(trial, champion, rewards):
                            watcher.trials.append(trial)
                            if trial.outcome == "accepted":
                                watcher.new = estimate(rewards)
                                self._write(champion, None)
                            watcher.again()
                        case Stopped():
                            stopped = event
            held_out = await self._compared(stopped.champion)
        except OutOfBudgetError as error:
            self._write(champion, None)
            raise OutOfBudgetError(
                f"{error}; the best library so far is in {self.folder / SKILLS}: run the same again to go on"
            ) from error
        self._write(stopped.champion, held_out, stopped.reason)
        return self._report(stopped, held_out, answers())

    async def _compared(self, champion: SkillLibrary) -> HeldOut | None:
        """The start's library and the last one on the held-out tasks; what did not change needs no comparison."""
        tasks = self.study.held_out.ids
        if not tasks or champion == self.base:
            return None
        self.history.append(Look(champion.digest))
        repeats = self.study.measured
        old = await self.rollouts.rewards(HELD_OUT, self.base, tasks, repeats, "the old skills, held-out tasks")
        new = await self.rollouts.rewards(HELD_OUT, champion, tasks, repeats, "the new skills, held-out tasks")
        return held_out_report(old, new, self.history.looks)

    def _write(self, library: SkillLibrary, held_out: HeldOut | None, ended: str = "") -> None:
        library.write(self.folder / SKILLS)
        write_whole(self.folder / CHANGES, changes(self.base, library, self.watcher.trials, held_out, ended))

    def _report(self, stopped: Stopped, held_out: HeldOut | None, answers: int) -> Optimization:
        tally = self.rollouts.tally
        usage: Usage = tally.usage
        archive = tuple(
            Candidate(
                entry.library,
                entry.mean,
                best,
                () if entry.proposal is None else tuple(describe(edit) for edit in entry.proposal.edits),
            )
            for entry, best in zip(stopped.archive, best_on(stopped.archive), strict=True)
        )
        return Optimization(
            str(self.folder / SKILLS),
            str(self.folder / CHANGES),
            stopped.champion != self.base,
            tuple(self.watcher.trials),
            stopped.rounds,
            stopped.reason,
            self.watcher.old,
            self.watcher.new,
            held_out,
            archive,
            tally.run,
            tally.found,
            tally.failed,
            tally.missing,
            answers,
            usage.tokens,
            time.perf_counter() - self.began,
        )


def _read(folder: str | Path, out: str | Path) -> SkillLibrary:
    """The library to start from; one that is missing, or is to be written to, is an error."""
    if not Path(folder).is_dir():
        raise ConfigurationError(f"there is no folder {folder} of skills: leave it out to start from none")
    if Path(folder).resolve() == (Path(out) / SKILLS).resolve():
        raise ConfigurationError(f"{folder} is where the new skills are written: copy it elsewhere to start from it")
    return SkillLibrary.read(folder)


__all__ = ["Optimization", "OutOfBudgetError", "Standing", "aoptimize", "optimize"]
