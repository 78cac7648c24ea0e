"""Policy gradients on the Sudoku agent without LangGraph around it: `langgraph_amc_trl`'s trainer, `sudoku_direct`'s
rollouts.

The groups, their random numbers, the batches and the loss are those of `langgraph_amc_trl.train` on the app; only
who plays the episodes differs.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from langgraph_amc_trl import GRPO
from langgraph_amc_trl.batches import Lesson, lesson_of
from langgraph_amc_trl.rollouts import Groups
from langgraph_amc_trl.sequences import Call
from langgraph_amc_trl.trainer import quiet, trainer_for
from sudoku_direct import BATCH, Episode, Floats, play

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


def train_directly(method: GRPO, tasks: Sequence[Task], policy: Path, folder: Path) -> list[Step]:
    """Train, and write the tuned model to ``folder``; the steps."""
    engine = get_engine(policy, max_batch=BATCH)
    steps: list[Step] = []
    with asyncio.Runner() as runner:

        async def rolled(step: int, chosen: Sequence[int]) -> list[Episode]:
            return await asyncio.gather(
                *(
                    play(engine, tasks[i], (method.seed, "grpo", step, tasks[i].id, repeat), None, method.temperature)
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
