"""Automatic heuristic design: a population of functions that a model writes, and the model's weights beside it.

One generation: the strategy's members each answer the same requests, so an answer is a candidate for the population
and a sample for the step of the weights at once (the EoH setting of Agentic ESOpt). There, each direction is compared
with a parent of its own; here all members answer about the same parents with the same random numbers, so that answers
in a column differ by the weights alone, and a column's mean is their baseline.

What an answer earns is its rank in its column: scores of one generation may lie orders of magnitude apart, and what
failed is below all that ran, whatever it scored.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.asktell import Update, ask, tell
from langgraph_amc.evolution.checks import whole
from langgraph_amc.evolution.errors import WeightsError
from langgraph_amc.evolution.history import History, Record
from langgraph_amc.evolution.members import Generation
from langgraph_amc.heuristics.asking import OPERATORS, Request, Writer, prompt_of
from langgraph_amc.heuristics.judging import Judged, judge
from langgraph_amc.heuristics.problems import Problem
from langgraph_amc.heuristics.sandbox import Limits

Floats = NDArray[np.float64]
_LATER = ("change", "tune", "differ", "combine")
NOTE = "candidates"


class Weights(Protocol):
    """The weights that write: a local model's, or none."""

    @property
    def weighty(self) -> bool:
        """Whether there are any to be tuned."""
        ...

    def serving(self, generation: Generation) -> AbstractAsyncContextManager[None]:
        """Inside, requests may name members of this generation."""
        ...

    async def apply(self, update: Update) -> str:
        """Take a step; returns the hash of the new weights."""
        ...

    async def restore(self, updates: Sequence[Update]) -> str:
        """Make the weights those of the start after these updates; returns their hash."""
        ...


@dataclass(frozen=True, slots=True)
class Search:
    """How functions are searched.

    Attributes
    ----------
    generations: each asks ``population * requests`` times, the population being the strategy's.
    requests: questions that every member answers in a generation, each with an operator of its own.
    kept: functions in the population. instances: that a function is scored on. seed: of instances and parents.
    parallel: functions that run at a time.
    """

    generations: int = 20
    requests: int = 1
    kept: int = 10
    instances: int = 4
    seed: int = 0
    parallel: int = 2
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name, least in (("generations", 1), ("requests", 1), ("kept", 2), ("instances", 1), ("parallel", 1)):
            whole(name, getattr(self, name), least)
        whole("seed", self.seed, 0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function that ran: its score, and the generation, operator and member that it is of."""

    source: str
    score: float
    generation: int
    operator: str


@dataclass(frozen=True, slots=True)
class Searched:
    """A generation is over and on the disk.

    Attributes
    ----------
    judged: [members][requests]. population: after it, best first.
    """

    record: Record
    judged: tuple[tuple[Judged, ...], ...]
    population: tuple[Candidate, ...]

    @property
    def failures(self) -> dict[str, int]:
        """How many answers failed, by kind."""
        kinds = [j.failure for row in self.judged for j in row if j.failure is not None]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


async def search(
    problem: Problem, settings: Search, writer: Writer, weights: Weights, history: History
) -> AsyncGenerator[Searched, None]:
    """Run a history's strategy for so many generations, from wherever the history is; what it holds is told first.

    Raises WeightsError where the weights are not the history's, and whatever the writer and the sandbox raise.
    """
    log = history.log
    found = await weights.restore([record.update for record in log.records])
    if found != log.weights:
        raise WeightsError(
            f"after {len(log.records)} generations the weights' hash is {found}, not {log.weights} as in {history.path}"
        )
    population: tuple[Candidate, ...] = ()
    for record in log.records:
        judged = tuple(tuple(Judged(**told) for told in row) for row in record.notes[NOTE])
        population = survivors(population, judged, record.notes["operators"], settings.kept, record.update.generation)
        yield Searched(record, judged, population)
    instances = problem.instances(settings.seed, settings.instances)
    while history.log.state.number < settings.generations:
        searched = await _generation(problem, settings, writer, weights, history, population, instances)
        population = searched.population
        yield searched


async def _generation(
    problem: Problem,
    settings: Search,
    writer: Writer,
    weights: Weights,
    history: History,
    population: tuple[Candidate, ...],
    instances: Sequence[Any],
) -> Searched:
    strategy, state = history.log.header.strategy, history.log.state
    generation = ask(strategy, state)
    questions = [_question(problem, settings, population, generation.number, i) for i in range(settings.requests)]
    async with weights.serving(generation):
        answers = await _answers(writer, generation, questions, alike=weights.weighty)
    judged = await _judged(problem, settings, answers, instances)
    rewards = np.stack([ranks([row[i] for row in judged]) for i in range(settings.requests)], axis=1)
    told = rewards if weights.weighty else np.full_like(rewards, np.nan)
    update, after = tell(strategy, state, generation, told)
    operators = [question.operator for question in questions]
    notes = {"operators": operators, NOTE: [[asdict(j) for j in row] for row in judged]}
    history.append(Record(update, rewards, after, await weights.apply(update), notes))
    left = survivors(population, judged, operators, settings.kept, generation)
    return Searched(history.log.records[-1], judged, left)


def _question(
    problem: Problem, settings: Search, population: tuple[Candidate, ...], number: int, column: int
) -> Request:
    """The request of a column: its operator in turn, its parents the likelier the better they are."""
    rng = np.random.default_rng([settings.seed, number, column])
    operator = _LATER[(number * settings.requests + column) % len(_LATER)] if population else "start"
    wanted = OPERATORS[operator][0]
    if wanted > len(population):
        operator, wanted = "change", 1
    chance = 1 / (1 + np.arange(len(population)) + len(population))  # EoH's: 1 / (rank + size)
    chosen: list[int] = []
    if wanted:
        chosen = rng.choice(len(population), size=wanted, replace=False, p=chance / chance.sum()).tolist()
    parents = [(population[i].source, population[i].score) for i in chosen]
    prompt = prompt_of(problem, operator, parents)
    return Request(operator, tuple(source for source, _ in parents), prompt, noise=(settings.seed, number, column))


async def _answers(
    writer: Writer, generation: Generation, questions: Sequence[Request], *, alike: bool
) -> list[list[str]]:
    """[members][requests]. Without weights every answer is a sample of its own."""

    def asked(question: Request, place: int) -> Request:
        member = generation.members[place]
        noise = question.noise if alike else (*question.noise, member.pair, member.sign)
        return Request(question.operator, question.parents, question.prompt, member, noise)

    async with asyncio.TaskGroup() as group:
        rows = [
            [group.create_task(writer.write(asked(question, place))) for question in questions]
            for place in range(len(generation.members))
        ]
    return [[task.result() for task in row] for row in rows]


async def _judged(
    problem: Problem, settings: Search, answers: Sequence[Sequence[str]], instances: Sequence[Any]
) -> tuple[tuple[Judged, ...], ...]:
    """Each different answer is run once."""
    gate = asyncio.Semaphore(settings.parallel)

    async def run(answer: str) -> Judged:
        async with gate:
            return await asyncio.to_thread(judge, problem, answer, instances, settings.limits)

    different = list(dict.fromkeys(answer for row in answers for answer in row))
    found: Mapping[str, Judged] = dict(zip(different, await asyncio.gather(*map(run, different)), strict=True))
    return tuple(tuple(found[answer] for answer in row) for row in answers)


def ranks(column: Sequence[Judged]) -> Floats:
    """Ranks from -0.5 to 0.5, equals sharing theirs; what failed shares the lowest."""
    scores = np.array([-math.inf if j.score is None else j.score for j in column])
    below = (scores[None, :] < scores[:, None]).sum(axis=1)
    alike = (scores[None, :] == scores[:, None]).sum(axis=1)
    shared: Floats = (below + (alike - 1) / 2) / max(1, len(column) - 1) - 0.5
    return shared


def survivors(
    population: Sequence[Candidate],
    judged: Sequence[Sequence[Judged]],
    operators: Sequence[str],
    kept: int,
    generation: Generation,
) -> tuple[Candidate, ...]:
    """The best functions with different scores; of equal ones the older, for the same score is mostly the same idea."""
    fresh = [
        Candidate(j.source, j.score, generation.number, operator)
        for row in judged
        for j, operator in zip(row, operators, strict=True)
        if j.score is not None
    ]
    found: dict[float, Candidate] = {}
    for candidate in (*population, *fresh):
        found.setdefault(round(candidate.score, 9), candidate)
    return tuple(sorted(found.values(), key=lambda c: -c.score)[:kept])


def run_identity(problem: Problem, settings: Search, writer: Writer) -> dict[str, Any]:
    """What a history says of the search, and what must be the same to go on with it."""
    if not problem.arguments:
        raise ConfigurationError(f"the problem {problem.name} gives its function no arguments")
    limits = asdict(settings.limits)
    about = {"problem": repr(problem), "writer": writer.name, "limits": limits | {"modules": list(limits["modules"])}}
    same = {name: getattr(settings, name) for name in ("requests", "kept", "instances", "seed")}
    digest = hashlib.blake2b(repr(sorted((about | same).items(), key=str)).encode(), digest_size=8).hexdigest()
    return about | same | {"generations": settings.generations, "search": digest}
