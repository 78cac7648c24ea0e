"""Training the local model of an unchanged app by policy gradients: rollouts, steps, measurements, one folder."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.opening import checked
from langgraph_amc.evaluate.statistics import estimate, paired
from langgraph_amc.evolution.export import export
from langgraph_amc.evolution.layout import layout
from langgraph_amc.evolution.weights import Weights
from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.engines import get_engine, loaded_engine
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks.rewards import as_reward
from langgraph_amc.tasks.task import Task, TaskSet
from langgraph_amc_trl.batches import Lesson, lesson_of
from langgraph_amc_trl.divergence import check_trained
from langgraph_amc_trl.method import GRPO
from langgraph_amc_trl.recording import recording
from langgraph_amc_trl.records import MODEL, Ledger, Measurement, StepRecord, Trained
from langgraph_amc_trl.rollouts import Groups, Rollouts
from langgraph_amc_trl.trainer import quiet, trainer_for

T = TypeVar("T")
Record = StepRecord | Measurement
_LOCAL_MODEL = "amc-local/"


def train(
    app: Any,
    tasks: Iterable[Task],
    reward: Callable[..., Any],
    *,
    model: str | Path,
    out: str | Path,
    method: GRPO | None = None,
    held_out: Iterable[Task] = (),
    repeats: int = 4,
    every: int = 10,
    options: Mapping[str, Any] | None = None,
    concurrency: int = 64,
    progress: Callable[[Record], None] | None = None,
) -> Trained:
    """Train the local model that an unchanged app calls, by GRPO (Shao et al. 2024) through TRL.

    Blocks, and is to be called where no event loop runs. The weights that are trained are those that the engine
    serves; a model in bfloat16 or float16 gets float32 masters. The model's files are not changed.

    Parameters
    ----------
    tasks: trained on, in an order drawn from the seed; those that do not fill a last batch wait for the next round.
    reward: as everywhere else, over a finished run; a failed or unjudged run is left out.
    model: folder of the model, which the app calls as ``amc-local/<model>`` through LiteLLM.
    out: new folder for ``steps.jsonl`` and the tuned model.
    held_out: tasks to measure on, ``repeats`` runs each, before the first step, after ``every`` steps and at the end.
    options: of `wrap`, for the single particle of a rollout: ``effects``, ``boundary``, a ``budget`` per rollout.
    concurrency: rollouts at a time.
    progress: told every record as it comes; the engine serves the weights as they are then.

    Raises
    ------
    ConfigurationError: something cannot work, the app's calls do not reach the model or sample otherwise than
        ``method`` says, or ``out`` holds a run.
    NoRewardError: all rollouts of a step failed, or none could be judged.
    DivergedError: losses or weights became no numbers.
    """
    method = GRPO() if method is None else method
    chosen, measured = TaskSet(tasks), TaskSet(held_out)
    _check(method, chosen, measured, repeats, every, concurrency)
    path = _model_path(model)
    settings = read_settings(app, **{"particles": 1, **checked(options)})
    judge = as_reward(reward)
    with _served(path, concurrency) as engine, _loop(concurrency) as wait, recording(engine) as recorder:
        weights = Weights(engine.model, layout(engine.model))
        rollouts = Rollouts(app, judge, settings, recorder, method.temperature, method.seed, concurrency)
        with closing(Ledger(Path(out))) as ledger:
            about = {"model": path, "method": asdict(method), "weights": weights.hash(), "trl": version("trl")}
            ledger.note("start", about)
            course = _Course(method, chosen, measured, repeats, every, rollouts, wait, ledger, progress)
            with (
                tempfile.TemporaryDirectory() as scratch,
                trainer_for(engine, method, len(chosen), course.roll, course.learned, scratch) as trainer,
            ):
                trainer.train()
                engine.model.eval()
            check_trained(engine.model, method.learning_rate, course.losses)
            course.measure(method.steps)
            with quiet():
                folder = export(weights, Path(out) / MODEL, source=path if Path(path).is_dir() else None)
            trained = course.result(folder, weights.hash())
            ledger.note("end", {"weights": trained.weights, "seconds": trained.seconds})
            return trained


def _check(method: GRPO, tasks: TaskSet, held_out: TaskSet, repeats: int, every: int, concurrency: int) -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ConfigurationError("train blocks, and an event loop runs here: await asyncio.to_thread(train, …)")
    if not isinstance(method, GRPO):
        raise ConfigurationError(f"method is GRPO, e.g. GRPO(learning_rate=1e-5), got {method!r}")
    if len(tasks) < method.tasks:
        raise ConfigurationError(f"{len(tasks)} tasks do not fill a batch of {method.tasks}: lower GRPO(tasks=…)")
    if both := set(tasks.ids) & set(held_out.ids):
        raise ConfigurationError(f"{len(both)} task(s) are trained on and held out, the first {min(both)!r}")
    for name, given in (("repeats", repeats), ("every", every), ("concurrency", concurrency)):
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise ConfigurationError(f"{name} is a whole number of at least 1, got {given!r}")


def _model_path(model: str | Path) -> str:
    path = str(model).removeprefix(_LOCAL_MODEL)
    if not path:
        raise ConfigurationError("model is empty: give the model's folder")
    return path


@contextmanager
def _served(path: str, concurrency: int) -> Iterator[BatchEngine]:
    """A fresh engine for the model as it is in its files, which ends with the run: nobody else meets its weights."""
    used = loaded_engine(path)
    if used is not None:
        used.close()
    engine = get_engine(path, max_batch=min(concurrency, 256))
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def _loop(concurrency: int) -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """One event loop for all rollouts, with a thread for each one's blocking nodes."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(ThreadPoolExecutor(concurrency + 4))
        yield runner.run


@dataclass(slots=True)
class _Course:
    """What happens between optimiser steps, and what has been seen so far."""

    method: GRPO
    tasks: Sequence[Task]
    held_out: Sequence[Task]
    repeats: int
    every: int
    rollouts: Rollouts
    wait: Callable[[Coroutine[Any, Any, Any]], Any]
    ledger: Ledger
    progress: Callable[[Record], None] | None
    records: list[Record] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    _step: int = 0
    _groups: Groups | None = None
    _lesson: Lesson | None = None
    _prompt_tokens: int = 0
    _answer_tokens: int = 0
    _rolled: tuple[float, float] = (0.0, 0.0)

    def roll(self, step: int, chosen: Sequence[int]) -> Lesson:
        """Measure where it is time to, and run the step's groups."""
        if step % self.every == 0:
            self.measure(step)
        before = time.perf_counter()
        tasks = [self.tasks[i] for i in chosen]
        groups: Groups = self.wait(self.rollouts.groups(step, tasks, self.method.group))
        lesson = lesson_of(groups, self.method)
        calls = [call for trajectory in groups.calls for call in trajectory]
        self._prompt_tokens += sum(len(call.prompt) for call in calls)
        self._answer_tokens += sum(len(call.answer) for call in calls)
        self._step, self._groups, self._lesson = step, groups, lesson
        self._rolled = before, time.perf_counter()
        return lesson

    def learned(self, logged: list[dict[str, float]]) -> None:
        """Record a step, from what TRL logged of its optimiser steps."""
        groups, lesson = self._groups, self._lesson
        assert groups is not None
        assert lesson is not None
        spread = np.nanmax(groups.rewards, axis=1, initial=-np.inf) > np.nanmin(groups.rewards, axis=1, initial=np.inf)
        began, rolled = self._rolled
        self._tell(
            StepRecord(
                step=self._step + 1,
                trajectories=self.rollouts.trajectories,
                reward=float(np.nanmean(groups.rewards)),
                judged=int((~np.isnan(groups.rewards)).sum()),
                failed=groups.failed,
                unjudged=groups.unjudged,
                unequal=int(spread.sum()),
                sequences=len(lesson.sequences),
                sampled_tokens=lesson.sampled_tokens,
                prompt_tokens=self._prompt_tokens,
                answer_tokens=self._answer_tokens,
                learning_rate=logged[-1]["learning_rate"],
                loss=_mean(logged, "loss"),
                entropy=_mean(logged, "entropy"),
                clipped=_mean(logged, "clip_ratio/region_mean"),
                kl=_mean(logged, "kl"),
                gradient_norm=_mean(logged, "grad_norm"),
                rollout_seconds=rolled - began,
                training_seconds=time.perf_counter() - rolled,
            )
        )

    def measure(self, step: int) -> None:
        """Run the held-out tasks with the weights as they are, if there are any."""
        if not self.held_out:
            return
        rewards = self.wait(self.rollouts.measured(self.held_out, self.repeats))
        self._tell(Measurement(step, self.rollouts.trajectories, rewards, estimate(rewards)))

    @property
    def losses(self) -> list[float | None]:
        """Of each step."""
        return [record.loss for record in self.records if isinstance(record, StepRecord)]

    def result(self, folder: Path, weights: str) -> Trained:
        """The whole run."""
        steps = tuple(r for r in self.records if isinstance(r, StepRecord))
        measurements = tuple(r for r in self.records if isinstance(r, Measurement))
        gain = paired(measurements[-1].rewards, measurements[0].rewards) if measurements else None
        return Trained(
            str(folder),
            weights,
            steps,
            measurements,
            self.rollouts.trajectories,
            gain,
            self.rollouts.first_failure,
            time.perf_counter() - self.began,
        )

    def _tell(self, record: Record) -> None:
        self.records.append(record)
        self.ledger.add(record)
        if self.progress is not None:
            self.progress(record)


def _mean(logged: Sequence[Mapping[str, float]], name: str) -> float | None:
    known = [value for logs in logged if (value := logs.get(name)) is not None]
    return sum(known) / len(known) if known else None
