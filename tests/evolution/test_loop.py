"""The loop over a world that is a formula: resuming anywhere, stopping in time, and what is run when."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.asktell import Update
from langgraph_amc.evolution.errors import WeightsError
from langgraph_amc.evolution.history import Header, History, Log
from langgraph_amc.evolution.loop import Column, Course, Evolved, Rollouts, Started, Stopped, Validated, evolve
from langgraph_amc.evolution.members import Generation
from langgraph_amc.evolution.racing import Racing
from langgraph_amc.evolution.schedules import Cosine
from langgraph_amc.evolution.strategy import Strategy

TASKS = tuple(f"t{i}" for i in range(6))


def number(*parts: object) -> float:
    """In [0, 1), a function of the parts."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest()) / 2**48


class World(Rollouts):
    """Rewards are hashes of everything that a rollout depends on; weights are the updates so far."""

    def __init__(self, validation: Sequence[float] = ()) -> None:
        self.updates: list[Update] = []
        self.served: Generation | None = None
        self.asked: list[tuple[int, int, Column]] = []
        self.validation = validation
        self.fail_at = -1

    @property
    def weights(self) -> str:
        return hashlib.blake2b(json.dumps([u.to_json() for u in self.updates]).encode(), digest_size=8).hexdigest()

    @asynccontextmanager
    async def serving(self, generation: Generation) -> AsyncIterator[None]:
        self.served = generation
        try:
            yield
        finally:
            self.served = None

    async def rewards(self, generation: Generation, rows: Sequence[int], columns: Sequence[Column]) -> np.ndarray:
        assert self.served == generation
        if generation.number == self.fail_at:
            raise RuntimeError("the power went")
        self.asked += [(generation.number, row, column) for row in rows for column in columns]
        return np.array([[number(self.weights, generation.members[r], c) for c in columns] for r in rows])

    async def validate(self, weights: str) -> np.ndarray:
        done = next(n for n in range(len(self.updates) + 1) if _hash_of(self.updates[:n]) == weights)
        return np.full((2, 2), self.validation[done])

    async def validated(self, weights: str) -> np.ndarray:
        return await self.validate(weights)

    async def apply(self, update: Update) -> str:
        assert self.served is None
        self.updates.append(update)
        return self.weights

    async def restore(self, updates: Sequence[Update]) -> str:
        self.updates = list(updates)
        return self.weights


def _hash_of(updates: Sequence[Update]) -> str:
    world = World()
    world.updates = list(updates)
    return world.weights


def history(path: Path, strategy: Strategy | None = None) -> History:
    return History(path, Header(strategy or Strategy(population=4, seed=3), "all", "layout", World().weights))


async def run(path: Path, course: Course, world: World, strategy: Strategy | None = None) -> tuple[list, Log]:
    with history(path, strategy) as opened:
        return [event async for event in evolve(course, world, opened)], opened.log


async def test_a_run_that_broke_anywhere_ends_as_one_that_did_not(tmp_path: Path) -> None:
    course = Course(TASKS, generations=4, batch=3, validate_every=2)
    scores = (0.1, 0.2, 0.3, 0.2, 0.5)
    whole = World(scores)
    events, log = await run(tmp_path / "whole", course, whole)
    assert [type(e) for e in events] == [
        Started, Validated, Evolved, Evolved, Validated, Evolved, Evolved, Validated, Stopped,
    ]  # fmt: skip
    assert len(set(whole.asked)) == len(whole.asked) == 4 * 4 * 3
    for broken in range(4):
        path, world = tmp_path / f"broken{broken}", World(scores)
        world.fail_at = broken
        with pytest.raises(RuntimeError):
            await run(path, course, world)
        again, resumed = await run(path, course, World(scores))
        assert again[0] == Started(broken, log.records[broken - 1].weights if broken else log.header.weights)
        assert path.read_bytes() == (tmp_path / "whole").read_bytes()
        assert again[-1] == events[-1]
        assert resumed.weights == log.weights


async def test_it_stops_when_validation_no_longer_improves_and_names_the_best(tmp_path: Path) -> None:
    course = Course(TASKS, generations=9, validate_every=1, patience=2)
    scores = (0.1, 0.4, 0.3, 0.4, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9)
    events, log = await run(tmp_path / "h", course, World(scores))
    assert isinstance(events[-1], Stopped)
    assert (events[-1].done, events[-1].best) == (3, 1)
    assert "after 1 generations" in events[-1].reason
    assert len(log.records) == 3
    # the same again runs nothing, and without patience it goes on
    world = World(scores)
    assert (await run(tmp_path / "h", course, world))[0][-1] == events[-1]
    assert not world.asked
    events, log = await run(
        tmp_path / "h", Course(TASKS, generations=5, validate_every=1, patience=None), World(scores)
    )
    assert (len(log.records), events[-1].best) == (5, 4)


async def test_weights_that_were_never_measured_are_passed_over(tmp_path: Path) -> None:
    """As where the run had validated less often."""
    await run(tmp_path / "h", Course(TASKS, generations=3, validate_every=3), World((0.1, 0.2, 0.3, 0.4)))
    known = (0.1, float("nan"), float("nan"), 0.4, 0.2)
    events, _ = await run(tmp_path / "h", Course(TASKS, generations=4, validate_every=1), World(known))
    assert [e.done for e in events if isinstance(e, Validated)] == [0, 3, 4]
    assert events[-1].best == 3


async def test_weights_that_are_not_the_historys_are_an_error(tmp_path: Path) -> None:
    course = Course(TASKS, generations=1, validate_every=0)
    await run(tmp_path / "h", course, World())

    class Other(World):
        async def restore(self, updates: Sequence[Update]) -> str:
            return "0123"

    with pytest.raises(WeightsError, match="0123"):
        await run(tmp_path / "h", course, Other())


async def test_a_generation_without_perturbation_runs_nothing_and_changes_nothing(tmp_path: Path) -> None:
    strategy = Strategy(population=4, sigma=Cosine(1e-2, 0.0, 2))
    world = World()
    _, log = await run(tmp_path / "h", Course(TASKS, generations=2, validate_every=0), world, strategy)
    assert {generation for generation, _, _ in world.asked} == {0}
    assert log.records[1].update.is_zero
    assert np.isnan(log.records[1].rewards).all()


async def test_racing_leaves_out_what_is_known_already(tmp_path: Path) -> None:
    class Clear(World):
        async def rewards(self, generation: Generation, rows: Sequence[int], columns: Sequence[Column]) -> np.ndarray:
            await super().rewards(generation, rows, columns)
            own = [10 * number(generation.members[r]) for r in rows]
            return np.array([[base + 1e-3 * number(c, base) for c in columns] for base in own])

    course = Course(TASKS, generations=1, batch=6, validate_every=0, racing=Racing(0.25, block=2))
    world = Clear()
    events, log = await run(tmp_path / "h", course, world)
    evolved = events[1]
    assert evolved.run == len(world.asked) == 4 * 2
    assert np.isnan(log.records[0].rewards).sum() == 4 * 4
    assert any(log.records[0].update.coefficients)


@given(st.integers(1, 12), st.integers(1, 14), st.integers(1, 3), st.integers(0, 1000))
def test_every_task_comes_once_before_any_comes_again(tasks: int, batch: int, repeats: int, seed: int) -> None:
    course = Course(tuple(f"t{i}" for i in range(tasks)), batch=batch, repeats=repeats)
    size = min(batch, tasks)
    columns = [course.columns(seed, n) for n in range(2 * tasks)]
    assert columns == [course.columns(seed, n) for n in range(2 * tasks)]
    for chosen in columns:
        assert len(set(chosen)) == len(chosen)
        assert len(chosen) == len({c.task for c in chosen}) * repeats
    if tasks % size == 0:
        for first in range(0, 2 * tasks, tasks // size):
            epoch = [c.task for chosen in columns[first : first + tasks // size] for c in chosen[::repeats]]
            assert sorted(epoch) == sorted(course.tasks)


@pytest.mark.parametrize(
    "arguments",
    [{"tasks": ()}, {"generations": 0}, {"batch": 0}, {"repeats": 1.5}, {"validate_every": -1}, {"patience": 0}],
)
def test_courses_that_cannot_work_are_refused(arguments: dict) -> None:
    with pytest.raises(ConfigurationError):
        Course(**{"tasks": TASKS, **arguments})
