"""Tuning an app's local model by evolution: train, validate, keep the best, compare it with the base, export it.

Everything is kept in one folder: the history of all updates, every rollout, and the tuned model. The same call goes
on with what is there, whatever ended it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from langgraph_amc.checks import check_path, check_whole
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.exporting import check_place, export_best
from langgraph_amc.evaluate.evolving.identity import identities
from langgraph_amc.evaluate.evolving.kept import HISTORY, MODEL, RESULT, STORE, write_validations
from langgraph_amc.evaluate.evolving.opening import check_call, checked, in_a_loop, made, model_path, warn_of_tools
from langgraph_amc.evaluate.evolving.replicas import Tuning, local_replicas, remote_replicas
from langgraph_amc.evaluate.evolving.report import Evolution, HeldOut, columns_of, held_out_report
from langgraph_amc.evaluate.evolving.rollouts import OutOfBudgetError, StoredRollouts
from langgraph_amc.evaluate.evolving.standing import Standing, Watcher, watched_rollouts
from langgraph_amc.evaluate.evolving.study import Study, StudyOptions, check_same
from langgraph_amc.evaluate.execution.executor import LOCAL, LocalExecutor, Processes
from langgraph_amc.evaluate.execution.work import Work, app_of
from langgraph_amc.evolution.history import Header, History, read
from langgraph_amc.evolution.loop import Evolved, Started, Stopped, Validated
from langgraph_amc.evolution.loop import evolve as run_loop
from langgraph_amc.files import write_whole
from langgraph_amc.policy.budget import Budget
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks.loading import load_reward
from langgraph_amc.tasks.rewards import as_reward
from langgraph_amc.tasks.task import TaskSet
from langgraph_amc.telemetry import names, span
from langgraph_amc.trajectories.store import TrajectoryStore

CONCURRENCY = 64
"""Rollouts at a time, where nothing else is said."""


class RunOptions(StudyOptions, total=False):
    """Keyword arguments of `evolve`, described at `aevolve`."""

    options: Mapping[str, Any] | None
    concurrency: int
    budget: Budget | None
    executor: str
    workers: int
    accept_changes: bool
    progress: Callable[[Standing], None] | None


def evolve(
    app: Any, tasks: TaskSet, reward: Any, *, model: str | Path, out: str | Path, **settings: Unpack[RunOptions]
) -> Evolution:
    """`aevolve`, to be called where no event loop runs; blocking nodes and rewards get as many threads as rollouts."""

    if in_a_loop():
        raise ConfigurationError("an event loop runs here already: await amc.aevolve(…) instead")
    check_whole("concurrency", settings.get("concurrency", CONCURRENCY), 1)

    async def run() -> Evolution:
        threads = ThreadPoolExecutor(settings.get("concurrency", CONCURRENCY) + 4)
        asyncio.get_running_loop().set_default_executor(threads)
        return await aevolve(app, tasks, reward, model=model, out=out, **settings)

    return asyncio.run(run())


async def aevolve(
    app: Any,
    tasks: TaskSet,
    reward: Any,
    *,
    model: str | Path,
    out: str | Path,
    options: Mapping[str, Any] | None = None,
    concurrency: int = CONCURRENCY,
    budget: Budget | None = None,
    executor: str = LOCAL,
    workers: int = 2,
    accept_changes: bool = False,
    progress: Callable[[Standing], None] | None = None,
    **study: Unpack[StudyOptions],
) -> Evolution:
    """Tune the local model that an unchanged app calls, from rewards alone (Agentic ESOpt).

    Parameters
    ----------
    app, reward: objects, or their names as on the command line (``./agent.py:graph``), which other processes need.
    tasks: to train on. study: fields of `Study`: ``validation``, ``held_out``, ``strategy``, ``generations``, …
    model: folder of the model, which the app calls as ``amc-local/<model>`` through LiteLLM. It is not changed.
    out: folder for the history, the rollouts and the tuned model; a run that is there is gone on with.
    options: of `wrap`, for the single particle of a rollout: ``effects``, ``boundary``, a ``budget`` per rollout.
    concurrency: rollouts at a time, over all processes.
    budget: for all model calls of this call together; when it is used up, the next call can go on.
    executor, workers: ``"local"``, or an installed integration, ``"ray"``, and its number of processes.
    accept_changes: go on although the app, the reward or the effects are not those that the run began with.
    progress: told a `Standing` after every rollout; must return at once.

    Raises
    ------
    ConfigurationError: something cannot work, the app's calls do not reach the model, or ``out`` holds another run.
    NoRewardError: all rollouts of a generation failed, or none could be judged.
    OutOfBudgetError: the budget ended it before the end.
    """
    about = Study(tasks, **study)
    processes = Processes(workers)
    check_call(concurrency, budget, executor, progress)
    load_litellm()  # before the app imports it: nothing is looked up in the network
    path = model_path(model)
    folder = made(check_path("out", out), path)
    given = {"particles": 1, **checked(options)}
    graph = app_of(app)
    judge = load_reward(reward) if isinstance(reward, str) else as_reward(reward)
    settings = read_settings(graph, **given)
    warn_of_tools(graph, given.get("effects"))
    tuning = Tuning(path, about.scope, about.strategy.decay > 0, min(concurrency, 256))
    if executor == LOCAL:
        opened: Any = local_replicas(LocalExecutor(graph, judge), tuning)
    else:
        opened = remote_replicas(executor, Work(app, reward, given), settings, tuning, processes)
    ran = identities(graph, judge, given.get("effects"))
    watcher = Watcher(about, progress or (lambda _: None))
    with nullcontext() if budget is None else budget.open():
        async with opened as replicas:
            with TrajectoryStore(folder / STORE) as store:
                header = about.header(path, await replicas.layout(), await replicas.restore([]), ran)
                with _history(header, folder, accept=accept_changes) as history:
                    rollouts = watched_rollouts(replicas, store, settings, about, concurrency, watcher, ran)
                    write_validations(folder, ())
                    served = await replicas.dtype()
                    with span(names.ES_RUN, {names.KIND: "CHAIN", names.MODEL: Path(path).name}):
                        found = await _run(rollouts, about, history, watcher)
    evolution = replace(found, model=str(await asyncio.to_thread(_export, folder, path, found.best, served)))
    write_whole(folder / RESULT, json.dumps(evolution.to_json(), indent=1))
    return evolution


@contextmanager
def _history(header: Header, folder: Path, *, accept: bool) -> Iterator[History]:
    """The history in the folder, begun or gone on with; what would stop the run at its end is found here."""
    with History(folder / HISTORY, header) as history:
        check_same(history.log, header.about, history.path, accept=accept)
        check_place(folder / MODEL, header)
        yield history


async def _run(rollouts: StoredRollouts, study: Study, history: History, watcher: Watcher) -> Evolution:
    """Train, and compare the best weights with the base."""
    for record in history.log.records:
        watcher.known(record, columns_of(record))
    stopped = Stopped(0, 0, "")
    async with aclosing(run_loop(study.course(), rollouts, history)) as events:
        async for event in events:
            match event:
                case Started():
                    watcher.began = time.perf_counter()
                case Evolved(record, columns):
                    watcher.evolved(record, columns)
                case Validated(done, rewards):
                    watcher.validated(done, rewards)
                    write_validations(history.path.parent, watcher.validations)
                case Stopped():
                    stopped = event
    held_out = await _compare(rollouts, study, history, stopped.best, watcher)
    tally, weights = rollouts.tally, _hash_after(history, stopped.best)
    moved = weights != history.log.header.weights
    return Evolution(
        model=None,
        weights=weights,
        generations=tuple(watcher.generations),
        validations=tuple(watcher.validations),
        best=stopped.best,
        stopped=stopped.reason,
        held_out=held_out,
        moved=moved,
        remarks=watcher.remarks(stopped.best, held_out, moved=moved),
        rollouts=tally.run,
        found=tally.found,
        failed=tally.failed,
        unjudged=tally.missing,
        broken_off=tally.broken_off,
        first_failure=tally.first_failure,
        first_unjudged=tally.first_missing,
        tokens=tally.usage.tokens,
        seconds=time.perf_counter() - watcher.began,
    )


async def _compare(
    rollouts: StoredRollouts, study: Study, history: History, best: int, watcher: Watcher
) -> HeldOut | None:
    """The weights after ``best`` generations and the base, on the held-out tasks."""
    if not len(study.held_out):
        return None
    updates = [record.update for record in history.log.records[:best]]
    await rollouts.restore(updates)
    tuned = await rollouts.compare(_hash_after(history, best))
    await rollouts.restore([])
    base = await rollouts.compare(history.log.header.weights)
    watcher.measured(base)
    return held_out_report(base, tuned)


def _hash_after(history: History, generations: int) -> str:
    log = history.log
    return log.records[generations - 1].weights if generations else log.header.weights


def _export(folder: Path, model: str, best: int, dtype: str) -> Path:
    return export_best(read(folder / HISTORY), best, model, folder / MODEL, dtype)


__all__ = ["Evolution", "OutOfBudgetError", "Standing", "aevolve", "evolve"]
