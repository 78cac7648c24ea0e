"""Tiny real models and a small world whose value is known: a run fails for good once it has slipped."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from langgraph_amc.trajectories.types import Trajectory

WORDS = ["task", "act", "obs", "fine", "slip", "go", *(f"n{i}" for i in range(40))]
FINGERPRINT = "sha256:transcript"


def word_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", "<eos>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>")


def tiny_config(family: str = "llama", **changes: object) -> PretrainedConfig:
    common = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4 if family == "llama" else 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    return {"llama": LlamaConfig, "qwen2": Qwen2Config}[family](**{**common, **changes})


def saved_base(folder: Path, config: PretrainedConfig, seed: int = 0) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def slippery_runs(tasks: int = 12, runs: int = 8, steps: int = 4, slip: float = 0.2, seed: int = 0) -> list[Trajectory]:
    """Runs of ``steps`` steps; each may slip, and a run that has slipped ends with outcome 0, else with 1."""
    rng = random.Random(seed)
    found = []
    for task in range(tasks):
        names = " ".join(f"n{rng.randrange(40)}" for _ in range(4))
        for run in range(runs):
            slips = [rng.random() < slip for _ in range(steps)]
            segments = [f"task {names} go "]
            segments += [f"act n{rng.randrange(40)} obs {'slip' if s else 'fine'} " for s in slips]
            found.append(
                Trajectory(
                    run_id=f"run-{task}",
                    particle=str(run),
                    segments=tuple(segments),
                    outcome=0.0 if any(slips) else 1.0,
                    status="failed" if any(slips) and run % 2 else "finished",
                    task_id=f"task-{task}",
                    fingerprint=FINGERPRINT,
                )
            )
    return found
