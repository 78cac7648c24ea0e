"""`trl.GRPOTrainer` fed by rollouts of a LangGraph app.

TRL's own are the loss (clipped ratio, KL, mean over tokens: ``loss_type="dapo"``), the log-probabilities and the
loop around the optimiser. Not TRL's are the rollouts, the advantages (its formula, with missing runs left out) and
the batches: its ``rollout_func`` takes one sequence per trajectory, and an app's trajectory may be several.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging as hf_logging
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc_trl.batches import Lesson, Weighed, micro_batches, tensors_of
from langgraph_amc_trl.method import GRPO
from langgraph_amc_trl.optimizer import MasterAdamW

Roll = Callable[[int, Sequence[int]], Lesson]
"""From a step (from 0) and the numbers of its tasks to what the rollouts teach."""
Learned = Callable[[list[dict[str, float]]], None]
"""Told what TRL logged of a step's optimiser steps."""


class GraphGRPOTrainer(GRPOTrainer):
    """Trains the model that an engine serves, which answers the rollouts between optimiser steps."""

    def __init__(self, method: GRPO, roll: Roll, **options: Any) -> None:
        self._method = method
        self._roll = roll
        self._parts: list[dict[str, Any]] = []
        super().__init__(**options)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """The next micro-batch; new rollouts when the last ones have been used up."""
        passes = self._method.passes
        if self._step % (passes * self._method.epochs) == 0:
            step = self._step // (passes * self._method.epochs)
            chosen = [int(row["prompt"]) for row in generation_batch[:: self._method.group]]
            model: Any = self.model
            model.eval()
            lesson = self._roll(step, chosen)
            model.train()
            parts = micro_batches(lesson, self._method, step)
            self._parts = [self._scored(rows, lesson.sampled_tokens) for rows in parts]
        return self._parts[self._step % passes]

    def _scored(self, rows: Sequence[Weighed], sampled_tokens: int) -> dict[str, Any]:
        """A micro-batch with the log-probabilities that its loss compares with."""
        if not rows:
            return {}
        batch = tensors_of(rows, sampled_tokens, self.accelerator.device)
        if not self._method.on_policy:
            batch["old_per_token_logps"] = self._log_probabilities(self.model, batch)
        if self._method.beta > 0:
            batch["ref_per_token_logps"] = self._log_probabilities(self.ref_model, batch)
        return batch

    @torch.no_grad()
    def _log_probabilities(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        there = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        found, _, _ = self._get_per_token_logps_and_entropies(model, ids, there, batch["completion_ids"].size(1))
        return found

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        """TRL's loss; exactly 0 for a batch in which nobody did better or worse."""
        if not inputs:
            return sum(p.sum() for p in model.parameters() if p.requires_grad) * 0.0
        return super().compute_loss(model, inputs, *args, **options)


class _Pausing(TrainerCallback):
    """Holds the engine while the optimiser writes to the weights, after which it forgets its cached prefixes."""

    def __init__(self, engine: BatchEngine, stack: ExitStack) -> None:
        self._engine = engine
        self._stack = stack

    def on_pre_optimizer_step(self, *args: Any, **options: Any) -> None:
        self._stack.enter_context(self._engine.paused())

    def on_optimizer_step(self, *args: Any, **options: Any) -> None:
        self._stack.close()


class _Listening(TrainerCallback):
    """Hands on what TRL logs, once per batch of rollouts."""

    def __init__(self, updates: int, learned: Learned) -> None:
        self._updates = updates
        self._learned = learned
        self._logged: list[dict[str, float]] = []

    def on_log(self, *args: Any, logs: dict[str, float] | None = None, **options: Any) -> None:
        if logs is None or "loss" not in logs:  # the summary at the end
            return
        self._logged.append(dict(logs))
        if len(self._logged) == self._updates:
            self._learned(self._logged)
            self._logged = []


@contextmanager
def trainer_for(
    engine: BatchEngine, method: GRPO, tasks: int, roll: Roll, learned: Learned, scratch: str
) -> Iterator[GraphGRPOTrainer]:
    """A trainer of the engine's model on tasks numbered from 0; seeds Python's, NumPy's and torch's global generators.

    TRL changes the model object (its ``forward``, dropout, padding token): the engine is not to be used afterwards.
    """
    device = next(engine.model.parameters()).device
    optimizer = MasterAdamW(
        engine.model.parameters(), lr=method.learning_rate, weight_decay=method.weight_decay, betas=(0.9, 0.999)
    )
    with ExitStack() as stack, quiet():
        trainer = GraphGRPOTrainer(
            method,
            roll,
            model=engine.model,
            reward_funcs=_never_asked,
            args=_config(method, device, scratch),
            train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(tasks)]}),
            processing_class=copy.deepcopy(engine.codec.tokenizer),
            callbacks=[_Pausing(engine, stack), _Listening(method.updates, learned)],
            optimizers=(optimizer, None),
        )
        trainer.remove_callback(PrinterCallback)
        yield trainer


def _config(method: GRPO, device: torch.device, scratch: str) -> GRPOConfig:
    return GRPOConfig(
        output_dir=scratch,
        max_steps=method.steps * method.updates,
        per_device_train_batch_size=method.batch // method.passes,
        gradient_accumulation_steps=method.accumulation,
        steps_per_generation=method.passes,
        num_generations=method.group,
        num_iterations=method.epochs,
        learning_rate=method.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=method.warmup,
        max_grad_norm=method.max_grad_norm,
        epsilon=method.clip,
        beta=method.beta,
        temperature=method.temperature,
        loss_type="dapo",
        seed=method.seed,
        bf16=False,
        use_cpu=device.type == "cpu",
        disable_dropout=True,
        gradient_checkpointing=False,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def _never_asked(*args: Any, **options: Any) -> NoReturn:
    """TRL wants a reward function; the runner has judged every trajectory before TRL sees it."""
    raise RuntimeError("this version of TRL asks for rewards by itself: install trl>=1.16,<1.17")


@contextmanager
def quiet() -> Iterator[None]:
    """Spare the user bars, and remarks on settings that are meant."""
    level, shows_bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
            yield
    finally:
        hf_logging.set_verbosity(level)
        if shows_bars:
            hf_logging.enable_progress_bar()
