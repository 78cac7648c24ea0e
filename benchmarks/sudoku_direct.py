"""Rollouts of the Sudoku agent without LangGraph around them: the same prompts, the same sampling noise, an eighth of
the time.

The app's own rollouts go through LangGraph, LiteLLM and the runner, which cost far more than this small model. Here
the agent's loop talks to the batch engine itself. A rollout's random numbers are its own, numbered by turn; with
`AS_IN_APP` they are those that `policy.local` gives the app's node, and the rollout does here what it does in the app:
`sudoku_arms.agreement` compares the two.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from langgraph_amc.evaluate.evolving.exporting import export_best
from langgraph_amc.evaluate.evolving.replica import Replica
from langgraph_amc.evaluate.evolving.replicas import Tuning, serving_on
from langgraph_amc.evaluate.evolving.rollouts import HELD_OUT, TRAIN, VALIDATION
from langgraph_amc.evolution import Generation, History, Strategy, Update, read
from langgraph_amc.evolution.history import Header
from langgraph_amc.evolution.layout import Scope
from langgraph_amc.evolution.loop import Column, Course, Event, evolve
from langgraph_amc.files import write_whole
from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.generation import GenerationRequest
from langgraph_amc.policy.seeds import mix
from langgraph_amc.tasks import Task, TaskSet

Floats = NDArray[np.float64]
BATCH = 256
AS_IN_APP = ("think",)
"""The node that calls the model."""
_MAX_TOKENS, _PARTICLE = 32, "p0"
"""The agent's limit of an answer, and the name of the only particle of a plain run."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout: its reward, and its calls of the model, each the tokens that were asked and said."""

    reward: float
    calls: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    @property
    def tokens(self) -> int:
        return sum(len(asked) + len(said) for asked, said in self.calls)


Play = Callable[[BatchEngine, Task, tuple[Hashable, ...], Hashable | None, float], Awaitable[Episode]]
"""From an engine, a task, the random numbers, the member and the temperature to a rollout."""


async def play(
    engine: BatchEngine,
    task: Task,
    noise: tuple[Hashable, ...],
    member: Hashable | None = None,
    temperature: float = 1,
    place: tuple[str, ...] = (),
) -> Episode:
    """What `agent.py` does on a task, with these random numbers and this member's weights."""
    from sudoku.board import Puzzle
    from sudoku.env import SudokuEnv

    env, calls = SudokuEnv(), list[tuple[tuple[int, ...], tuple[int, ...]]]()
    env.reset(Puzzle.from_dict(task.input["puzzle"]))
    while not env.done:
        asked = tuple(engine.codec.prompt([{"role": "user", "content": env.prompt}], None))
        request = GenerationRequest(
            prompt_ids=asked,
            max_tokens=_MAX_TOKENS,
            temperature=temperature,
            seed=mix(noise, _PARTICLE, *place, len(calls)),
            variant=member,
        )
        (said,) = await engine.agenerate(request)
        calls.append((asked, said.token_ids))
        env.step(said.text)
    return Episode(float(env.success), tuple(calls))


def held_out_noise(seed: int, task: Task, phase: str = HELD_OUT, repeat: int = 0) -> tuple[Hashable, ...]:
    """The random numbers that evolution measures weights with, whatever they are."""
    return (seed, phase, -1, task.id, repeat)


class DirectRollouts:
    """`evolution.loop.Rollouts` on one copy of the model; ``tokens`` and ``episodes`` of training go to a ledger."""

    def __init__(
        self,
        replica: Replica,
        train: TaskSet,
        measured: TaskSet,
        *,
        seed: int,
        common: bool,
        repeats: int,
        ledger: Path,
        temperature: float,
        play: Play,
    ) -> None:
        self._replica = replica
        self._tasks = {task.id: task for task in (*train, *measured)}
        self._measured = measured
        self._seed, self._common, self._repeats, self._ledger = seed, common, repeats, ledger
        self._temperature = temperature
        self._play = play
        self._weights = ""
        self._known: dict[str, Floats] = {}
        self._stored = ledger.with_name("measured.json")
        if self._stored.exists():
            self._known = {k: np.array(v) for k, v in json.loads(self._stored.read_text()).items()}

    def serving(self, generation: Generation) -> AbstractAsyncContextManager[None]:
        """The engine answers for members."""
        return serving_on(self._replica, generation)

    async def rewards(self, generation: Generation, rows: Sequence[int], columns: Sequence[Column]) -> Floats:
        """Rewards [rows, columns]."""
        todo, engine = [], self._replica.engine
        for member in (generation.members[row] for row in rows):
            for column in columns:
                noise: tuple[Hashable, ...] = (self._seed, TRAIN, generation.number, column.task, column.repeat)
                noise = noise if self._common else (*noise, member.pair, member.sign)
                todo.append(self._play(engine, self._tasks[column.task], noise, member, self._temperature))
        episodes = await asyncio.gather(*todo)
        with self._ledger.open("a") as file:
            about = {"generation": generation.number, "episodes": len(episodes)}
            file.write(json.dumps({**about, "tokens": sum(e.tokens for e in episodes)}) + "\n")
        return np.array([e.reward for e in episodes]).reshape(len(rows), len(columns))

    async def validate(self, weights: str) -> Floats:
        """Rewards [tasks, repeats] of the weights as they are."""
        if weights not in self._known:
            assert weights == self._weights
            todo = [
                self._play(
                    self._replica.engine,
                    task,
                    held_out_noise(self._seed, task, VALIDATION, repeat),
                    None,
                    self._temperature,
                )
                for task in self._measured
                for repeat in range(self._repeats)
            ]
            rewards = [episode.reward for episode in await asyncio.gather(*todo)]
            self._known[weights] = np.array(rewards).reshape(len(self._measured), self._repeats)
            write_whole(self._stored, json.dumps({k: v.tolist() for k, v in self._known.items()}))
        return self._known[weights]

    async def validated(self, weights: str) -> Floats:
        """Rewards [tasks, repeats] of the weights as they were when they were measured."""
        return self._known.get(weights, np.full((len(self._measured), self._repeats), np.nan))

    async def apply(self, update: Update) -> str:
        """Take a step."""
        self._weights = await asyncio.to_thread(self._replica.apply, update)
        return self._weights

    async def restore(self, updates: Sequence[Update]) -> str:
        """Go to other weights."""
        self._weights = await asyncio.to_thread(self._replica.restore, updates)
        return self._weights


@dataclass(frozen=True)
class Run:
    """A run of evolution: what happened, its history, and what its training took."""

    events: list[Event]
    rewards: list[Floats]
    trajectories: int
    tokens: int


def evolve_directly(
    strategy: Strategy,
    course: Course,
    train: TaskSet,
    model: Path,
    folder: Path,
    *,
    common: bool,
    scope: Scope = "all",
    measured: TaskSet | None = None,
    repeats: int = 1,
    temperature: float = 1.0,
    play: Play = play,
    batch: int = BATCH,
) -> Run:
    """Run evolution in a folder, or go on with what is there; members and weights are sampled at ``temperature``.

    ``play``: a rollout of another agent than Sudoku's. ``batch``: rows of the engine at once.
    ``measured``: tasks to measure the unperturbed weights on, ``repeats`` times each, as the course says.
    """
    tasks = TaskSet() if measured is None else measured
    folder.mkdir(parents=True, exist_ok=True)
    ledger, path = folder / "rollouts.jsonl", folder / "history.jsonl"
    replica = Replica(Tuning(str(model), scope, strategy.decay > 0, batch))
    try:
        header = Header(strategy, scope, replica.layout.fingerprint(), replica.restore([]), {"tasks": len(train)})
        rollouts = DirectRollouts(
            replica,
            train,
            tasks,
            seed=strategy.seed,
            common=common,
            repeats=repeats,
            ledger=ledger,
            temperature=temperature,
            play=play,
        )

        async def run() -> list[Event]:
            with History(path, header) as history:
                return [event async for event in evolve(course, rollouts, history)]

        events = asyncio.run(run())
    finally:
        replica.close()
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    last = {line["generation"]: line for line in lines}.values()  # a generation that was cut short has run twice
    rewards = [record.rewards for record in read(path).records]
    return Run(events, rewards, sum(x["episodes"] for x in last), sum(x["tokens"] for x in last))


def exported(folder: Path, model: Path, generations: int) -> Path:
    """The weights after so many generations as a folder of Hugging Face's."""
    return export_best(read(folder / "history.jsonl"), generations, str(model), folder / "model")


async def measured_directly(
    engine: BatchEngine, tasks: Sequence[Task], seed: int, temperature: float, place: tuple[str, ...] = ()
) -> list[Episode]:
    """One rollout of each task with the engine's weights."""
    return await asyncio.gather(
        *(play(engine, task, held_out_noise(seed, task), temperature=temperature, place=place) for task in tasks)
    )
