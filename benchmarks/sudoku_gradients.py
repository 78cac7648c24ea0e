"""Policy gradients on the Sudoku agent without LangGraph around it: `langgraph_amc_trl`'s trainer, `sudoku_direct`'s
rollouts.

The groups, their random numbers, the batches and the loss are those of `langgraph_amc_trl.train` on the app; only
who plays the episodes differs. `same_training` trains both ways and compares.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from langgraph_amc_trl import GRPO, train
from langgraph_amc_trl.batches import Lesson, lesson_of
from langgraph_amc_trl.rollouts import Groups
from langgraph_amc_trl.sequences import Call
from langgraph_amc_trl.trainer import quiet, trainer_for
from safetensors.torch import load_file
from sudoku_direct import AS_IN_APP, BATCH, Episode, Floats, play

from langgraph_amc.evolution.export import export
from langgraph_amc.evolution.layout import layout
from langgraph_amc.evolution.weights import Weights
from langgraph_amc.policy.engines import get_engine
from langgraph_amc.tasks import Task


@dataclass(frozen=True, slots=True)
class Step:
    """Rewards [tasks, group] of a batch of rollouts, and the tokens that it took."""

    rewards: Floats
    tokens: int


def train_directly(
    method: GRPO, tasks: Sequence[Task], policy: Path, folder: Path, place: tuple[str, ...] = ()
) -> list[Step]:
    """Train, and write the tuned model to ``folder``; the steps."""
    engine = get_engine(policy, max_batch=BATCH)
    steps: list[Step] = []
    with asyncio.Runner() as runner:

        def noise(step: int, task: Task, repeat: int) -> tuple[Hashable, ...]:
            return (method.seed, "grpo", step, task.id, repeat)

        async def rolled(step: int, chosen: Sequence[int]) -> list[Episode]:
            return await asyncio.gather(
                *(
                    play(engine, tasks[i], noise(step, tasks[i], repeat), None, method.temperature, place)
                    for i in chosen
                    for repeat in range(method.group)
                )
            )

        def roll(step: int, chosen: Sequence[int]) -> Lesson:
            episodes = runner.run(rolled(step, chosen))
            rewards = np.array([e.reward for e in episodes]).reshape(len(chosen), method.group)
            steps.append(Step(rewards, sum(e.tokens for e in episodes)))
            calls = tuple(tuple(Call(asked, said) for asked, said in e.calls) for e in episodes)
            return lesson_of(Groups(rewards, calls, failed=0, unjudged=0), method)

        try:
            weights = Weights(engine.model, layout(engine.model))
            with (
                tempfile.TemporaryDirectory() as scratch,
                trainer_for(engine, method, len(tasks), roll, lambda logged: None, scratch) as trainer,
            ):
                trainer.train()
                engine.model.eval()
            with quiet():
                export(weights, folder, source=str(policy))
        finally:
            engine.close()
    return steps


def same_training(
    app: Any, reward: Callable[..., Any], tasks: Sequence[Task], policy: Path, method: GRPO
) -> dict[str, float]:
    """Train twice from one seed, on the app and without it; how far what came out is from equal.

    ``rewards``: the greatest difference of a step's mean reward. ``weights``: the distance of the two tuned models,
    by the distance of the second from ``policy``: 0 but for rounding, about 1.4 for two trainings that share nothing.
    """
    with tempfile.TemporaryDirectory() as scratch:
        on_app = train(app, tasks, reward, model=policy, out=Path(scratch) / "app", method=method)
        steps = train_directly(method, tasks, policy, Path(scratch) / "direct", AS_IN_APP)
        start, theirs, ours = map(_vector, (policy, Path(on_app.model), Path(scratch) / "direct"))
    means = zip((step.reward for step in on_app.steps), (step.rewards.mean() for step in steps), strict=True)
    moved = float((ours - start).norm())
    return {"rewards": float(max(abs(a - b) for a, b in means)), "weights": float((theirs - ours).norm()) / moved}


def _vector(folder: Path) -> torch.Tensor:
    """All weights of a model in one row."""
    weights = load_file(folder / "model.safetensors")
    return torch.cat([weights[name].double().flatten() for name in sorted(weights)])
