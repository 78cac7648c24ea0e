"""Evolution from rollouts to tuned weights: ask, roll out, tell, apply, write down; validate, stop in time.

The loop knows neither apps nor models: what runs is behind `Rollouts`, and what happens is told as events. Everything
that it decides is a function of the history, so that a run that was killed goes on as if it had not been.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.asktell import Update, ask, tell
from langgraph_amc.evolution.checks import whole
from langgraph_amc.evolution.errors import WeightsError
from langgraph_amc.evolution.history import History, Record
from langgraph_amc.evolution.members import Generation
from langgraph_amc.evolution.racing import Racing, completed, gains_of, go_on
from langgraph_amc.evolution.signal import signal_of
from langgraph_amc.evolution.tracing import traced

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Column:
    """A task that all members of a generation run, and which time it is."""

    task: str
    repeat: int


class Rollouts(Protocol):
    """Runs an app on tasks with the weights as they are or as members perturb them, and keeps the weights."""

    def serving(self, generation: Generation) -> AbstractAsyncContextManager[None]:
        """Inside, `rewards` can be asked of the generation's members."""
        ...

    async def rewards(self, generation: Generation, rows: Sequence[int], columns: Sequence[Column]) -> Floats:
        """Rewards [rows, columns] of these of the generation's members; NaN where missing."""
        ...

    async def validate(self, weights: str) -> Floats:
        """Rewards [tasks, repeats] on the validation tasks with the weights of this hash, which are those there are."""
        ...

    async def validated(self, weights: str) -> Floats:
        """The same of weights of the past, as far as it is known: NaN where it is not. Runs nothing."""
        ...

    async def apply(self, update: Update) -> str:
        """Take a step; returns the hash of the new weights."""
        ...

    async def restore(self, updates: Sequence[Update]) -> str:
        """Make the weights those of the start after these updates; returns their hash."""
        ...


@dataclass(frozen=True, slots=True)
class Course:
    """How long a run goes on and on what.

    Attributes
    ----------
    tasks: ids to train on. batch: how many of them a generation runs, each ``repeats`` times; all in a shuffled order
        before any comes again.
    generations: the most; a run may be gone on with for more.
    validate_every: generations between two validations, 0 for none. patience: validations without a new best after
        which the run stops, ``None`` for never.
    racing: stops members early; ``None`` runs all of them on all tasks.
    """

    tasks: tuple[str, ...]
    generations: int = 50
    batch: int = 16
    repeats: int = 1
    validate_every: int = 5
    patience: int | None = 3
    racing: Racing | None = None

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ConfigurationError("there is no task to train on: check the file, the split and the limit")
        for name, value, least in (
            ("generations", self.generations, 1),
            ("the batch of tasks", self.batch, 1),
            ("repeats", self.repeats, 1),
            ("validate_every", self.validate_every, 0),
            ("patience", 1 if self.patience is None else self.patience, 1),
        ):
            whole(name, value, least)

    def columns(self, seed: int, number: int) -> tuple[Column, ...]:
        """What generation ``number`` runs: a function of the seed, the number and the tasks alone."""
        size = min(self.batch, len(self.tasks))
        places = range(number * size, (number + 1) * size)
        chosen = [_shuffled(self.tasks, seed, at // len(self.tasks))[at % len(self.tasks)] for at in places]
        return tuple(Column(task, repeat) for task in dict.fromkeys(chosen) for repeat in range(self.repeats))

    def validates(self, done: int) -> bool:
        """Whether to validate after so many generations: before the first, every few, and after the last."""
        return self.validate_every > 0 and (done % self.validate_every == 0 or done == self.generations)


@dataclass(frozen=True, slots=True)
class Started:
    """The run starts, or goes on after ``done`` generations."""

    done: int
    weights: str


@dataclass(frozen=True, slots=True)
class Evolved:
    """A generation is over and on the disk. ``run``: rollouts, fewer than all where members stopped early."""

    record: Record
    columns: tuple[Column, ...]
    run: int


@dataclass(frozen=True, slots=True)
class Validated:
    """The weights after ``done`` generations were measured: ``rewards`` [tasks, repeats]; ``best``: better than all."""

    done: int
    rewards: Floats
    best: bool


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run is over. ``best``: after how many generations the weights were best, the last without validation."""

    done: int
    best: int
    reason: str


Event = Started | Evolved | Validated | Stopped


@dataclass(slots=True)
class Patience:
    """The best validation so far, and how many have come since."""

    best: int | None = None
    mean: float = -np.inf
    since: int = 0

    def see(self, done: int, rewards: Floats, *, due: bool = True) -> Validated:
        """Whether these are the best; only a validation that was ``due`` counts against patience."""
        mean = float(np.nanmean(rewards)) if not np.isnan(rewards).all() else -np.inf
        better = self.best is None or mean > self.mean
        self.since = 0 if better else self.since + due
        if better:
            self.best, self.mean = done, mean
        return Validated(done, rewards, better)


async def evolve(course: Course, rollouts: Rollouts, history: History) -> AsyncGenerator[Event, None]:
    """Run a history's strategy to the end of the course, from wherever the history is.

    Raises WeightsError where the weights are not those that the history says, and whatever the rollouts raise; what
    was written until then can be gone on with.
    """
    log = history.log
    weights = await rollouts.restore([record.update for record in log.records])
    if weights != log.weights:
        raise WeightsError(
            f"after {len(log.records)} generations the weights' hash is {weights}, not {log.weights} as in "
            f"{history.path}: the model's files or the history have changed"
        )
    yield Started(len(log.records), weights)
    watch = Patience()
    hashes = [log.header.weights, *(record.weights for record in log.records)]
    for done, known in enumerate(hashes):
        if not course.validate_every:
            break
        due = course.validates(done)
        # Where an earlier call ended, or validated more often, weights were measured that are not due now: they count.
        rewards = await (rollouts.validate if due and known == weights else rollouts.validated)(known)
        if not np.isnan(rewards).all():
            yield watch.see(done, rewards, due=due)
    reason = f"all {course.generations} generations are done"
    if len(log.records) > course.generations:
        reason = f"{len(log.records)} are done already, more than the {course.generations} that are asked for"
    while history.log.state.number < course.generations:
        if course.patience is not None and watch.since >= course.patience:
            reason = f"{watch.since} validations in a row were no better than the one after {watch.best} generations"
            break
        evolved = await _generation(course, rollouts, history)
        yield evolved
        done = history.log.state.number
        if course.validates(done):
            yield await _validated(rollouts, watch, done, evolved.record.weights)
    done = history.log.state.number
    yield Stopped(done, done if watch.best is None else watch.best, reason)


async def _generation(course: Course, rollouts: Rollouts, history: History) -> Evolved:
    generation = ask(history.log.header.strategy, history.log.state)
    with traced(generation) as written:
        evolved = await _evolved(course, rollouts, history, generation)
        written(evolved.record, evolved.run)
    return evolved


async def _evolved(course: Course, rollouts: Rollouts, history: History, generation: Generation) -> Evolved:
    strategy, state = history.log.header.strategy, history.log.state
    columns = course.columns(strategy.seed, generation.number)
    rewards = np.full((len(generation.members), len(columns)), np.nan)
    run = np.zeros(rewards.shape, np.bool_)
    if generation.sigma > 0:
        async with rollouts.serving(generation):
            await _roll_out(course, strategy.antithetic, rollouts, generation, columns, rewards, run)
    if course.racing is None:
        update, state = tell(strategy, state, generation, rewards)
    else:
        update, state = tell(strategy, state, generation, completed(rewards, run))
        update = replace(update, signal=signal_of(gains_of(rewards, strategy.antithetic)))  # of what was really run
    weights = await rollouts.apply(update)
    notes = {"tasks": [column.task for column in columns], "repeats": [column.repeat for column in columns]}
    history.append(Record(update, rewards, state, weights, notes))
    return Evolved(history.log.records[-1], columns, int(run.sum()))


async def _roll_out(
    course: Course,
    antithetic: bool,
    rollouts: Rollouts,
    generation: Generation,
    columns: Sequence[Column],
    rewards: Floats,
    run: NDArray[np.bool_],
) -> None:
    """Fill in the rewards and what was run, block by block where members may stop early."""
    block = len(columns) if course.racing is None else course.racing.block
    going = list(range(len(generation.members)))
    for first in range(0, len(columns), block):
        last = min(first + block, len(columns))
        rewards[going, first:last] = await rollouts.rewards(generation, going, columns[first:last])
        run[going, first:last] = True
        if course.racing is not None and last < len(columns):
            alive = go_on(rewards[:, :last], antithetic=antithetic, columns=len(columns), racing=course.racing)
            going = [row for row in going if alive[row // 2 if antithetic else row]]
            if not going:
                break


async def _validated(rollouts: Rollouts, watch: Patience, done: int, weights: str) -> Validated:
    rewards = await rollouts.validate(weights)
    return watch.see(done, rewards)


def _shuffled(tasks: Sequence[str], seed: int, epoch: int) -> list[str]:
    """The tasks in an order of their own for each epoch."""

    def place(task: str) -> bytes:
        return hashlib.blake2b(f"{seed}\x1f{epoch}\x1f{task}".encode("utf-8", "surrogatepass")).digest()

    return sorted(tasks, key=place)
