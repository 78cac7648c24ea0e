"""Heuristics written by a small local model, with and without steps of its weights, at equal answers.

    python benchmarks/heuristics_study.py --out heuristics [--quick] [--problems bin-packing tour] [--seeds 3]
        [--generations 24] [--population 16]

The model is a random one-layer Llama whose vocabulary is a grammar: each word is a term of a sum, an answer is three
of them. It reads no prompt, so parents teach it nothing: *sampling* draws from the model as it is, *with steps* evolves
its weights from the very same kind of answers. What is shown is whether steps from ranks of answers pay, in a search in
which nothing else could. Best of the search on instances that played no part, less the well-known heuristic; intervals
are 95 %, over instances and seeds alike (Owen 2007). Kept in --out, can be called again. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from kept import read, same, write
from rich.console import Console
from rich.table import Table
from sudoku_table import crossed, signed

from langgraph_amc.evaluate.designing.weights import LocalWeights, NoWeights
from langgraph_amc.evaluate.evolving.replica import Replica
from langgraph_amc.evaluate.evolving.replicas import Tuning
from langgraph_amc.evolution import Header, History, Strategy
from langgraph_amc.heuristics import PROBLEMS, Limits, ModelWriter, Problem, Search, judge, search
from langgraph_amc.heuristics.asking import Request
from langgraph_amc.policy.litellm_setup import load_litellm

TERMS, HELD_OUT = 3, 16
SAMPLING, STEPS = "sampling", "with steps"
CHAT = "{% for m in messages %}{{ m['role'] }} {% endfor %}"


def terms_of(problem: Problem) -> list[str]:
    """The words of the grammar: signed, scaled features, squares and products."""
    names = problem.arguments
    features = [*names, *(f"{n}*{n}" for n in names), *(f"{a}*{b}" for a, b in itertools.pairwise(names))]
    return [f"{sign}{scale}*{feature}" for feature in features for sign in "+-" for scale in ("0.1", "0.5", "1")]


def save_writer(folder: Path, words: Sequence[str], seed: int) -> Path:
    """A random model that says these words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocab = {word: i for i, word in enumerate(["<pad>", "<unk>", "<end>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<end>", chat_template=CHAT
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(
        LlamaConfig(vocab_size=len(vocab), pad_token_id=0, eos_token_id=2, tie_word_embeddings=False, **size)
    ).save_pretrained(folder)
    return folder


class Grammar:
    """The model's words as the sum that a function returns."""

    def __init__(self, problem: Problem, model: str) -> None:
        self._writer = ModelWriter(model, max_tokens=TERMS)
        self._head = f"def {problem.function}({', '.join(problem.arguments)}):\n    return 0 "
        self.name = model

    async def write(self, request: Request) -> str:
        """Ask, and put the sum into the function."""
        return self._head + await self._writer.write(request)


async def run(given: argparse.Namespace, problem: Problem, arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """One search, and its best function on instances that played no part."""
    model = save_writer(folder / "model", terms_of(problem), seed)
    replica = Replica(Tuning(str(model)))
    try:
        weights = LocalWeights(replica) if arm == STEPS else NoWeights()
        strategy = Strategy(population=given.population, sigma=given.sigma, alpha_ratio=given.ratio, seed=seed)
        settings = Search(generations=given.generations, instances=2, seed=seed, limits=Limits(seconds=5))
        header = Header(strategy, "all", weights.layout, await weights.restore([]), {"problem": problem.name})
        curve, population = [], ()
        with History(folder / "history.jsonl", header) as history:
            found = search(problem, settings, Grammar(problem, f"amc-local/{model}"), weights, history)
            async with aclosing(found) as generations:
                async for searched in generations:
                    population = searched.population
                    scores = [j.score for row in searched.judged for j in row if j.score is not None]
                    curve.append(float(np.mean(scores)) if scores else None)
    finally:
        replica.close()
    instances = problem.instances(1_000_003 + seed, HELD_OUT)
    held_out = [judge(problem, population[0].source, [i], settings.limits).score for i in instances]
    known = [judge(problem, problem.known, [i], settings.limits).score for i in instances]
    return {"best": population[0].source, "held_out": held_out, "known": known, "mean of answers": curve}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--generations", type=int, default=24)
    parser.add_argument("--population", type=int, default=16)
    parser.add_argument("--sigma", type=float, default=0.05)
    parser.add_argument("--ratio", type=float, default=1.0, help="alpha by sigma")
    parser.add_argument("--quick", action="store_true", help="whether it runs: a size that shows little else")
    given = parser.parse_args()
    if given.quick:
        given.problems, given.seeds, given.generations, given.population = ["bin-packing"], 1, 6, 8
    return given


def main() -> None:
    """Run what is missing, and print the table."""
    given = options()
    load_litellm()
    same(given.out, {k: v for k, v in vars(given).items() if k not in ("out", "seeds", "quick", "problems")})
    console = Console(width=None if os.isatty(1) else 140)
    shown = Table("problem", "arm", "mean of answers, first and last third", "best", "best minus known")
    result: dict[str, Any] = {}
    for name in given.problems:
        for arm in (SAMPLING, STEPS):
            cells = []
            for seed in range(given.seeds):
                folder = given.out / f"{name}-{arm.replace(' ', '-')}-{seed}"
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / "measured.json"
                cells.append(read(path) or asyncio.run(run(given, PROBLEMS[name], arm, seed, folder)))
                write(path, cells[-1])
            third = max(1, given.generations // 3)
            curve = np.array([cell["mean of answers"] for cell in cells], float)
            ours, known = (np.array([cell[k] for cell in cells], float).T for k in ("held_out", "known"))
            first, last = np.nanmean(curve[:, :third]), np.nanmean(curve[:, -third:])
            gain = crossed(ours - known)
            shown.add_row(name, arm, f"{first:.3f} -> {last:.3f}", str(crossed(ours)), signed(gain))
            result[f"{name}, {arm}"] = {
                "first": first,
                "last": last,
                "best": asdict(crossed(ours)),
                "gain": asdict(gain),
            }
    console.print(shown)
    print(json.dumps({"arms": result, "seeds": given.seeds, "quick": given.quick}))


if __name__ == "__main__":
    main()
