"""Training V on trajectories: every state of a trajectory in one forward pass (AMC, learning the value).

The transcript is append-only and the backbone causal, so the T + 1 prompts of the one-prompt-per-state recipe are
prefixes of one sequence: it is encoded once and the head reads it at the end of each segment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from langgraph_amc.checks import check_items, check_path, check_whole, is_number, is_whole
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc.weights import ess_of_possible
from langgraph_amc.telemetry import instruments, names, span
from langgraph_amc.telemetry.spans import past
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value import checkpoint
from langgraph_amc.value.errors import TrainingDataError, TrainingError
from langgraph_amc.value.heads import Loss, ReturnHead
from langgraph_amc.value.manifest import check_replaceable
from langgraph_amc.value.model import Lora, ValueModel, new_model, pick_device
from langgraph_amc.value.targets import known_from, task_of
from langgraph_amc.value.training import dataset, report
from langgraph_amc.value.training.dataset import Batch, DataSet
from langgraph_amc.value.training.held_out import Calibrate, Fitted, fit_held_out

MAX_LENGTH = 8192  # tokens a state may have by default, where the base model allows as many


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """Where training is: ``step`` of ``steps`` updates (about), and the loss of this update.

    ``validation_loss`` is set on the event that closes an epoch.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    validation_loss: float | None = None


Progress = Callable[[TrainProgress], None]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The options of a run, checked."""

    epochs: int
    lr: float
    head_lr: float
    batch_tokens: int
    patience: int
    seed: int
    weight_decay: float
    warmup: float
    average_siblings: bool
    progress: Progress | None


def train_value(
    trajectories: Sequence[Trajectory],
    base: str | Path | PretrainedConfig,
    *,
    out: str | Path,
    loss: Loss = "bce",
    lora: Lora = "auto",
    epochs: int = 3,
    lr: float | None = None,
    head_lr: float = 1e-3,
    batch_tokens: int | None = None,
    max_length: int | None = None,
    validation: float = 0.2,
    patience: int = 2,
    seed: int = 0,
    bins: int = 51,
    average_siblings: bool = True,
    td_lambda: float = 1.0,
    calibrate: Calibrate = "auto",
    gradient_checkpointing: bool = False,
    weight_decay: float = 0.01,
    warmup: float = 0.1,
    tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> report.ValueReport:
    """Train a value function on all trajectories with a known outcome and save it in ``out``.

    Give whole runs, pruned particles included: they say how the survivors of a resampled population are to be
    weighted (`value.targets`), though they have no target of their own after they were pruned.

    Parameters
    ----------
    base: a Hugging Face path, the policy's own checkpoint included, or a config (then with ``tokenizer``).
    loss: ``bce`` for returns in [0, 1], ``mse`` for the mean return, ``two_hot`` or ``hl_gauss`` (``bins`` logits)
        for their distribution, which gives the exact soft value for any β.
    lora: ``auto`` trains all weights below 20M parameters and LoRA of rank 8 above; an int is the rank.
    lr: of backbone or adapters; by default 5e-4 for all weights, 2e-4 for LoRA. ``head_lr`` is the head's own.
    batch_tokens: tokens in a batch, padding included; by default about 50 updates an epoch.
    max_length: longest state in tokens, longer ones lose their oldest tokens.
    validation: fraction of the *tasks* held out for early stopping (``patience`` epochs) and the report.
    average_siblings: runs that share a state learn the mean of their targets there.
    td_lambda: below 1, targets lean on the stored values of later states (`targets.lambda_returns`).
    calibrate: ``auto`` fits Platt's curve to the held-out tasks and keeps it where it helps on tasks it was not
        fitted to; ``platt`` and ``isotonic`` are kept in any case, ``none`` fits nothing.

    Raises
    ------
    TrainingDataError: no usable trajectory, or returns that the loss cannot express.
    ConfigurationError: options that cannot work. ValueModelError: a base that cannot. TrainingError: no gradient.
    """
    trajectories = check_items("trajectories", trajectories, Trajectory)
    out = check_path("out", out)
    check_replaceable(out, checkpoint.SPEC_FILE)
    counts = {"epochs": epochs, "batch_tokens": batch_tokens, "patience": patience, "bins": bins}
    _check_options(counts, {"lr": lr, "head_lr": head_lr}, {"validation": validation, "warmup": warmup})
    _check_numbers(seed, max_length, weight_decay, lora)
    _check_targets(td_lambda, calibrate, loss)
    used, left_out = dataset.usable(trajectories)
    known = known_from(trajectories)
    head = head_for(used, loss, bins)
    train_runs, validation_runs = dataset.split_by_task(used, validation, seed)
    where = pick_device(device)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count() if where.type == "cuda" else 0)):
        torch.manual_seed(seed)
        model = new_model(base, head.size, tokenizer=tokenizer, lora=lora, device=where)
        limit = _max_length(model, max_length)
        train = dataset.build(train_runs, model.tokenizer, limit, known, td_lambda)
        held_out = dataset.build(validation_runs, model.tokenizer, limit, known) if validation_runs else None
        if gradient_checkpointing:
            model.enable_gradient_checkpointing()
        plan = _Plan(
            epochs=epochs,
            lr=lr if lr is not None else (2e-4 if model.lora else 5e-4),
            head_lr=head_lr,
            batch_tokens=batch_tokens or dataset.default_batch_tokens(train),
            patience=patience,
            seed=seed,
            weight_decay=weight_decay,
            warmup=warmup,
            average_siblings=average_siblings,
            progress=progress,
        )
        head = head.standardised(torch.from_numpy(train.states.returns), has_bias=model.head.bias is not None)
        about = {names.KIND: "CHAIN", names.DATASET_SIZE: len(train.states), names.LOSS_NAME: loss}
        with span(names.VALUE_FIT, about):
            logs, best_epoch = _fit(model, head, train, held_out, plan)
        measured = train if held_out is None else held_out
        raw = head.mean(_predict(model, measured, plan.batch_tokens)).numpy()
    head = head.fold(model.head.weight, model.head.bias)
    fitted = Fitted(raw, None, None) if held_out is None else fit_held_out(raw, held_out.states, head, calibrate)
    quality = report.measure(fitted.values, measured.states, head, seed)
    result = report.ValueReport(
        path=str(out),
        loss=loss,
        weights="lora" if model.lora else "full",
        parameters=sum(p.numel() for p in model.backbone.parameters())
        + sum(p.numel() for p in model.head.parameters()),
        trained_parameters=sum(p.numel() for p in model.network.parameters() if p.requires_grad),
        used=dataset.status_counts(used),
        left_out=left_out,
        train_tasks=len(set(map(task_of, train_runs))),
        validation_tasks=len(set(map(task_of, validation_runs))),
        train_states=len(train.states),
        validation_states=0 if held_out is None else len(held_out.states),
        epochs=logs,
        best_epoch=best_epoch,
        stopped_early=len(logs) < epochs,
        measured_on="training" if held_out is None else "validation",
        quality=quality,
        notes=report.notes(quality, head, train.states.returns, 0 if held_out is None else 1),
        calibrated=None if fitted.calibration is None else fitted.calibration.method,
        raw_calibration_error=report.calibration_table(raw, measured.states, head)[1],
        uncertainty=None if fitted.uncertainty is None else fitted.uncertainty.pooled,
        effective_share=ess_of_possible(np.log(train.states.importance)) / len(train.states),
    )
    spec = checkpoint.ValueSpec.of(model, head, limit, used[0].fingerprint, fitted.calibration, fitted.uncertainty)
    checkpoint.save(out, model, spec, result.to_dict())
    return result


def batch_loss(model: ValueModel, head: ReturnHead, batch: Batch, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean loss of the readouts of a batch; ``targets`` [n, size] and ``weights`` [n] of all states."""
    batch = replace(batch, ids=batch.ids.to(model.device), rows=batch.rows.to(model.device))
    logits = model.logits(model.hidden(batch.ids), batch.rows, batch.columns.to(model.device))
    losses = head.losses(logits, targets[batch.states].to(model.device))
    weight = weights[batch.states].to(model.device)
    return (losses * weight).sum() / weight.sum()


def _fit(
    model: ValueModel, head: ReturnHead, train: DataSet, held_out: DataSet | None, plan: _Plan
) -> tuple[tuple[report.EpochLog, ...], int]:
    """Train in place and leave the weights of the best epoch; returns the epochs and the best one's number."""
    targets = dataset.targets(train.states, head, plan.average_siblings)
    weights = torch.from_numpy(train.states.weights).float()
    with torch.no_grad():
        if model.head.bias is not None:
            model.head.bias.copy_(head.initial_bias((targets * weights[:, None]).mean(0)))
    rng = np.random.default_rng(plan.seed)
    steps = plan.epochs * sum(1 for _ in dataset.batches(train, plan.batch_tokens, np.random.default_rng(plan.seed)))
    optimizer, schedule = _optimizer(model, plan, steps)
    logs: list[report.EpochLog] = []
    best = (math.inf, 0, _snapshot(model))
    step = 0
    for epoch in range(1, plan.epochs + 1):
        started, losses = time.perf_counter(), []
        model.network.train()
        for batch in dataset.batches(train, plan.batch_tokens, rng):
            losses.append(_update(model, batch_loss(model, head, batch, targets, weights), optimizer, step == 0))
            schedule.step()
            step += 1
            if plan.progress is not None:
                plan.progress(TrainProgress(epoch, plan.epochs, step, max(step, steps), losses[-1]))
        seconds = time.perf_counter() - started
        checked = None if held_out is None else _validate(model, head, held_out, plan.batch_tokens)
        logs.append(report.EpochLog(epoch, float(np.mean(losses)), checked, train.tokens, seconds))
        _trace(logs[-1])
        if plan.progress is not None:
            plan.progress(TrainProgress(epoch, plan.epochs, step, max(step, steps), losses[-1], checked))
        if checked is None or checked < best[0]:
            best = (math.inf if checked is None else checked, epoch, _snapshot(model))
        elif epoch - best[1] >= plan.patience:
            break
    _restore(model, best[2])
    return tuple(logs), best[1]


def _trace(log: report.EpochLog) -> None:
    facts = {names.EPOCH: log.epoch, names.LOSS: log.train_loss, names.VALIDATION_LOSS: log.validation_loss}
    past(names.VALUE_EPOCH, log.seconds, {names.KIND: "CHAIN", **facts})
    if (measured := instruments()) is not None:
        measured.loss.record(log.train_loss)


def _update(model: ValueModel, loss: Tensor, optimizer: torch.optim.Optimizer, first: bool) -> float:
    value = float(loss.detach())
    if not math.isfinite(value):
        raise TrainingError(f"the loss became {value}: lower lr or head_lr")
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if first and all(parameter.grad is None for _, parameter in model.trained()[0]):
        raise TrainingError(
            "no gradient reaches the weights below the head: turn gradient_checkpointing off for this base model"
        )
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()
    return value


def _optimizer(model: ValueModel, plan: _Plan, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    """AdamW, the head with its own rate, decay on matrices only; linear warm-up, then cosine to zero."""
    body, head = model.trained()
    groups = [
        {"params": [p for _, p in body if p.ndim > 1], "lr": plan.lr, "weight_decay": plan.weight_decay},
        {"params": [p for _, p in body if p.ndim <= 1], "lr": plan.lr, "weight_decay": 0.0},
        {"params": [p for _, p in head], "lr": plan.head_lr, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], betas=(0.9, 0.99))
    rising = max(1, round(plan.warmup * steps))

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rising) / max(1, steps - rising))))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


@torch.no_grad()
def _predict(model: ValueModel, data: DataSet, batch_tokens: int) -> Tensor:
    """Logits of all states, float32 [n, size] on the CPU."""
    model.network.eval()
    found: Tensor | None = None
    for batch in dataset.batches(data, batch_tokens, None):
        hidden = model.hidden(batch.ids.to(model.device))
        logits = model.logits(hidden, batch.rows.to(model.device), batch.columns.to(model.device)).cpu()
        if found is None:
            found = torch.full((len(data.states), logits.shape[1]), math.nan)
        found[batch.states] = logits
    assert found is not None
    return found


def _validate(model: ValueModel, head: ReturnHead, data: DataSet, batch_tokens: int) -> float:
    """Weighted mean loss on the runs' own returns, not averaged over siblings."""
    losses = head.losses(_predict(model, data, batch_tokens), dataset.targets(data.states, head, False)).double()
    return float((losses * torch.from_numpy(data.states.weights)).mean())


def _snapshot(model: ValueModel) -> list[Tensor]:
    return [p.detach().clone() for group in model.trained() for _, p in group]


@torch.no_grad()
def _restore(model: ValueModel, saved: list[Tensor]) -> None:
    for (_, parameter), value in zip([x for group in model.trained() for x in group], saved, strict=True):
        parameter.copy_(value)


def head_for(used: Sequence[Trajectory], loss: Loss, bins: int) -> ReturnHead:
    returns = np.concatenate([trajectory.returns() or () for trajectory in used])
    low, high = float(returns.min()), float(returns.max())
    if loss == "bce" and not (low >= 0.0 and high <= 1.0):
        raise TrainingDataError(
            f"returns lie in [{low:g}, {high:g}] and loss='bce' needs [0, 1]: rescale the reward, or train with"
            " loss='two_hot', 'hl_gauss' or 'mse'"
        )
    binary = bool(np.isin(returns, (0.0, 1.0)).all())
    if binary:
        low, high = 0.0, 1.0
    elif low == high:
        low, high = low - 0.5, high + 0.5
    return ReturnHead(loss=loss, low=low, high=high, binary=binary, bins=bins)


def _max_length(model: ValueModel, asked: int | None) -> int:
    config = model.classifier.config.get_text_config().to_dict()
    allowed = int(config.get("max_position_embeddings") or config.get("n_positions") or MAX_LENGTH)
    if asked is not None and asked > allowed:
        raise ConfigurationError(f"max_length={asked} is more than the {allowed} tokens the base model can read")
    return min(allowed, MAX_LENGTH) if asked is None else asked


def _check_targets(td_lambda: float, calibrate: str, loss: str) -> None:
    if calibrate not in get_args(Calibrate):
        raise ConfigurationError(f"calibrate={calibrate!r} is unknown: choose one of {', '.join(get_args(Calibrate))}")
    if not (is_number(td_lambda) and 0 <= td_lambda <= 1):
        raise ConfigurationError(f"td_lambda lies in [0, 1], got {td_lambda!r}")
    if td_lambda < 1 and loss in ("two_hot", "hl_gauss"):
        raise ConfigurationError(f"loss={loss!r} learns the distribution of returns itself: leave td_lambda at 1")


def _check_options(
    counts: Mapping[str, int | None], rates: Mapping[str, float | None], shares: Mapping[str, float]
) -> None:
    for name, count in counts.items():
        if count is not None:
            check_whole(name, count, 1)
    for name, rate in rates.items():
        if rate is not None and not (is_number(rate) and rate > 0):
            raise ConfigurationError(f"{name} must be positive, got {rate!r}")
    for name, share in shares.items():
        if not (is_number(share) and 0 <= share < 1):
            raise ConfigurationError(f"{name} is a fraction in [0, 1), got {share!r}")


def _check_numbers(seed: int, max_length: int | None, weight_decay: float, lora: Lora) -> None:
    check_whole("seed", seed)
    if lora != "auto" and not isinstance(lora, bool) and not is_whole(lora, 1):
        raise ConfigurationError(f"lora is 'auto', True, False or a rank of at least 1, got {lora!r}")
    if max_length is not None and not is_whole(max_length, 4):
        raise ConfigurationError(f"max_length must be at least 4 tokens, got {max_length!r}")
    if not (is_number(weight_decay) and weight_decay >= 0):
        raise ConfigurationError(f"weight_decay is a number of at least 0, got {weight_decay!r}")
