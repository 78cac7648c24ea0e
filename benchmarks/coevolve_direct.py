"""Rollouts of the Sudoku agent with skills in its prompt, without LangGraph around them: an eighth of the time.

The prompt is put together by the library's own placing, and calls are seeded as in `sudoku_direct`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.coevolve.design import Arms
from langgraph_amc.evaluate.evolving.replica import Replica
from langgraph_amc.evaluate.evolving.rollouts import HELD_OUT, TRAIN
from langgraph_amc.evolution import Generation, Update
from langgraph_amc.evolution.history import Record
from langgraph_amc.evolution.loop import Column
from langgraph_amc.policy.generation import GenerationRequest
from langgraph_amc.policy.instructions import place_in_dicts
from langgraph_amc.policy.seeds import mix
from langgraph_amc.skills.evidence import gather
from langgraph_amc.skills.injecting import using
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Evidence
from langgraph_amc.tasks import Task, TaskSet
from langgraph_amc.trajectories.types import Trajectory

Floats = NDArray[np.float64]
NO_WEIGHTS = "none"


async def play(replica: Replica, task: Task, noise: tuple[Hashable, ...], skills: SkillLibrary, member: Any) -> float:
    """What `agent.py` does on a task, with these skills, random numbers and weights: 1 if it solves it, else 0."""
    from sudoku.board import Puzzle
    from sudoku.env import SudokuEnv

    env, turn = SudokuEnv(), 0
    env.reset(Puzzle.from_dict(task.input["puzzle"]))
    while not env.done:
        with using(skills):
            messages = place_in_dicts([{"role": "user", "content": env.prompt}])
        request = GenerationRequest(
            messages=messages, max_tokens=32, temperature=1.0, seed=mix(noise, "p0", turn), variant=member
        )
        (said,) = await replica.engine.agenerate(request)
        turn += 1
        env.step(said.text)
    return float(env.success)


class DirectRollouts:
    """`coevolve.loop.Rollouts`; without weights it plays with those that the replica has, and never moves them."""

    def __init__(self, replica: Replica, train: TaskSet, *, seed: int, weighty: bool) -> None:
        self.weighty = weighty
        self.played = 0
        self._replica = replica
        self._tasks = {task.id: task for task in train}
        self._seed = seed
        self._last: list[tuple[str, str, float]] = []

    @asynccontextmanager
    async def serving(self, generation: Generation) -> AsyncIterator[None]:
        """The engine answers for members, where there are any."""
        serving = self._replica.serving(generation) if self.weighty else nullcontext()
        await asyncio.to_thread(serving.__enter__)
        try:
            yield
        finally:
            await asyncio.to_thread(serving.__exit__, None, None, None)

    async def rewards(
        self, generation: Generation, columns: Sequence[Column], libraries: Sequence[SkillLibrary], arms: Arms
    ) -> Floats:
        """Rewards [members, columns]."""
        todo, about = [], []
        for row, member in enumerate(generation.members):
            for place, column in enumerate(columns):
                noise: tuple[Hashable, ...] = (self._seed, TRAIN, generation.number, column.task, column.repeat)
                noise = noise if self.weighty else (*noise, member.pair, member.sign)
                library = libraries[arms[row, place]]
                served = member if self.weighty else None
                todo.append(play(self._replica, self._tasks[column.task], noise, library, served))
                about.append((library.digest, column.task))
        found = await asyncio.gather(*todo)
        self.played += len(found)
        self._last = [(*a, reward) for a, reward in zip(about, found, strict=True)]
        return np.array(found).reshape(len(generation.members), len(columns))

    async def evidence(self, log: Sequence[Record], champion: SkillLibrary) -> Evidence:
        """The outcomes of the last generation under this library."""
        return gather(
            Trajectory(f"run-{i}", "p0", (task,), task_id=task, outcome=reward)
            for i, (library, task, reward) in enumerate(self._last)
            if library == champion.digest
        )

    async def validate(self, weights: str, library: SkillLibrary) -> Floats:
        """The study measures at the end only."""
        return np.full((1, 1), np.nan)

    async def validated(self, weights: str, library: SkillLibrary) -> Floats:
        """As `validate`."""
        return np.full((1, 1), np.nan)

    async def apply(self, update: Update) -> str:
        """Take a step."""
        return await asyncio.to_thread(self._replica.apply, update) if self.weighty else NO_WEIGHTS

    async def restore(self, updates: Sequence[Update]) -> str:
        """Go to other weights."""
        return await asyncio.to_thread(self._replica.restore, updates) if self.weighty else NO_WEIGHTS


async def measure(replica: Replica, tasks: TaskSet, skills: SkillLibrary, seed: int, repeats: int) -> Floats:
    """Mean reward of each held-out puzzle [tasks], with the same random numbers whatever weights and skills are."""
    todo = [
        play(replica, task, (seed, HELD_OUT, -1, task.id, repeat), skills, None)
        for task in tasks
        for repeat in range(repeats)
    ]
    return np.array(await asyncio.gather(*todo)).reshape(len(tasks), repeats).mean(axis=1)
