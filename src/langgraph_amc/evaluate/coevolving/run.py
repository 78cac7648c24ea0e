"""Co-evolving an app's skills and, where its model is local, the model's weights: one loop, one budget, one folder.

The folder holds the history of both, every rollout, the skills and the tuned model. The same call goes on with what is
there, whatever ended it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from langgraph_amc.checks import check_path, check_whole
from langgraph_amc.coevolve.loop import Coevolved, Started, check_settings, standings
from langgraph_amc.coevolve.loop import coevolve as run_loop
from langgraph_amc.coevolve.standing import NOTE, Skills, library_to_json
from langgraph_amc.coevolve.trials import Trials
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.coevolving.remembering import Remembered
from langgraph_amc.evaluate.coevolving.report import Coevolution, Trial, refused_of, trials_of
from langgraph_amc.evaluate.coevolving.rollouts import NO_WEIGHTS, SkilledRollouts, Weightless
from langgraph_amc.evaluate.coevolving.sharing import count_sharing
from langgraph_amc.evaluate.evolving.identity import identities
from langgraph_amc.evaluate.evolving.kept import HISTORY, MODEL, RESULT, STORE
from langgraph_amc.evaluate.evolving.opening import check_call, checked, in_a_loop, made, model_path, warn_of_tools
from langgraph_amc.evaluate.evolving.replicas import Replicas, Tuning, local_replicas
from langgraph_amc.evaluate.evolving.report import HeldOut, held_out_report
from langgraph_amc.evaluate.evolving.rollouts import StoredRollouts
from langgraph_amc.evaluate.evolving.standing import Standing, Watcher, watched_rollouts
from langgraph_amc.evaluate.evolving.study import Study, StudyOptions, check_same
from langgraph_amc.evaluate.execution.executor import LOCAL, LocalExecutor
from langgraph_amc.evaluate.execution.work import app_of
from langgraph_amc.evaluate.optimizing.answers import paid_answers
from langgraph_amc.evolution.history import Header, History, read
from langgraph_amc.evolution.loop import Stopped, Validated
from langgraph_amc.files import write_whole
from langgraph_amc.policy.budget import Budget
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Proposer
from langgraph_amc.tasks.loading import load_reward
from langgraph_amc.tasks.rewards import as_reward
from langgraph_amc.tasks.task import TaskSet
from langgraph_amc.trajectories.store import TrajectoryStore

SKILLS, ANSWERS = "skills", "answers.sqlite"
"""Names in a run's folder: of the library's folder, and of the answers of models behind an API."""
CONCURRENCY = 64


class RunOptions(StudyOptions, total=False):
    """Keyword arguments of `coevolve`, described at `acoevolve`."""

    skills: SkillLibrary | str | Path | None
    model: str | Path | None
    trials: Trials
    options: Mapping[str, Any] | None
    concurrency: int
    budget: Budget | None
    accept_changes: bool
    progress: Callable[[Standing], None] | None


@dataclass(slots=True)
class _Seen:
    """What the loop has told so far."""

    trials: list[Trial] = field(default_factory=list)
    refused: tuple[str, ...] = ()
    stopped: Stopped = field(default_factory=lambda: Stopped(0, 0, ""))


def coevolve(
    app: Any, tasks: TaskSet, reward: Any, proposer: Proposer, *, out: str | Path, **settings: Unpack[RunOptions]
) -> Coevolution:
    """`acoevolve` where no event loop runs; blocking nodes and rewards get as many threads as rollouts."""
    if in_a_loop():
        raise ConfigurationError("an event loop runs here already: await acoevolve(…) instead")
    concurrency = settings.get("concurrency", CONCURRENCY)
    check_whole("concurrency", concurrency, 1)

    async def run() -> Coevolution:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(concurrency + 4))
        return await acoevolve(app, tasks, reward, proposer, out=out, **settings)

    return asyncio.run(run())


async def acoevolve(
    app: Any,
    tasks: TaskSet,
    reward: Any,
    proposer: Proposer,
    *,
    out: str | Path,
    skills: SkillLibrary | str | Path | None = None,
    model: str | Path | None = None,
    trials: Trials | None = None,
    options: Mapping[str, Any] | None = None,
    concurrency: int = CONCURRENCY,
    budget: Budget | None = None,
    accept_changes: bool = False,
    progress: Callable[[Standing], None] | None = None,
    **study: Unpack[StudyOptions],
) -> Coevolution:
    """Evolve the skills in an unchanged app's prompt, and its local model's weights, from the same rollouts.

    Parameters
    ----------
    app, reward: objects, or their names as on the command line. tasks: to train on, weights and skills alike.
    proposer: of edits of the skills, from what the rollouts show (`skills.proposers`).
    out: folder for the history, the rollouts, the skills and the tuned model; a run that is there is gone on with.
    skills: the library to start from, or its folder; it is not changed. ``None`` starts without any.
    model: folder of the model, which the app calls as ``amc-local/<model>``; its weights are tuned. ``None``: skills
        alone, members are repeats, and ``strategy.population`` says how many of each task.
    trials: how challengers are tried. study: fields of `Study`: ``validation``, ``strategy``, ``generations``, …
    options, concurrency, budget, accept_changes, progress: as for `aevolve`.

    Raises
    ------
    ConfigurationError: something cannot work, the app's calls reach neither model nor skills, or ``out`` holds
        another run. NoRewardError, OutOfBudgetError: as for `aevolve`.
    """
    about = _study(tasks, study, weighty=model is not None)
    tried = trials or Trials()
    check_settings(about.course(), tried, about.strategy)
    check_call(concurrency, budget, LOCAL, progress)
    load_litellm()  # before the app imports it: nothing is looked up in the network
    path = None if model is None else model_path(model)
    folder, begun = made(check_path("out", out), path), _library(skills)
    given = {"particles": 1, **checked(options)}
    graph = app_of(app)
    judge = load_reward(reward) if isinstance(reward, str) else as_reward(reward)
    settings = read_settings(graph, **given)
    warn_of_tools(graph, given.get("effects"))
    ran = identities(graph, judge, given.get("effects"))
    noted = ran | {
        NOTE: library_to_json(begun),
        "trials": asdict(tried),
        "proposer": proposer.name,
    }
    watcher = Watcher(about, progress or (lambda _: None))
    with (
        nullcontext() if budget is None else budget.open(),
        paid_answers(folder / ANSWERS),
        TrajectoryStore(folder / STORE) as store,
    ):
        async with _replicas(graph, judge, about, path, concurrency) as replicas:
            header = about.header(path or "", await replicas.layout(), await replicas.restore([]), noted)
            with _history(header, folder, weighty=path is not None, accept=accept_changes) as history:
                inner = watched_rollouts(replicas, store, settings, about, concurrency, watcher, ran)
                rollouts = SkilledRollouts(inner, weighty=path is not None, start=header.weights)
                found = await _run(rollouts, inner, about, tried, Remembered(proposer), history, watcher, store)
                library = standings(history)[found.best][1]
    library.write(folder / SKILLS)
    if path is not None:
        found = replace(found, model=str(await asyncio.to_thread(_export, folder, path, found.best)))
    done = replace(found, skills=str(folder / SKILLS))
    write_whole(folder / RESULT, json.dumps(done.to_json(), indent=1))
    return done


def _study(tasks: TaskSet, given: StudyOptions, *, weighty: bool) -> Study:
    """The study; without weights members are repeats, each with random numbers of its own."""
    study = Study(tasks, **given)
    if weighty:
        return study
    return replace(study, common_noise=False, strategy=replace(study.strategy, antithetic=False))


def _library(skills: SkillLibrary | str | Path | None) -> SkillLibrary:
    if skills is None or isinstance(skills, SkillLibrary):
        return skills or SkillLibrary()
    return SkillLibrary.read(check_path("skills", skills))


@asynccontextmanager
async def _replicas(
    app: Any, reward: Any, study: Study, model: str | None, concurrency: int
) -> AsyncIterator[Replicas]:
    executor = LocalExecutor(app, reward)
    if model is None:
        yield Weightless(executor)
        return
    tuning = Tuning(model, study.scope, study.strategy.decay > 0, min(concurrency, 256))
    async with local_replicas(executor, tuning) as replicas:
        yield replicas


@contextmanager
def _history(header: Header, folder: Path, *, weighty: bool, accept: bool) -> Iterator[History]:
    """The history in the folder, begun or gone on with; what would stop the run at its end is found here."""
    with History(folder / HISTORY, header) as history:
        check_same(history.log, header.about, history.path, accept=accept)
        if weighty:
            from langgraph_amc.evaluate.evolving.exporting import check_place  # PyTorch

            check_place(folder / MODEL, header)
        yield history


async def _run(
    rollouts: SkilledRollouts,
    inner: StoredRollouts,
    study: Study,
    trials: Trials,
    proposer: Proposer,
    history: History,
    watcher: Watcher,
    store: TrajectoryStore,
) -> Coevolution:
    """Train both, and compare the best of them with the start."""
    seen = await _watched(rollouts, study, trials, proposer, history, watcher)
    best = seen.stopped.best
    weights, library = standings(history)[best]
    held_out = await _compare(inner, study, history, best)
    tally = inner.tally
    return Coevolution(
        skills="",
        model=None,
        library=library.digest,
        weights=weights,
        generations=tuple(watcher.generations),
        trials=tuple(seen.trials),
        refused=seen.refused,
        validations=tuple(watcher.validations),
        best=best,
        stopped=seen.stopped.reason,
        held_out=held_out,
        sharing=count_sharing(history.log, store, weighty=weights != NO_WEIGHTS),
        rollouts=tally.run,
        found=tally.found,
        failed=tally.failed,
        tokens=tally.usage.tokens,
        seconds=time.perf_counter() - watcher.began,
    )


async def _watched(
    rollouts: SkilledRollouts, study: Study, trials: Trials, proposer: Proposer, history: History, watcher: Watcher
) -> _Seen:
    """Run the loop to its end, and note what it tells."""
    seen = _Seen()
    skills: Skills | None = None
    references = [task.reference for part in (study.tasks, study.validation, study.held_out) for task in part]
    async with aclosing(run_loop(study.course(), trials, rollouts, proposer, history, references)) as events:
        async for event in events:
            match event:
                case Started(known=known):
                    watcher.began = time.perf_counter()
                    for told in known:
                        skills = _noted(seen, skills, told)
                        watcher.known(told.record, told.columns)
                case Coevolved(record, columns):
                    skills = _noted(seen, skills, event)
                    watcher.evolved(record, columns)
                case Validated(done, rewards):
                    watcher.validated(done, rewards)
                case Stopped():
                    seen.stopped = event
    return seen


def _noted(seen: _Seen, before: Skills | None, event: Coevolved) -> Skills:
    """Note the trial that ended with a generation, and what was refused after it."""
    seen.refused += refused_of(event.refused)
    if event.verdicts and before is not None:
        number = event.record.update.generation.number
        champion = event.skills.champion.digest
        seen.trials += trials_of(before.since, number, before.challengers, event.verdicts, champion)
    return event.skills


async def _compare(rollouts: StoredRollouts, study: Study, history: History, best: int) -> HeldOut | None:
    """Weights and skills after ``best`` generations, and those of the start, on the held-out tasks."""
    if not len(study.held_out):
        return None
    found = standings(history)
    await rollouts.restore([record.update for record in history.log.records[:best]])
    end = await rollouts.compare(*found[best])
    await rollouts.restore([])
    start = await rollouts.compare(*found[0])
    return held_out_report(start, end)


def _export(folder: Path, model: str, best: int) -> Path:
    from langgraph_amc.evaluate.evolving.exporting import export_best  # PyTorch

    return export_best(read(folder / HISTORY), best, model, folder / MODEL)
