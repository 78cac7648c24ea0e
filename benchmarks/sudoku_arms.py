"""The arms of the Sudoku study: how each trains a policy, and how all are measured on the same held-out puzzles.

Evolution strategies (Agentic ESOpt, section 3, with its released settings) and policy gradients (`langgraph_amc_trl`)
start from the same policy, and have the same prompts, puzzles, engine and number of trajectories. Weights are those
after the last update: no arm picks its best on the way. What needs no app (training, and measuring a policy) runs
without it, see `sudoku_direct` and `sudoku_gradients`; AMC runs the app itself.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sudoku_direct import AS_IN_APP, BATCH, evolve_directly, exported, held_out_noise, measured_directly

from langgraph_amc.evaluate.runner import Job, run_jobs
from langgraph_amc.evolution import Constant, Cosine, Strategy
from langgraph_amc.evolution.layout import Scope
from langgraph_amc.evolution.loop import Course
from langgraph_amc.policy.engines import get_engine, loaded_engine
from langgraph_amc.policy.seeds import mix
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.smc import best_value, never
from langgraph_amc.tasks import Task, TaskSet
from langgraph_amc.tasks.loading import load_object, load_reward, load_tasks

SUDOKU = Path(__file__).resolve().parents[1] / "examples" / "sudoku"
AGENT, POLICY = SUDOKU / "agent.py", SUDOKU / "policy"
VANILLA, PAPER, OURS, NORMS = "vanilla ES", "paper's ES", "ours", "ours, norms only"
GRPO, PPO_LIKE = "GRPO", "PPO-like"
EVOLVED, GRADIENTS = (VANILLA, PAPER, OURS, NORMS), (GRPO, PPO_LIKE)
GREEDY = "base, greedy"
BASES = {"base, T = 1": 1.0, "base, T = 0.7": 0.7, GREEDY: 0.0}
GREEDY_TUNED = "best tuned, greedy"
BEST_OF, AMC_BASE, AMC_TUNED = "best of 8 on the base", "AMC on the base", "AMC on the best tuned"
PARTICLES, GROUP = 8, 8
_END = {15: 5 / 7}
"""sigma's last value by its first: the paper's 1e-3 -> 2.5e-4, and 7e-4 -> 5e-4 with 15 empty cells."""
_STEP = {(PAPER, 15): 5 / 7, (OURS, 15): 5 / 7, (NORMS, 15): 5 / 7, (VANILLA, 15): 1.0}
"""alpha by sigma's first value, else 0.5: the paper's alpha is 5e-4 throughout."""
_CELL, _WRITTEN = re.compile(r"(r[1-9]c[1-9])=([1-9.])"), re.compile(r"Filled (r[1-9]c[1-9]) with ([1-9])")


@dataclass(frozen=True)
class Scale:
    """What every trained arm may use: ``generations`` updates of ``population * tasks`` trajectories each."""

    generations: int
    population: int
    tasks: int

    @property
    def trajectories(self) -> int:
        return self.generations * self.population * self.tasks


@dataclass(frozen=True)
class Start:
    """What all arms begin with.

    ``policy``: the folder of the model. ``scope``: what evolution perturbs of it. ``ratio``: alpha by sigma's first
    value in all arms of evolution, ``None`` for the paper's.
    """

    policy: Path = POLICY
    scope: Scope = "all"
    ratio: float | None = None


@dataclass(frozen=True)
class World:
    """Puzzles of one horizon by split, none of which shares a solution with another split."""

    horizon: int
    tasks: TaskSet
    concurrency: int

    @classmethod
    def of(cls, horizon: int, validation: int, test: int, concurrency: int) -> World:
        tasks = load_tasks(f"{AGENT}:tasks", train=400, validation=validation, test=test, masks=(horizon,))
        return cls(horizon, tasks, concurrency)


@dataclass(frozen=True)
class Trial:
    """One training run: an arm with a value of its swept setting (sigma, or the learning rate) and a seed."""

    arm: str
    setting: float
    seed: int
    scale: Scale
    start: Start

    @property
    def scope(self) -> Scope:
        """What it perturbs, if it is an arm of evolution."""
        return "vectors" if self.arm == NORMS else self.start.scope


def installed() -> bool:
    """Whether the policy gradients can run."""
    return all(importlib.util.find_spec(name) is not None for name in ("trl", "langgraph_amc_trl"))


def app_of(model: str | Path, temperature: float = 1.0) -> Any:
    """The agent around a local model."""
    return load_object(f"{AGENT}:build")(f"amc-local/{model}", temperature)


def train(trial: Trial, world: World, folder: Path) -> dict[str, Any]:
    """Run it in ``folder``, or go on with what is there; the tuned model's folder, and what it took."""
    return (_evolved if trial.arm in EVOLVED else _by_gradients)(trial, world, folder)


def strategy(trial: Trial, horizon: int) -> Strategy:
    """The evolution strategy of an arm."""
    sigma = trial.setting
    step = _STEP.get((trial.arm, horizon), 0.5) if trial.start.ratio is None else trial.start.ratio
    falling = Cosine(sigma, sigma * _END.get(horizon, 0.25), trial.scale.generations)
    common: dict[str, Any] = {"population": trial.scale.population, "seed": trial.seed}
    if trial.arm in (OURS, NORMS):
        return Strategy(sigma=falling, alpha_ratio=step, rank=1, antithetic=True, baseline="task", **common)
    schedule = Constant(sigma) if trial.arm == VANILLA else falling
    theirs: dict[str, Any] = {"antithetic": False, "baseline": "none", "noise": "gaussian"}
    theirs["rank"] = 1 if trial.scope == "vectors" else None  # vectors have a number per element, whatever the rank
    return Strategy(sigma=schedule, alpha=step * sigma, **theirs, **common)


def _evolved(trial: Trial, world: World, folder: Path) -> dict[str, Any]:
    train_on, scale = world.tasks.split("train"), trial.scale
    run = evolve_directly(
        strategy(trial, world.horizon),
        Course(train_on.ids, scale.generations, scale.tasks, validate_every=0, patience=None),
        train_on,
        trial.start.policy,
        folder,
        common=trial.arm in (OURS, NORMS),
        scope=trial.scope,
    )
    model = exported(folder, trial.start.policy, scale.generations)
    curve = [float(np.nanmean(rewards)) for rewards in run.rewards]
    return {"model": str(model), "trajectories": run.trajectories, "tokens": run.tokens, "curve": curve}


def _by_gradients(trial: Trial, world: World, folder: Path) -> dict[str, Any]:
    from sudoku_gradients import train_directly

    shutil.rmtree(folder, ignore_errors=True)  # a run that was cut short cannot be gone on with
    method = _method(trial)
    model = folder / "model"
    steps = train_directly(method, list(world.tasks.split("train")), trial.start.policy, model)
    return {
        "model": str(model),
        "trajectories": sum(step.rewards.size for step in steps),
        "tokens": sum(step.tokens for step in steps),
        "curve": [float(step.rewards.mean()) for step in steps],
    }


def _method(trial: Trial) -> Any:
    """The settings of a policy gradient (`langgraph_amc_trl.GRPO`)."""
    from langgraph_amc_trl import GRPO as Method

    each = trial.scale.population * trial.scale.tasks
    passes: dict[str, Any] = {"accumulation": min(32, each)}
    if trial.arm == PPO_LIKE:
        passes = {"epochs": 2, "minibatches": 2, "accumulation": min(16, each // 2)}
    group = min(GROUP, trial.scale.population)
    return Method(
        steps=trial.scale.generations,
        tasks=each // group,
        group=group,
        learning_rate=trial.setting,
        seed=trial.seed,
        **passes,
    )


def measure(
    model: str | Path, tasks: Sequence[Task], seed: int, *, temperature: float = 1.0, place: tuple[str, ...] = ()
) -> dict[str, Any]:
    """One run of each task: rewards by task, tokens and trajectories; the same random numbers for all models."""
    engine = get_engine(model, max_batch=BATCH)
    try:
        episodes = asyncio.run(measured_directly(engine, tasks, seed, temperature, place))
    finally:
        engine.close()
    rewards = {task.id: episode.reward for task, episode in zip(tasks, episodes, strict=True)}
    return {"rewards": rewards, "tokens": sum(e.tokens for e in episodes), "trajectories": len(episodes)}


def measure_app(
    model: str | Path, tasks: Sequence[Task], seed: int, concurrency: int, value: Any = None, resample: bool = True
) -> dict[str, Any]:
    """The same through the app; with a value function as AMC, whose particles have random numbers of their own."""
    app = app_of(model)
    options: dict[str, Any] = {"particles": 1}
    if value is not None:
        options = {"particles": PARTICLES, "value": value, "select": best_value}
        options |= {} if resample else {"resample": never()}
    settings = read_settings(app, **options)
    noises = [held_out_noise(seed, task) if value is None else None for task in tasks]
    jobs = [Job(t, mix(seed, "held-out", -1, 0), settings, noise=n) for t, n in zip(tasks, noises, strict=True)]
    try:
        return asyncio.run(_measured(app, jobs, max(1, concurrency // settings.particles), concurrency))
    finally:
        engine = loaded_engine(model)
        if engine is not None:
            engine.close()


def agreement(world: World, policy: Path, n: int = 16) -> float:
    """Share of tasks on which the app and the rollouts without it get the same reward: 1, but for rounding."""
    tasks = list(world.tasks.split("validation"))[:n]
    app, direct = measure_app(policy, tasks, 0, world.concurrency), measure(policy, tasks, 0, place=AS_IN_APP)
    return float(np.mean([app["rewards"][task.id] == direct["rewards"][task.id] for task in tasks]))


def gradients_agreement(arm: str, world: World, policy: Path) -> dict[str, float]:
    """How far a short training without the app is from the same on the app, see `sudoku_gradients.same_training`."""
    from sudoku_gradients import same_training

    method = _method(Trial(arm, 1e-4, 0, Scale(3, GROUP, 8), Start(policy)))
    tasks = list(world.tasks.split("train"))[:32]
    return same_training(app_of(policy), load_reward(f"{AGENT}:solved"), tasks, policy, method)


async def _measured(app: Any, jobs: Sequence[Job], runs: int, threads: int) -> dict[str, Any]:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads + 4))
    rewards: dict[str, float | None] = {}
    tokens = trajectories = 0
    judge = load_reward(f"{AGENT}:solved")
    async with aclosing(run_jobs(app, jobs, judge, concurrency=runs)) as outcomes:
        async for outcome in outcomes:
            result = outcome.result
            chosen = next(i for i, p in enumerate(result.particles) if p.name == result.winner.name)
            rewards[outcome.job.task.id] = outcome.rewards[chosen]
            tokens += result.usage.tokens
            trajectories += len(result.particles) + len(result.pruned)
    in_order = {job.task.id: rewards[job.task.id] for job in jobs}
    return {"rewards": in_order, "tokens": tokens, "trajectories": trajectories}


def rules(transcript: str) -> float:
    """V of AMC: 0 once a rule is broken or a cell has no digit left, else 0.9 ** (empty cells).

    Sudoku's rules and nothing else: 0.9 is about what one cell costs the base at temperature 1.
    """
    peers = _peers()
    board = {cell: digit for cell, digit in _CELL.findall(transcript) if cell in peers}
    given = {cell for cell, digit in board.items() if digit != "."}
    board |= {cell: digit for cell, digit in _WRITTEN.findall(transcript) if cell not in given}
    for cell, digit in board.items():
        seen = {board[peer] for peer in peers[cell]} - {"."}
        if digit in seen or (digit == "." and len(seen) == 9):
            return 0.0
    return 0.9 ** sum(digit == "." for digit in board.values())


@cache
def _peers() -> dict[str, tuple[str, ...]]:
    """The cells that share a row, a column or a box with each cell, by name."""
    load_object(f"{AGENT}:build")  # whose folder holds the package below
    from sudoku.board import PEERS, cell_name

    return {cell_name(cell): tuple(map(cell_name, peers)) for cell, peers in enumerate(PEERS)}


def solved_share(found: dict[str, Any]) -> float:
    """Mean reward of a measurement."""
    return float(np.nanmean(np.array(list(found["rewards"].values()), dtype=float)))
