"""Weights and skills from the same rollouts: one generation is a step of the weights and a part of a trial of skills.

Ask, spread the libraries over the members, roll out once, tell; then the gate, when a trial is over, and the next
challengers, when there are none. Everything goes into one line of the history, so a run that was killed goes on with
weights and skills as if it had not been. Without weights (a model behind an API) the members are repeats, and the step
is zero.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.coevolve.design import Arms, assign, by_cell, by_member
from langgraph_amc.coevolve.standing import NOTE, Note, Skills, followed, replay_skills
from langgraph_amc.coevolve.trials import Trials, proposed, verdicts_of
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.asktell import Update, ask, tell
from langgraph_amc.evolution.errors import WeightsError
from langgraph_amc.evolution.history import History, Log, Record
from langgraph_amc.evolution.loop import Column, Course, Patience, Stopped, Validated
from langgraph_amc.evolution.members import Generation
from langgraph_amc.evolution.signal import Trend
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.evolution.tracing import traced
from langgraph_amc.skills.gate import Verdict
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Evidence, Proposer, Rejected
from langgraph_amc.telemetry import names, span

Floats = NDArray[np.float64]


class Rollouts(Protocol):
    """Runs an app on tasks under members' weights and libraries of skills, and keeps the weights."""

    @property
    def weighty(self) -> bool:
        """Whether there are weights to be tuned."""
        ...

    def serving(self, generation: Generation) -> AbstractAsyncContextManager[None]:
        """Inside, `rewards` can be asked of the generation's members."""
        ...

    async def rewards(
        self, generation: Generation, columns: Sequence[Column], libraries: Sequence[SkillLibrary], arms: Arms
    ) -> Floats:
        """Rewards [members, columns], each member with ``libraries[arms[member, column]]``; NaN where missing."""
        ...

    async def evidence(self, log: Sequence[Record], champion: SkillLibrary) -> Evidence:
        """What the generations so far show of this library."""
        ...

    async def validate(self, weights: str, library: SkillLibrary) -> Floats:
        """Rewards [tasks, repeats] on the validation tasks with this library and the weights of this hash, which are
        those there are."""
        ...

    async def validated(self, weights: str, library: SkillLibrary) -> Floats:
        """The same of a library and weights of the past, as far as it is known: NaN where it is not. Runs nothing."""
        ...

    async def apply(self, update: Update) -> str:
        """Take a step; returns the hash of the new weights."""
        ...

    async def restore(self, updates: Sequence[Update]) -> str:
        """Make the weights those of the start after these updates; returns their hash."""
        ...


@dataclass(frozen=True, slots=True)
class Coevolved:
    """A generation is over and on the disk; ``skills`` as they go on, ``refused``: what repeats a reference."""

    record: Record
    columns: tuple[Column, ...]
    verdicts: tuple[Verdict, ...]
    skills: Skills
    refused: tuple[Rejected, ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The run starts, or goes on after these generations."""

    known: tuple[Coevolved, ...]


Event = Started | Coevolved | Validated | Stopped


async def coevolve(
    course: Course,
    trials: Trials,
    rollouts: Rollouts,
    proposer: Proposer,
    history: History,
    references: Sequence[Any] = (),
) -> AsyncGenerator[Event, None]:
    """Run a history's strategy to the end of the course, from wherever the history is.

    The first generation has no evidence to propose anything from, so it tries the champion alone. A proposal that
    repeats one of the ``references`` (of any task: nested as they are) is refused and never tried.

    Raises WeightsError and HistoryError where weights or skills are not those that the history says,
    ConfigurationError for settings that cannot work, and whatever rollouts and proposer raise.
    """
    check_settings(course, trials, history.log.header.strategy)
    log = history.log
    weights = await rollouts.restore([record.update for record in log.records])
    if weights != log.weights:
        raise WeightsError(
            f"after {len(log.records)} generations the weights' hash is {weights}, not {log.weights} as in "
            f"{history.path}: the model's files or the history have changed"
        )
    skills = replay_skills(log)
    yield Started(_known(log))
    watch = Patience()
    for done, (known, champion) in enumerate(standings(history)):
        if not course.validate_every:
            break
        due = course.validates(done)
        # Where an earlier call ended, or validated more often, what is not due now was measured: it counts.
        rewards = await (rollouts.validate if due and known == weights else rollouts.validated)(known, champion)
        if not np.isnan(rewards).all():
            yield watch.see(done, rewards, due=due)
    reason = f"all {course.generations} generations are done"
    while history.log.state.number < course.generations:
        if course.patience is not None and watch.since >= course.patience:
            reason = f"{watch.since} validations in a row were no better than the one after {watch.best} generations"
            break
        if not rollouts.weighty and _nothing_left(history.log, skills):
            reason = "the proposer has nothing more to try, and there are no weights to tune"
            break
        coevolved = await _generation(course, trials, rollouts, proposer, history, skills, references)
        skills = coevolved.skills
        yield coevolved
        done = history.log.state.number
        if course.validates(done):
            yield watch.see(done, await rollouts.validate(history.log.weights, skills.champion))
    done = history.log.state.number
    yield Stopped(done, done if watch.best is None else watch.best, reason)


def standings(history: History) -> list[tuple[str, SkillLibrary]]:
    """Hash of the weights and the champion's library, before the first generation and after each."""
    log = history.log
    start = replay_skills(Log(log.header, ())).champion
    return [(log.header.weights, start), *((c.record.weights, c.skills.champion) for c in _known(log))]


def _known(log: Log) -> tuple[Coevolved, ...]:
    """What a history holds, as it was told when it happened."""
    skills = replay_skills(Log(log.header, ()))
    found = []
    for number, record in enumerate(log.records):
        note = Note.from_json(record.notes[NOTE])
        skills = followed(skills, note, number)
        columns = tuple(map(Column, record.notes["tasks"], record.notes["repeats"]))
        found.append(Coevolved(record, columns, note.verdicts, skills, note.refused))
    return tuple(found)


def _nothing_left(log: Log, skills: Skills) -> bool:
    """Whether a generation tried the champion alone, and the proposer was asked after it for nothing.

    One that was refused what it proposed may have something else.
    """
    if skills.challengers or not log.records:
        return False
    last = Note.from_json(log.records[-1].notes[NOTE])
    return last.asked and len(last.libraries) == 1 and not last.refused


async def _generation(
    course: Course,
    trials: Trials,
    rollouts: Rollouts,
    proposer: Proposer,
    history: History,
    skills: Skills,
    references: Sequence[Any],
) -> Coevolved:
    strategy, state = history.log.header.strategy, history.log.state
    generation = ask(strategy, state)
    columns = course.columns(strategy.seed, generation.number)
    with traced(generation) as written:
        arms = assign(strategy.seed, generation.number, strategy.pairs, len(columns), len(skills.libraries))
        async with rollouts.serving(generation):
            carried = by_member(arms, strategy.antithetic)
            rewards = await rollouts.rewards(generation, columns, skills.libraries, carried)
        told = by_cell(rewards, arms, len(skills.libraries), strategy.antithetic)
        if not rollouts.weighty:
            told = np.full_like(told, np.nan)  # members that are repeats say nothing of directions: no step
        update, after = tell(strategy, state, generation, told)
        notes = {"tasks": [c.task for c in columns], "repeats": [c.repeat for c in columns]}
        pending = Record(update, rewards, after, "", notes | {NOTE: {"arms": arms.tolist()}})
        verdicts, went_on, refused = await _after(
            course, trials, rollouts, proposer, history, skills, pending, references
        )
        fresh = went_on.challengers if went_on.since == generation.number + 1 else ()
        tried = tuple(library.digest for library in skills.libraries)
        asked = generation.number + 1 < course.generations and (bool(verdicts) or not skills.challengers)
        note = Note(arms.tolist(), tried, verdicts, asked, went_on.champion.digest, fresh, refused)
        weights = await rollouts.apply(update)
        history.append(Record(update, rewards, after, weights, notes | {NOTE: note.to_json()}))
        written(history.log.records[-1], rewards.size)
    return Coevolved(history.log.records[-1], columns, verdicts, went_on, refused)


async def _after(
    course: Course,
    trials: Trials,
    rollouts: Rollouts,
    proposer: Proposer,
    history: History,
    skills: Skills,
    pending: Record,
    references: Sequence[Any],
) -> tuple[tuple[Verdict, ...], Skills, tuple[Rejected, ...]]:
    """The gate, where a trial ends with this generation; and where none goes on, the next challengers."""
    verdicts = verdicts_of(trials, history, skills, pending)
    decided = skills.decided(verdicts) if verdicts else skills
    following = pending.update.generation.number + 1
    if decided.challengers or following == course.generations:
        return verdicts, decided, ()
    evidence = await rollouts.evidence((*history.log.records, pending), decided.champion)
    with span(names.SKILL_PROPOSAL, {names.SKILL_VERSION: decided.champion.digest}):
        challengers, refused = await proposed(proposer, decided, evidence, trials.challengers, references)
    decided = decided.refusing(refused)
    return verdicts, decided.challenged(challengers, following) if challengers else decided, refused


def check_settings(course: Course, trials: Trials, strategy: Strategy) -> None:
    """Raise ConfigurationError where these cannot work together, before a folder is made for them."""
    if course.racing is not None:
        raise ConfigurationError("racing stops members before their libraries have been compared: leave it out")
    if strategy.baseline != "task" and not strategy.antithetic:
        raise ConfigurationError("without pairs, baseline 'task' is what takes the skills' effect out: use it")
    if strategy.schedule.at(course.generations - 1, Trend()) <= 0:
        raise ConfigurationError("a schedule that ends at sigma 0 leaves nothing to tell members apart: end above it")
    assign(strategy.seed, 0, strategy.pairs, 0, 1 + trials.challengers)
    trials.check(course)
