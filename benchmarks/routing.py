"""A task of one short answer, for studies that need many rollouts: send a request to the desk it is for.

A request is six words. Each of 64 words speaks for one of 8 desks, and the right desk is the one that most words of
the request speak for, so requests that were never seen can be answered. The reward is 1 for the right desk, else 0.
The policy is a Llama of 2 layers and 23,000 weights, made here in seconds: it has seen some labelled requests, some
of them labelled wrongly, and greedily it is right on two of three. At temperature 1 one rollout is one token.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable
from pathlib import Path

import torch
from sudoku_direct import Episode
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.generation import GenerationRequest
from langgraph_amc.policy.seeds import mix
from langgraph_amc.tasks import Task, TaskSet

DESKS = ("billing", "travel", "security", "network", "payroll", "library", "catering", "repairs")
WORDS = tuple(f"{desk[:4]}{k}" for desk in DESKS for k in range(8))
_LENGTH, _WIDTH = 6, 32
_CHAT = "{% for message in messages %}{{ message['content'] + ' to' }}{% endfor %}"


def request(rng: random.Random) -> tuple[str, str]:
    """Six words and the desk that most of them speak for."""
    while True:
        words = rng.choices(WORDS, k=_LENGTH)
        (desk, most), *others = Counter(DESKS[WORDS.index(word) // 8] for word in words).most_common(2)
        if not others or others[0][1] < most:
            return " ".join(words), desk


def tasks(train: int, held_out: int) -> TaskSet:
    """Requests of two splits, ``train`` and ``validation``, all different."""
    rng, seen = random.Random(0), dict[str, str]()
    while len(seen) < train + held_out:
        text, desk = request(rng)
        seen[text] = desk
    return TaskSet(
        Task(f"request-{i}", {"text": text}, {"desk": desk}, split="train" if i < train else "validation")
        for i, (text, desk) in enumerate(seen.items())
    )


async def play(
    engine: BatchEngine, task: Task, noise: tuple[Hashable, ...], member: Hashable | None, temperature: float
) -> Episode:
    """Ask once."""
    asked = tuple(engine.codec.prompt([{"role": "user", "content": task.input["text"]}], None))
    seed = mix(noise, "p0", 0)
    (said,) = await engine.agenerate(
        GenerationRequest(prompt_ids=asked, max_tokens=1, temperature=temperature, seed=seed, variant=member)
    )
    return Episode(float(said.text.strip() == task.reference["desk"]), ((asked, said.token_ids),))


def make_policy(folder: Path, *, steps: int, seed: int = 0) -> Path:
    """Train the policy for so many steps, unless it is there, and write it as a folder of Hugging Face's."""
    if (folder / "config.json").is_file():
        return folder
    vocabulary = {word: i for i, word in enumerate(("<pad>", "<unk>", "<end>", "to", *DESKS, *WORDS))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", eos_token="<end>", chat_template=_CHAT
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=_WIDTH,
            intermediate_size=2 * _WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=2,
        )
    )
    optimizer, rng = torch.optim.AdamW(model.parameters(), lr=3e-3), random.Random(seed + 1)
    for _ in range(steps):
        batch = [request(rng) for _ in range(64)]
        labels = [rng.choice(DESKS) if rng.random() < 0.2 else desk for _, desk in batch]
        ids = torch.tensor([[vocabulary[word] for word in (*text.split(), "to")] for text, _ in batch])
        logits = model(input_ids=ids).logits[:, -1]
        loss = F.cross_entropy(logits, torch.tensor([vocabulary[desk] for desk in labels]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
