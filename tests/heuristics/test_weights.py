"""A small local model that writes: every answer is a candidate and a sample for the step of its weights."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

from langgraph_amc.evaluate.coevolving.rollouts import NO_WEIGHTS
from langgraph_amc.evaluate.designing import design
from langgraph_amc.evaluate.designing.weights import NoWeights
from langgraph_amc.evolution.history import Header, History, read
from langgraph_amc.evolution.replay import load, replay
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.heuristics import BinPacking, Limits, Search, search
from langgraph_amc.heuristics.asking import prompt_of
from tests.support.tiny_models import CHATML, tiny_model

PACKING = BinPacking(items=40)
FORMULAS = ("item - room", "room", "item", "room - item", "1 / 0", "-room * room", "room * item", "(")
"""All that this model can say: one word of its vocabulary is a whole function."""


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a grammar of eight functions."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    functions = [f"def priority(item, room):\n    return {formula}\n" for formula in FORMULAS]
    vocab = {token: i for i, token in enumerate(["<pad>", "<unk>", "<end>", *functions])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path_factory.mktemp("writer")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="<end>", chat_template=CHATML
    )
    fast.save_pretrained(folder)
    tiny_model(vocab=len(vocab), num_hidden_layers=1, initializer_range=0.1).save_pretrained(folder)
    return folder


def failing(model: Any, writer: Path) -> float:
    """How likely the model is, by its own probabilities, to write one of the functions that cannot run."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(writer)
    prompt = prompt_of(PACKING, "start", [])
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    with torch.no_grad():
        likely = model(ids).logits[0, -1].softmax(-1)
    return float(sum(likely[3 + FORMULAS.index(formula)] for formula in ("1 / 0", "(")))


def test_the_weights_learn_to_write_what_does_well(writer: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "settings": Search(generations=5, requests=4, kept=4, instances=1, limits=Limits(seconds=3)),
        "strategy": Strategy(population=16, sigma=0.1, alpha_ratio=3.0, seed=2),
        "options": {"max_tokens": 1},
        "held_out": 2,
    }
    found = design(PACKING, f"amc-local/{writer}", out=tmp_path / "out", **given)
    log = read(tmp_path / "out" / "history.jsonl")
    assert found.answers == 5 * 16 * 4
    assert len({log.header.weights, *(record.weights for record in log.records)}) == 6
    tuned = replay(tmp_path / "out" / "history.jsonl", writer)
    assert tuned.hash() == found.weights

    assert failing(tuned.model, writer) < 0.9 * failing(load(writer), writer)
    again = design(PACKING, f"amc-local/{writer}", out=tmp_path / "out", **given)
    assert again == found


def test_left_alone_it_only_writes(writer: Path, tmp_path: Path) -> None:
    settings = Search(generations=2, kept=4, instances=1)
    found = design(
        PACKING,
        f"amc-local/{writer}",
        out=tmp_path,
        settings=settings,
        strategy=Strategy(population=8),
        tune=False,
        options={"max_tokens": 1},
        held_out=2,
    )
    assert found.weights == NO_WEIGHTS
    assert found.answers == 16


def test_members_of_a_pair_are_asked_the_same_with_the_same_luck(tmp_path: Path) -> None:
    """What the search asks, seen by a writer that answers from the request alone."""
    seen: list[Any] = []

    class Scribe:
        name = "scribe"

        async def write(self, request: Any) -> str:
            seen.append(request)
            return PACKING.known

    class Weights(NoWeights):
        weighty = True

    async def going() -> None:
        header = Header(Strategy(population=4), "all", NO_WEIGHTS, NO_WEIGHTS)
        settings = Search(generations=2, requests=2, instances=1)
        with History(tmp_path / "h.jsonl", header) as history:
            async with aclosing(search(PACKING, settings, Scribe(), Weights(), history)) as generations:
                async for searched in generations:
                    assert searched.record.update.is_zero  # all wrote the same, so no direction is better

    asyncio.run(going())
    first = seen[:8]
    assert len({request.member for request in first}) == 4
    assert len({(request.noise, request.prompt) for request in first}) == 2
    assert {request.operator for request in seen[8:]} <= {"change", "tune", "differ", "combine"}
