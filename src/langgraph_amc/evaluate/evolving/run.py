"""Tuning an app's local model by evolution: train, validate, keep the best, compare it with the base, export it.

Everything is kept in one folder: the history of all updates, every rollout, and the tuned model. The same call goes
on with what is there, whatever ended it.
"""

from __future__ import annotations

import asyncio
import json
import time
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.exporting import export_best
from langgraph_amc.evaluate.evolving.replicas import Replicas, Tuning, local_replicas, remote_replicas
from langgraph_amc.evaluate.evolving.report import (
    Evolution,
    GenerationReport,
    HeldOut,
    ValidationReport,
    columns_of,
    generation_report,
    held_out_report,
)
from langgraph_amc.evaluate.evolving.rollouts import OutOfBudgetError, StoredRollouts
from langgraph_amc.evaluate.evolving.study import HISTORY, MODEL, RESULT, STORE, Study, StudyOptions, check_same
from langgraph_amc.evaluate.execution.executor import LOCAL, LocalExecutor, Processes
from langgraph_amc.evaluate.execution.work import Work, load_served_app
from langgraph_amc.evaluate.statistics import estimate
from langgraph_amc.evolution.history import History, read
from langgraph_amc.evolution.loop import Evolved, Started, Stopped, Validated
from langgraph_amc.evolution.loop import evolve as run_loop
from langgraph_amc.policy.budget import Budget
from langgraph_amc.policy.litellm_setup import load_litellm
from langgraph_amc.policy.usage import LOCAL_PROVIDER
from langgraph_amc.runtime.effects import read_effects
from langgraph_amc.runtime.settings import Settings, read_settings
from langgraph_amc.tasks.loading import load_reward
from langgraph_amc.tasks.rewards import as_reward
from langgraph_amc.tasks.task import TaskSet
from langgraph_amc.trajectories.store import TrajectoryStore

_LOCAL_MODEL = f"{LOCAL_PROVIDER}/"
CONCURRENCY = 64
"""Rollouts at a time, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands, for whoever watches it.

    Attributes
    ----------
    doing: what is being run, of which ``done`` of ``total`` rollouts have ended.
    generation: the last finished one, ``None`` before the first. validation: the last one.
    tokens: of this call. seconds_left: of the generations that may come, ``None`` while nothing is known.
    """

    doing: str
    done: int
    total: int
    generations: int
    generation: GenerationReport | None
    validation: ValidationReport | None
    tokens: int
    seconds_left: float | None


@dataclass(slots=True)
class _Watcher:
    """What has been seen so far, and how it is told."""

    study: Study
    told: Callable[[Standing], None]
    began: float = field(default_factory=time.perf_counter)
    generations: list[GenerationReport] = field(default_factory=list)
    validations: list[ValidationReport] = field(default_factory=list)
    fresh: int = 0
    tokens: Callable[[], int] = lambda: 0

    def tell(self, doing: str, done: int, total: int) -> None:
        last = self.generations[-1] if self.generations else None
        measured = self.validations[-1] if self.validations else None
        standing = Standing(
            doing, done, total, self.study.generations, last, measured, self.tokens(), self._seconds_left()
        )
        self.told(standing)

    def _seconds_left(self) -> float | None:
        if not self.fresh:
            return None
        each = (time.perf_counter() - self.began) / self.fresh
        return each * max(0, self.study.generations - len(self.generations))


class RunOptions(StudyOptions, total=False):
    """Keyword arguments of `evolve`, described at `aevolve`."""

    options: Mapping[str, Any] | None
    concurrency: int
    budget: Budget | None
    executor: str
    workers: int
    progress: Callable[[Standing], None] | None


def evolve(
    app: Any, tasks: TaskSet, reward: Any, *, model: str | Path, out: str | Path, **settings: Unpack[RunOptions]
) -> Evolution:
    """`aevolve`, to be called where no event loop runs; blocking nodes and rewards get as many threads as rollouts."""

    if _in_a_loop():
        raise ConfigurationError("an event loop runs here already: await amc.aevolve(…) instead")

    async def run() -> Evolution:
        threads = ThreadPoolExecutor(settings.get("concurrency", CONCURRENCY) + 4)
        asyncio.get_running_loop().set_default_executor(threads)
        return await aevolve(app, tasks, reward, model=model, out=out, **settings)

    return asyncio.run(run())


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


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

    Raises
    ------
    ConfigurationError: something cannot work, the app's calls do not reach the model, or ``out`` holds another run.
    NoRewardError: all rollouts of a generation failed, or none could be judged.
    OutOfBudgetError: the budget ended it before the end.
    """
    about = Study(tasks, **study)
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise ConfigurationError(f"concurrency is how many rollouts run at a time, at least 1, got {concurrency!r}")
    load_litellm()  # before the app imports it: nothing is looked up in the network
    folder, path = _made(Path(out)), _model_path(model)
    given = {"particles": 1, **_checked(options)}
    graph = load_served_app(app) if isinstance(app, str) else app
    judge = load_reward(reward) if isinstance(reward, str) else as_reward(reward)
    settings = read_settings(graph, **given)
    _warn_of_tools(graph, given.get("effects"))
    tuning = Tuning(path, about.scope, about.strategy.decay > 0, min(concurrency, 256))
    if executor == LOCAL:
        opened: Any = local_replicas(LocalExecutor(graph, judge), tuning)
    else:
        opened = remote_replicas(executor, Work(app, reward, given), settings, tuning, Processes(workers))
    watcher = _Watcher(about, progress or (lambda _: None))
    with nullcontext() if budget is None else budget.open():
        async with opened as replicas:
            with TrajectoryStore(folder / STORE) as store:
                async with _history(replicas, about, path, folder) as history:
                    rollouts = _rollouts(replicas, store, settings, about, concurrency, watcher)
                    found = await _run(rollouts, about, history, watcher)
    evolution = replace(found, model=str(await asyncio.to_thread(_export, folder, path, found.best)))
    (folder / RESULT).write_text(json.dumps(evolution.to_json(), indent=1))
    return evolution


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written ({error.strerror}): give another folder") from error
    return folder


def _model_path(model: str | Path) -> str:
    """The model as the app names it; a folder that is none is an error before anything is loaded."""
    path = str(model).removeprefix(_LOCAL_MODEL)
    local = Path(path).expanduser()
    named = path.startswith((".", "/", "~")) or local.exists()
    if named and not any((local / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise ConfigurationError(f"{path} is no model's folder (it has no config.json): give a Hugging Face folder")
    return str(local) if named else path


def _checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    if given := sorted({"particles", "value", "reward", "seed", "journal"} & (options or {}).keys()):
        raise ConfigurationError(f"a rollout is one plain run: leave {', '.join(given)} out of the options")
    return dict(options or {})


def _warn_of_tools(app: Any, effects: Any) -> None:
    """Say which tools are going to act once per rollout without anybody having said that they may."""
    rules = read_effects(effects, app)
    if rules is not None and (unknown := rules.unclassified()):
        known = f"options={{'effects': {{{unknown[0]!r}: 'pure'}}}}"
        warnings.warn(
            f"nothing is known of the side effects of {', '.join(unknown)}: they act in every rollout; say what they "
            f"do with {known}, on the command line --effects {unknown[0]}=pure (or stateful, deny)",
            stacklevel=3,
        )


@asynccontextmanager
async def _history(replicas: Replicas, study: Study, model: str, folder: Path) -> AsyncIterator[History]:
    """The history in the folder, begun or gone on with."""
    header = study.header(model, await replicas.layout(), await replicas.restore([]))
    with History(folder / HISTORY, header) as history:
        check_same(history.log, header.about, history.path)
        yield history


def _rollouts(
    replicas: Replicas,
    store: TrajectoryStore,
    settings: Settings,
    study: Study,
    concurrency: int,
    watcher: _Watcher,
) -> StoredRollouts:
    validation, held_out = study.measures()
    rollouts = StoredRollouts(
        replicas,
        store,
        settings,
        tasks=study.tasks,
        validation=validation,
        held_out=held_out,
        seed=study.strategy.seed,
        common=study.common_noise,
        concurrency=concurrency,
        progress=watcher.tell,
    )
    watcher.tokens = lambda: rollouts.tally.usage.tokens
    return rollouts


async def _run(rollouts: StoredRollouts, study: Study, history: History, watcher: _Watcher) -> Evolution:
    """Train, and compare the best weights with the base."""
    watcher.generations = [generation_report(record, columns_of(record)) for record in history.log.records]
    stopped = Stopped(0, 0, "")
    async with aclosing(run_loop(study.course(), rollouts, history)) as events:
        async for event in events:
            match event:
                case Started():
                    watcher.began = time.perf_counter()
                case Evolved(record, columns):
                    watcher.generations.append(generation_report(record, columns))
                    watcher.fresh += 1
                case Validated(done, rewards):
                    watcher.validations.append(ValidationReport(done, estimate(rewards)))
                case Stopped():
                    stopped = event
    held_out = await _compare(rollouts, study, history, stopped.best)
    tally = rollouts.tally
    return Evolution(
        None,
        _hash_after(history, stopped.best),
        tuple(watcher.generations),
        tuple(watcher.validations),
        stopped.best,
        stopped.reason,
        held_out,
        tally.run,
        tally.found,
        tally.failed,
        tally.missing,
        tally.usage.tokens,
        time.perf_counter() - watcher.began,
    )


async def _compare(rollouts: StoredRollouts, study: Study, history: History, best: int) -> HeldOut | None:
    """The weights after ``best`` generations and the base, on the held-out tasks."""
    if not len(study.held_out):
        return None
    updates = [record.update for record in history.log.records[:best]]
    await rollouts.restore(updates)
    tuned = await rollouts.compare(_hash_after(history, best))
    await rollouts.restore([])
    base = await rollouts.compare(history.log.header.weights)
    return held_out_report(base, tuned)


def _hash_after(history: History, generations: int) -> str:
    log = history.log
    return log.records[generations - 1].weights if generations else log.header.weights


def _export(folder: Path, model: str, best: int) -> Path:
    return export_best(read(folder / HISTORY), best, model, folder / MODEL)


__all__ = ["Evolution", "OutOfBudgetError", "Standing", "aevolve", "evolve"]
