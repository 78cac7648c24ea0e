"""TRL's trainers for stored data, fed with tokens that the policy read and said.

TRL's own are the losses, the reference model's log-probabilities and the loop. Not TRL's is the tokenisation: it counts
everything after a prompt as the completion, tool results included, and renders a conversation as one text where an
engine renders call by call. Here only sampled tokens are in the loss.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from langgraph_amc_trl.methods import DPO, KTO, SFT, Method
from langgraph_amc_trl.optimizer import MasterAdamW
from langgraph_amc_trl.sequences import TokenSequence

Weighing = dict[str, torch.Tensor]


def padded(sequences: Sequence[TokenSequence], prefix: str = "") -> Weighing:
    """Right-padded ids, which are there, and which the policy sampled."""
    width = max(len(s.ids) for s in sequences)
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    there, sampled = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        n = len(sequence.ids)
        ids[row, :n] = torch.tensor(sequence.ids)
        there[row, :n] = 1
        sampled[row, :n] = torch.tensor(sequence.sampled, dtype=torch.long)
    return {f"{prefix}input_ids": ids, f"{prefix}attention_mask": there, f"{prefix}completion_mask": sampled}


class _TokenDPOTrainer(DPOTrainer):
    def _prepare_dataset(self, dataset: Any, *args: Any, **options: Any) -> Any:
        return dataset  # it is tokens already


class _TokenKTOTrainer(KTOTrainer):
    def _prepare_dataset(self, dataset: Any, *args: Any, **options: Any) -> Any:
        return dataset


def _pairs(rows: list[dict[str, Any]]) -> Weighing:
    """The better halves of a batch, then the worse ones, as `DPOTrainer` takes them."""
    return padded([_sequence(row, "chosen") for row in rows] + [_sequence(row, "rejected") for row in rows])


def _labelled(rows: list[dict[str, Any]]) -> Weighing:
    """Sequences with labels, and each prompt with the completion of another, from which KTO takes its KL."""
    matched = [_sequence(row, "own") for row in rows]
    others = [*matched[-1:], *matched[:-1]]
    mixed = [_mixed(one, other) for one, other in zip(matched, others, strict=True)]
    labels = torch.tensor([bool(row["label"]) for row in rows])
    return {**padded(matched), **padded(mixed, "KL_"), "label": labels}


def _mixed(one: TokenSequence, other: TokenSequence) -> TokenSequence:
    """What one answered to, with what the other said; as long as the longer of the two, which the model can read."""
    start, end, most = one.context, other.context, max(len(one.ids), len(other.ids))
    ids, sampled = one.ids[:start] + other.ids[end:], one.sampled[:start] + other.sampled[end:]
    return TokenSequence(ids[:most], sampled[:most])


def _columns(sequence: TokenSequence, name: str) -> dict[str, Any]:
    return {f"{name}_ids": list(sequence.ids), f"{name}_sampled": list(sequence.sampled)}


def _sequence(row: dict[str, Any], name: str) -> TokenSequence:
    return TokenSequence(tuple(row[f"{name}_ids"]), tuple(row[f"{name}_sampled"]))


def dpo_trainer(
    model: Any, tokenizer: Any, pairs: Sequence[tuple[TokenSequence, TokenSequence]], method: DPO, scratch: str
) -> Any:
    """A trainer on (chosen, rejected) sequences."""
    rows = [{**_columns(chosen, "chosen"), **_columns(rejected, "rejected")} for chosen, rejected in pairs]
    config = DPOConfig(
        beta=method.beta,
        loss_type=["sigmoid", "sft"] if method.sft else ["sigmoid"],
        loss_weights=[1.0, method.sft] if method.sft else None,
        max_length=None,
        disable_dropout=True,
        **_shared(model, method, scratch),
    )
    return _trainer(
        _TokenDPOTrainer, model, tokenizer, rows, config, method, data_collator=_pairs, ref_model=copy.deepcopy(model)
    )


def kto_trainer(
    model: Any, tokenizer: Any, labelled: Sequence[tuple[TokenSequence, bool]], method: KTO, scratch: str
) -> Any:
    """A trainer on sequences with labels, in an order drawn from the seed."""
    order = torch.randperm(len(labelled), generator=torch.Generator().manual_seed(method.seed)).tolist()
    rows = [{**_columns(labelled[i][0], "own"), "label": labelled[i][1]} for i in order]
    good = sum(label for _, label in labelled)
    bad = len(labelled) - good
    config = KTOConfig(
        beta=method.beta,
        desirable_weight=max(1.0, bad / good),
        undesirable_weight=max(1.0, good / bad),
        max_length=None,
        disable_dropout=True,
        **_shared(model, method, scratch),
    )
    return _trainer(
        _TokenKTOTrainer,
        model,
        tokenizer,
        rows,
        config,
        method,
        data_collator=_labelled,
        ref_model=copy.deepcopy(model),
    )


def sft_trainer(model: Any, tokenizer: Any, sequences: Sequence[TokenSequence], method: SFT, scratch: str) -> Any:
    """A trainer on sequences; the loss is a mean over the sampled tokens of a batch."""
    rows = [
        {
            "input_ids": list(s.ids),
            "labels": [token if own else -100 for token, own in zip(s.ids, s.sampled, strict=True)],
        }
        for s in sequences
    ]
    config = SFTConfig(
        max_length=None, dataset_kwargs={"skip_prepare_dataset": True}, **_shared(model, method, scratch)
    )
    return _trainer(SFTTrainer, model, tokenizer, rows, config, method)


def _trainer(
    kind: Any, model: Any, tokenizer: Any, rows: list[dict[str, Any]], config: Any, method: Method, **more: Any
) -> Any:
    optimizer = MasterAdamW(
        model.parameters(), lr=method.learning_rate, weight_decay=method.weight_decay, betas=(0.9, 0.999)
    )
    trainer = kind(
        model=model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=copy.deepcopy(tokenizer),
        optimizers=(optimizer, None),
        **more,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _shared(model: Any, method: Method, scratch: str) -> dict[str, Any]:
    return {
        "output_dir": scratch,
        "num_train_epochs": method.epochs,
        "per_device_train_batch_size": method.micro_batch,
        "gradient_accumulation_steps": method.accumulation,
        "learning_rate": method.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": method.warmup,
        "max_grad_norm": method.max_grad_norm,
        "seed": method.seed,
        "bf16": False,
        "use_cpu": next(model.parameters()).device.type == "cpu",
        "gradient_checkpointing": False,
        "remove_unused_columns": False,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
