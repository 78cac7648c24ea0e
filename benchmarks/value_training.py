"""Value training throughput: all states of a trajectory in one pass against one prompt per state.

Same model, same optimizer, same states and targets, same token budget per batch (padding included), trajectories
of T = 20 steps. Before anything is timed both ways must give the same loss on the same data. The last line is
JSON: ``speedup`` is the ratio of states per second.

    python benchmarks/value_training.py
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value.heads import ReturnHead
from langgraph_amc.value.model import ValueModel, new_model, pick_device
from langgraph_amc.value.tokens import Window
from langgraph_amc.value.training.dataset import Batch, DataSet, batches, build, targets
from langgraph_amc.value.training.transformer import batch_loss

STEPS, RUNS, ROUNDS, BATCH_TOKENS = 20, 12, 3, 4096
PROMPT_WORDS, STEP_WORDS = 90, 12
WORDS = [f"w{i}" for i in range(300)]
HEAD = ReturnHead("bce", 0.0, 1.0, binary=True)


def trajectories() -> list[Trajectory]:
    """Random runs with the lengths of the crafting demo: a prompt of 90 tokens and 12 tokens a step."""
    rng = random.Random(0)

    def text(words: int) -> str:
        return " ".join(rng.choices(WORDS, k=words)) + " "

    return [
        Trajectory(
            run_id=str(run // 4),
            particle=str(run),
            segments=(text(PROMPT_WORDS), *(text(STEP_WORDS) for _ in range(STEPS))),
            outcome=float(rng.random() < 0.5),
        )
        for run in range(RUNS)
    ]


def small_model() -> ValueModel:
    """A Llama of 0.9M parameters, all of them trained."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=1024,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>")
    return new_model(config, HEAD.size, tokenizer=tokenizer, lora=False, device=pick_device("cpu"))


def one_prompt_per_state(data: DataSet) -> DataSet:
    """The same states, each as a prompt of its own."""
    prompts = [
        Window(window.ids[: position + 1], np.array([position]), np.array([state]))
        for window in data.windows
        for position, state in zip(window.readouts, window.states, strict=True)
    ]
    return DataSet(tuple(prompts), data.states)


@torch.no_grad()
def data_loss(model: ValueModel, parts: Iterator[Batch], goals: torch.Tensor) -> float:
    """Mean loss over all states."""
    model.network.eval()
    even = torch.ones(len(goals))
    found = [(batch_loss(model, HEAD, b, goals, even).item(), len(b.states)) for b in parts]
    return sum(loss * count for loss, count in found) / len(goals)


def epoch_seconds(model: ValueModel, data: DataSet, goals: torch.Tensor, optimizer: torch.optim.Optimizer) -> float:
    """Wall seconds of one epoch of training."""
    even = torch.ones(len(goals))
    model.network.train()
    started = time.perf_counter()
    for batch in batches(data, BATCH_TOKENS, np.random.default_rng(0)):
        optimizer.zero_grad(set_to_none=True)
        batch_loss(model, HEAD, batch, goals, even).backward()
        optimizer.step()
    return time.perf_counter() - started


def table(rows: Sequence[Sequence[str]]) -> str:
    """Right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)


def main() -> None:
    """Compare, print the table, then the JSON line."""
    torch.set_num_threads(1)  # the ratio is the same, and threads that wait for one another measure the load
    model = small_model()
    packed = build(trajectories(), model.tokenizer, 1024)
    single = one_prompt_per_state(packed)
    goals = targets(packed.states, HEAD, average_siblings=False)
    ways = {"one pass": packed, "one prompt per state": single}
    losses = {name: data_loss(model, batches(data, BATCH_TOKENS, None), goals) for name, data in ways.items()}
    gap = abs(losses["one pass"] - losses["one prompt per state"])
    if gap > 1e-5:
        raise SystemExit(f"the two ways disagree: {losses}")
    optimizer = torch.optim.AdamW(model.network.parameters(), lr=1e-5)
    epoch_seconds(model, packed, goals, optimizer)  # warm-up
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):  # in turns, so that other load on the machine meets both
        for name, data in ways.items():
            seconds[name].append(epoch_seconds(model, data, goals, optimizer))
    typical = {name: statistics.median(found) for name, found in seconds.items()}
    states = len(packed.states)
    rows = [["", "tokens", "seconds an epoch", "states/s", "loss before"]]
    for name, data in ways.items():
        rate = f"{states / typical[name]:,.0f}"
        rows.append([name, f"{data.tokens:,}", f"{typical[name]:.2f}", rate, f"{losses[name]:.6f}"])
    parameters = sum(p.numel() for p in model.network.parameters())
    print(f"{RUNS} trajectories of T = {STEPS}, {states} states, {parameters:,} parameters")
    print(table(rows))
    speedup = typical["one prompt per state"] / typical["one pass"]
    print(json.dumps({"speedup": round(speedup, 2), "T": STEPS, "states": states, "loss_gap": gap}))


if __name__ == "__main__":
    main()
