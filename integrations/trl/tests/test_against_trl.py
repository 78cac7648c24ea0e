"""What we do around TRL is what TRL does by itself, wherever it can: same rollouts, same gradients."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from langgraph_amc_trl import GRPO
from langgraph_amc_trl.batches import Lesson, Weighed, lesson_of
from langgraph_amc_trl.rollouts import Groups
from langgraph_amc_trl.sequences import Call, TokenSequence
from langgraph_amc_trl.trainer import _config, quiet, trainer_for
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOTrainer

from langgraph_amc.policy.engine import BatchEngine

REWARDS = np.array([[1.0, 0.0, 0.25], [0.5, 0.5, 0.5], [0.0, 2.0, 1.0], [np.nan, 1.0, 0.0]])
SETTINGS = {"steps": 1, "tasks": 4, "group": 3, "learning_rate": 1e-2, "max_grad_norm": 1e6}
METHODS = [
    GRPO(**SETTINGS),
    GRPO(**SETTINGS, epochs=3, clip=0.05),
    GRPO(**SETTINGS, beta=0.3, scale="batch", epochs=2),
    GRPO(**SETTINGS, scale="none", temperature=0.7),
]


def conversations() -> list[tuple[Call, Call]]:
    """Two turns for each of twelve trajectories, the second going on from the first."""
    rng = np.random.default_rng(0)
    found = []
    for task in range(4):
        prompt = tuple(rng.integers(3, 259, 4 + task).tolist())
        for _ in range(3):
            answers = [tuple(rng.integers(3, 259, n).tolist()) for n in rng.integers(1, 6, 2)]
            first = Call(prompt, answers[0])
            heard = tuple(rng.integers(3, 259, 2).tolist())
            found.append((first, Call((*prompt, *answers[0], *heard), answers[1])))
    return found


class Gradients(TrainerCallback):
    """Keeps the gradients before each optimiser step."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, *args: Any, model: Any = None, **options: Any) -> None:
        self.seen.append(torch.cat([p.grad.flatten().clone() for p in model.parameters()]))


def ours(engine: BatchEngine, method: GRPO, lesson: Lesson, scratch: Path) -> list[torch.Tensor]:
    kept = Gradients()
    with trainer_for(engine, method, 4, lambda *_: lesson, lambda _: None, str(scratch)) as trainer:
        trainer.add_callback(kept)
        trainer.train()
    return kept.seen


def trls_own(folder: Path, method: GRPO, groups: Groups, scratch: Path) -> list[torch.Tensor]:
    """TRL's rollouts, advantages and batches, one sequence per trajectory through ``rollout_func``."""
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    kept = Gradients()
    lesson = [TokenSequence(c[1].prompt + c[1].answer, ()) for c in groups.calls]

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        firsts = [c[0] for c in groups.calls]
        order = [int(p) for p in prompts]
        assert sorted(order) == sorted(np.repeat(range(4), 3).tolist())
        place = [3 * task + order[:i].count(task) for i, task in enumerate(order)]
        masks = [
            [1] * len(c[0].answer) + [0] * (len(c[1].prompt) - len(c[0].prompt + c[0].answer)) + [1] * len(c[1].answer)
            for c in groups.calls
        ]
        return {
            "prompt_ids": [list(firsts[i].prompt) for i in place],
            "completion_ids": [list(lesson[i].ids[len(firsts[i].prompt) :]) for i in place],
            "env_mask": [masks[i] for i in place],
            "logprobs": None,
            "reward": [float(groups.rewards.ravel()[i]) for i in place],
        }

    def judged(reward: list[float], **rest: Any) -> list[float | None]:
        return [None if np.isnan(r) else r for r in reward]

    with quiet():
        config = _config(method, torch.device("cpu"), str(scratch))
        config.scale_rewards = method.scale
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=judged,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(4)]}),
            rollout_func=rollout,
            callbacks=[kept],
        )
    trainer.train()
    return kept.seen


def groups_of(rewards: np.ndarray) -> Groups:
    return Groups(rewards, tuple(conversations()), failed=0, unjudged=int(np.isnan(rewards).sum()))


@pytest.mark.parametrize("method", METHODS, ids=["on policy", "several epochs", "with KL", "temperature"])
def test_the_gradients_are_trls_own(method: GRPO, engine: BatchEngine, folder: Path, tmp_path: Path) -> None:
    whole = groups_of(np.nan_to_num(REWARDS, nan=1.5))
    found = ours(engine, method, lesson_of(whole, method), tmp_path)
    wanted = trls_own(folder, method, whole, tmp_path)
    assert len(found) == len(wanted) == method.epochs
    for one, other in zip(found, wanted, strict=True):
        assert other.norm() > 1e-2
        assert (one - other).norm() < 1e-3 * other.norm()


def test_a_missing_reward_only_takes_its_tokens_out_of_trls_mean(
    engine: BatchEngine, folder: Path, tmp_path: Path
) -> None:
    method, groups = METHODS[0], groups_of(REWARDS)
    [found] = ours(engine, method, lesson_of(groups, method), tmp_path)
    [wanted] = trls_own(folder, method, groups, tmp_path)
    tokens = [sum(len(call.answer) for call in calls) for calls in groups.calls]
    left = sum(n for n, r in zip(tokens, REWARDS.ravel(), strict=True) if not np.isnan(r))
    assert (found - wanted * sum(tokens) / left).norm() < 1e-3 * found.norm()


@pytest.mark.parametrize(
    "more",
    [{}, {"accumulation": 4}, {"epochs": 2}, {"epochs": 2, "beta": 0.2, "accumulation": 3}],
    ids=["plain", "accumulated", "epochs", "KL"],
)
def test_one_sequence_or_one_per_call_makes_no_difference(more: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    method = GRPO(**SETTINGS, **more)
    groups = groups_of(REWARDS)
    lesson = lesson_of(groups, method)
    advantage = {w.sequence.ids: w.advantage for w in lesson.sequences}
    calls = [(call, advantage[c[1].prompt + c[1].answer]) for c in groups.calls for call in c if _known(c, advantage)]
    apart = Lesson(
        tuple(
            Weighed(
                TokenSequence(call.prompt + call.answer, (False,) * len(call.prompt) + (True,) * len(call.answer)),
                weight,
            )
            for call, weight in calls
        ),
        lesson.sampled_tokens,
    )
    assert len(apart.sequences) == 2 * len(lesson.sequences) == 22
    gradients = []
    for one in (lesson, apart):
        engine = BatchEngine.from_path(folder)
        gradients.append(ours(engine, method, one, tmp_path))
        engine.close()
    for together, split in zip(*gradients, strict=True):
        assert together.norm() > 1e-2
        assert (together - split).norm() < 1e-3 * together.norm()


def _known(calls: tuple[Call, Call], advantage: dict[tuple[int, ...], float]) -> bool:
    return calls[1].prompt + calls[1].answer in advantage


def test_minibatches_are_a_step_each_and_share_all_sequences(engine: BatchEngine, tmp_path: Path) -> None:
    method = GRPO(**SETTINGS, minibatches=2, epochs=2)
    before = copy.deepcopy(engine.model.state_dict())
    steps = ours(engine, method, lesson_of(groups_of(REWARDS), method), tmp_path)
    assert len(steps) == 4
    assert not torch.equal(steps[0], steps[1])
    assert any(not torch.equal(before[name], now) for name, now in engine.model.state_dict().items())


def test_where_nobody_did_better_nothing_is_learned(engine: BatchEngine, tmp_path: Path) -> None:
    method = METHODS[0]
    before = copy.deepcopy(engine.model.state_dict())
    [gradient] = ours(engine, method, lesson_of(groups_of(np.ones((4, 3))), method), tmp_path)
    assert torch.count_nonzero(gradient) == 0
    assert all(torch.equal(before[name], now) for name, now in engine.model.state_dict().items())
