"""One generation of an evolution strategy: the whole population in one batch, against its two alternatives.

32 members x 2 tasks x 5 turns x 16 new tokens in float32 through one batch engine, on a Llama of 135M parameters
(SmolLM2-135M's geometry, random weights) and on the sub-1M policy of the demo. The arms, each in a process of its own:

* one batch: all members at once with low-rank perturbations (rank 1 unless ``--rank``), their noise included;
* in place: one member at a time, noise drawn from its seed and added to every weight, two rollouts, and the noise
  drawn again and taken off: how the reference implementations work;
* no perturbation: as many rollouts of the model as it is. Their prompts differ, so that they share no prefix either.

The arms take turns, and the best time of each counts, since other load on the machine only ever adds to it; of the
members in place, which all cost the same, a few are run each time. A rollout of a task starts from 32 tokens, and 8
more come with every turn. Memory is the high-water mark of an arm's process above what it holds before the model is
loaded. The last line is JSON: ``vs_sequential`` and ``vs_unperturbed`` are ratios of rollout throughput (``_cpu``: per
second of processor time, which other load moves less), ``peak_memory_ratio`` is one batch by no perturbation; the
same of the demo's model with ``demo_``.

    python benchmarks/es_generation.py [--quick] [--rounds N] [--rank R] [--threads N]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import random
import re
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MEMBERS, TASKS, TURNS, NEW = 32, 2, 5, 16
PROMPT, OBSERVED = 32, 8
SIGMA = 1e-3
CHUNK = 8_388_608
ONE_BATCH, IN_PLACE, PLAIN = "one batch", "in place", "no perturbation"
SMOL = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


class Arm:
    """One way to get the rollouts of a generation, with a model and an engine of its own."""

    def __init__(self, name: str, size: str, quick: bool, rank: int) -> None:
        from langgraph_amc.evolution.layout import layout
        from langgraph_amc.policy.engine import BatchEngine

        self.name, self.rank = name, rank
        model, tokenizer = load(size, quick)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.engine = BatchEngine(model, tokenizer)
        self.engine.codec.end_ids = frozenset()  # every turn has its 16 tokens
        self.layout = layout(model)
        self.vocabulary = min(model.config.vocab_size, 200)
        self.number = 0

    def run(self, members: int) -> tuple[float, float]:
        """Seconds, and those of processor time, for this many members' noise or weights and their rollouts."""
        self.number += 1
        self.engine.on_weights_changed()  # nothing is left over from the last round
        gc.collect()
        began, cpu = time.perf_counter(), time.process_time()
        if self.name == IN_PLACE:
            for member in range(members):
                with self.perturbed(seed=1000 * self.number + member):
                    asyncio.run(self.rollouts([None]))
        elif self.name == PLAIN:
            asyncio.run(self.rollouts([None] * members))
        else:
            with self.engine.serving(self.low_rank(members)):
                asyncio.run(self.rollouts(list(self.low_rank_members(members))))
        return time.perf_counter() - began, time.process_time() - cpu

    def low_rank_members(self, count: int) -> Iterator[Any]:
        from langgraph_amc.evolution.members import Member

        return (Member(number // 2, 1 if number % 2 else -1) for number in range(count))

    def low_rank(self, count: int) -> Any:
        from langgraph_amc.evolution.low_rank import LowRank
        from langgraph_amc.evolution.members import Generation

        members = tuple(self.low_rank_members(count))
        return LowRank(self.layout, Generation(self.number, 0, SIGMA, "rademacher", self.rank, members))

    @contextmanager
    def perturbed(self, seed: int) -> Iterator[None]:
        """The model with noise added to every weight, taken off again by drawing it again."""
        for sign in (1, -1):
            with self.engine.paused() as model:
                for number, parameter in enumerate(model.parameters()):
                    add_noise(parameter, seed * 10_000 + number, sign * SIGMA)
            if sign == 1:
                yield

    async def rollouts(self, members: list[Hashable | None]) -> None:
        """All tasks for all of these members; each rollout takes its turns at its own pace."""
        await asyncio.gather(
            *[
                self.rollout(member, task, f"{task} {place}" if member is None else str(task))
                for place, member in enumerate(members)
                for task in range(TASKS)
            ]
        )

    async def rollout(self, member: Hashable | None, task: int, prompt: str) -> None:
        from langgraph_amc.policy.generation import GenerationRequest

        world = random.Random(prompt)
        ids = [world.randrange(3, self.vocabulary) for _ in range(PROMPT)]
        for turn in range(TURNS):
            request = GenerationRequest(prompt_ids=ids, max_tokens=NEW, seed=1000 * task + turn, variant=member)
            (said,) = await self.engine.agenerate(request)
            assert len(said.token_ids) == NEW
            ids = [*ids, *said.token_ids, *(world.randrange(3, self.vocabulary) for _ in range(OBSERVED))]


def load(size: str, quick: bool) -> tuple[Any, Any]:
    """The model and a tokenizer, which no rollout needs: they are of token ids."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    from langgraph_amc.demo import policy_folder

    tokenizer = AutoTokenizer.from_pretrained(policy_folder())
    if size == "demo":
        return AutoModelForCausalLM.from_pretrained(policy_folder(), dtype=torch.float32), tokenizer
    torch.manual_seed(0)
    config = LlamaConfig(**SMOL | ({"num_hidden_layers": 3, "vocab_size": 8192} if quick else {}))
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32), tokenizer


def add_noise(parameter: Any, seed: int, scale: float) -> None:
    """Normal noise from a seed, chunk by chunk, as in-place implementations add it."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    flat = parameter.detach().view(-1)
    for first in range(0, flat.numel(), CHUNK):
        part = flat[first : first + CHUNK]
        part.add_(torch.randn(part.shape, generator=generator), alpha=scale)


def peak_bytes() -> int:
    """High-water mark of this process's resident memory."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def serve(pipe: Connection, name: str, size: str, quick: bool, rank: int, threads: int | None) -> None:
    """A process with one arm: runs as many members as it is told to, and answers seconds, cpu seconds and bytes."""
    import torch
    import transformers

    from langgraph_amc.evolution import low_rank  # noqa: F401  # what is measured is memory above the imports
    from langgraph_amc.policy import engine  # noqa: F401

    transformers.utils.logging.disable_progress_bar()
    if threads is not None:
        torch.set_num_threads(threads)
    torch.mm(torch.ones(64, 64), torch.ones(64, 64))
    before = peak_bytes()
    arm = Arm(name, size, quick, rank)
    pipe.send((arm.parameters, torch.get_num_threads()))
    while (members := pipe.recv()) is not None:
        pipe.send((*arm.run(members), peak_bytes() - before))
    arm.engine.close()


def compare(size: str, rounds: int, share: int, options: argparse.Namespace) -> dict[str, Any]:
    """All arms in turns; ``share``: members per round of the arm that takes them one at a time."""
    context = multiprocessing.get_context("spawn")
    ends, processes = {}, []
    for name in (ONE_BATCH, IN_PLACE, PLAIN):
        ends[name], other = context.Pipe()
        task = context.Process(target=serve, args=(other, name, size, options.quick, options.rank, options.threads))
        task.start()
        processes.append(task)
    facts = [end.recv() for end in ends.values()]
    seconds: dict[str, list[float]] = {name: [] for name in ends}
    processor: dict[str, list[float]] = {name: [] for name in ends}
    memory: dict[str, int] = {}
    for turn in range(rounds + 1):  # the first one warms up
        for name in list(ends)[:: 1 if turn % 2 else -1]:
            members = 2 if not turn else share if name == IN_PLACE else MEMBERS
            ends[name].send(members)
            took, cpu, memory[name] = ends[name].recv()
            if turn:
                seconds[name].append(took * MEMBERS / members)
                processor[name].append(cpu * MEMBERS / members)
    for end in ends.values():
        end.send(None)
    for task in processes:
        task.join()
    best = {name: min(times) for name, times in seconds.items()}
    busy = {name: min(times) for name, times in processor.items()}
    report(size, facts[0], best, busy, memory)
    return {
        "vs_sequential": round(best[IN_PLACE] / best[ONE_BATCH], 2),
        "vs_unperturbed": round(best[PLAIN] / best[ONE_BATCH], 3),
        "vs_sequential_cpu": round(busy[IN_PLACE] / busy[ONE_BATCH], 2),
        "vs_unperturbed_cpu": round(busy[PLAIN] / busy[ONE_BATCH], 3),
        "peak_memory_ratio": round(memory[ONE_BATCH] / memory[PLAIN], 3),
    }


def report(
    size: str, facts: tuple[int, int], best: dict[str, float], busy: dict[str, float], memory: dict[str, int]
) -> None:
    """The table of one model."""
    parameters, threads = facts
    tokens = MEMBERS * TASKS * TURNS * NEW
    print(f"\n{size}: {parameters / 1e6:.1f}M parameters, float32, {threads} threads, {MEMBERS} x {TASKS} rollouts")
    print(f"{'':16}{'seconds':>9}{'cpu':>9}{'tokens/s':>10}{'rollouts/s':>12}{'MiB':>8}")
    for name, taken in best.items():
        rate = f"{tokens / taken:10.0f}{MEMBERS * TASKS / taken:12.2f}"
        print(f"{name:16}{taken:9.2f}{busy[name]:9.2f}{rate}{memory[name] / 2**20:8.0f}", flush=True)


def main() -> None:
    """Compare on both models, print the tables, then the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a model of three layers, one round")
    parser.add_argument("--rounds", type=int, default=4, help="of the large model; twice as many of the demo's")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--threads", type=int, default=None, help="of torch; by default what torch takes")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    large = compare("large", rounds, 2 if options.quick else 4, options)
    small = compare("demo", 2 * rounds, 4 if options.quick else 8, options)
    settings = {"members": MEMBERS, "tasks": TASKS, "turns": TURNS, "new_tokens": NEW, "rank": options.rank}
    print(json.dumps({**large, **{f"demo_{k}": v for k, v in small.items()}, **settings, "quick": options.quick}))


if __name__ == "__main__":
    main()
