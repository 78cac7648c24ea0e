"""Train the demo's policy from scratch: a tiny Llama that clones a slipping expert of the crafting world.

Writes an ordinary Hugging Face folder (ChatML chat template, word-level tokenizer). About ten
minutes on one core::

    python examples/crafting/train_policy.py --out src/langgraph_amc/demo/policy

Training has two phases on the seeds of the "policy" split only: first the expert's action is the label at
every step (slips happen but are not imitated), then slips are imitated too, so that the finished policy errs
by the step.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from langgraph_amc.demo.planner import DemoStep, Slips, demonstrate
from langgraph_amc.demo.taskgen import BASE, CRAFTED, DEFAULT_SHAPE, SPLITS, TAGS, Shape, make_task

if TYPE_CHECKING:
    from langgraph_amc.demo.crafting import CraftingTask

ROLES = ("system", "user", "assistant", "tool")
PAD, UNKNOWN, END = "<pad>", "<unk>", "<|im_end|>"
WORDS = (
    "Goal: Recipes: Other: Stock: Inventory: Thought: Action: , : any or unlimited using get craft inventory "
    "Got Crafted left Not enough Cannot Missing No recipe for that Unknown action empty"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ROPE_THETA = 1e5  # slow enough that content can be matched across a whole transcript
WIDTH, RATE, BATCH_TOKENS, WARM_UP_STEPS = 128, 2e-3, 3072, 160
LATE = 0.65  # share of the training after which slips are imitated
EARLY_SLIPS = Slips(wasteful=0.15, harmless=0.08)  # before that they only show how to go on from them
OBSERVED = 0.2  # loss weight of observation tokens: predicting the world helps to follow it
SMALL = Shape(recipes=(2, 3), plan_steps=(3, 7))

Encoded = list[tuple[list[int], list[float]]]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer in which each ChatML header is one token and commas stand alone."""
    specials = [PAD, UNKNOWN, END, *(f"<|im_start|>{role}\n" for role in ROLES)]
    words = [
        *WORDS.split(),
        *map(str, range(41)),
        *(f"r{k}{b}" for k in range(1, 8) for b in ("", "b")),
        *TAGS,
        *BASE,
        *CRAFTED,
    ]
    vocab = {word: i for i, word in enumerate(dict.fromkeys([*specials, *words]))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(","), "isolated"), pre_tokenizers.WhitespaceSplit()]
    )
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=1024,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> LlamaForCausalLM:
    """A Llama of four layers with four heads of 32, random but for an induction circuit."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=WIDTH // 32,
        num_key_value_heads=WIDTH // 32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
    )
    model = LlamaForCausalLM(config)
    plant_induction(model)
    return model


@torch.no_grad()
def plant_induction(model: LlamaForCausalLM) -> None:
    """Start from an induction circuit instead of waiting thousands of steps for one to emerge.

    The lower half of the residual stream holds the token, the upper half starts nearly empty, its last
    dimension is a constant. Head 0 of layer 0 attends to the previous position (rotary phases of the constant,
    shifted by one) and copies its token into the upper half; head 0 of layer 1 looks for positions whose
    *previous* token is the current one, and copies their token (Olsson et al. 2022). All of it stays trainable.
    """
    width, half = model.config.hidden_size, model.config.hidden_size // 2
    size = model.config.hidden_size // model.config.num_attention_heads
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0.0, 0.05)
    embedding[:, half:] *= 0.1
    embedding[:, -1] = 0.25
    speed = ROPE_THETA ** (-torch.arange(0, size, 2) / size)
    copy = torch.eye(size, width)

    first = model.model.layers[0].self_attn
    fast = (speed > 0.05).float()
    gain = (8.0 * math.sqrt(size) / float(fast.sum())) ** 0.5 / 2.5
    query, key = torch.zeros(size, width), torch.zeros(size, width)
    query[: size // 2, -1] = fast * gain
    key[: size // 2, -1] = fast * speed.cos() * gain
    key[size // 2 :, -1] = fast * speed.sin() * gain
    first.q_proj.weight[:size], first.k_proj.weight[:size] = query, key
    first.v_proj.weight[:size] = copy
    first.o_proj.weight[:, :size] = 0.15 * copy.T.roll(half, 0)

    second = model.model.layers[1].self_attn
    slow = [i for i in range(size // 2) if speed[i] < 0.008]
    slots = slow + [i + size // 2 for i in slow]
    query, key = torch.zeros(size, width), torch.zeros(size, width)
    for j, slot in enumerate(slots):
        query[slot, j] = key[slot, half + j] = 1.2
    second.q_proj.weight[:size], second.k_proj.weight[:size] = query, key
    second.v_proj.weight[:size] = copy
    second.o_proj.weight[:, :size] = 0.3 * copy.T


def encode(
    vocab: dict[str, int], task: CraftingTask, steps: list[DemoStep], imitate_slips: bool
) -> tuple[list[int], list[float]]:
    """Token ids of a demonstration, and loss weights: 1 for actions, less for observations, 0 for the rest."""
    user, assistant, end = vocab["<|im_start|>user\n"], vocab["<|im_start|>assistant\n"], vocab[END]
    ids = [user, *(vocab[w] for w in task.prompt.split()), end]
    weights = [0.0] * len(ids)
    for step in steps:
        action = [vocab[w] for w in step.message.split()] + [end]
        label = 1.0 if imitate_slips or not step.slip else 0.0
        observation = [vocab[w] for w in step.observation.split()] + [end]
        ids += [assistant, *action, user, *observation]
        weights += [0.0, *[label] * len(action), 0.0, *[OBSERVED] * len(observation)]
    return ids, weights


def copy_batches(vocab_size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Random words said over and over: pure copying, to settle the induction circuit."""
    while True:
        period = int(torch.randint(6, 31, (), generator=generator))
        words = torch.randint(len(ROLES) + 3, vocab_size, (16, period), generator=generator)
        yield words.repeat(1, 96 // period + 1)[:, :96]


def optimise(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """One clipped gradient step."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def warm_up(model: LlamaForCausalLM, seed: int) -> None:
    """Train on copying alone, about 20 CPU seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05, betas=(0.9, 0.98))
    random_words = copy_batches(model.config.vocab_size, torch.Generator().manual_seed(seed))
    for tokens in itertools.islice(random_words, WARM_UP_STEPS):
        logits = model(tokens).logits[:, 31:-1]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 32:].flatten())
        optimise(model, optimizer, loss)
    print(f"copying: loss {loss.item():.3f}", flush=True)


def demonstrations(
    vocab: dict[str, int], seeds: Iterator[int], rng: random.Random, done: float, slips: Slips
) -> Encoded:
    """320 encoded demonstrations for the point ``done`` (0 to 1) of the training."""
    late = done > LATE
    pool = []
    for seed in itertools.islice(seeds, 320):
        shape = SMALL if rng.random() < 0.9 - 4.0 * done else DEFAULT_SHAPE
        task = make_task(seed, stock="unlimited" if rng.random() < 0.25 else "finite", shape=shape)
        steps = demonstrate(task, rng, slips if late else EARLY_SLIPS)
        pool.append(encode(vocab, task, steps, late))
    return pool


def batches(vocab: dict[str, int], steps: int, seed: int, slips: Slips) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """``steps`` length-bucketed batches of token ids and loss weights, generated on the fly."""
    rng, made = random.Random(seed), 0
    seeds = iter(SPLITS["policy"][seed * 1_000_000 :])
    while made < steps:
        groups: list[Encoded] = [[]]
        for example in sorted(demonstrations(vocab, seeds, rng, made / steps, slips), key=lambda e: len(e[0])):
            if (len(groups[-1]) + 1) * len(example[0]) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(example)
        rng.shuffle(groups)
        for group in groups[: steps - made]:
            length = max(len(ids) for ids, _ in group)
            tokens = torch.zeros(len(group), length, dtype=torch.long)
            weights = torch.zeros(len(group), length)
            for row, (ids, weight) in enumerate(group):
                tokens[row, : len(ids)] = torch.tensor(ids)
                weights[row, : len(ids)] = torch.tensor(weight)
            made += 1
            yield tokens, weights


def train(model: LlamaForCausalLM, vocab: dict[str, int], steps: int, seed: int, slips: Slips) -> None:
    """Behaviour cloning with AdamW and a cosine schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05, betas=(0.9, 0.98))
    start, running = time.process_time(), 0.0
    model.train()
    for step, (tokens, weights) in enumerate(batches(vocab, steps, seed, slips), 1):
        decay = max(0.03, 0.5 * (1.0 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / 50) * decay
        # padding is on the right and the mask causal, so no attention mask is needed
        hidden = model.model(tokens).last_hidden_state[:, :-1]
        picked = weights[:, 1:] > 0
        losses = F.cross_entropy(model.lm_head(hidden[picked]), tokens[:, 1:][picked], reduction="none")
        label_weights = weights[:, 1:][picked]
        optimise(model, optimizer, (losses * label_weights).sum() / label_weights.sum())
        running = 0.98 * running + 0.02 * losses[label_weights == 1.0].mean().item()
        if step % 100 == 0 or step == steps:
            spent, bias = time.process_time() - start, 1.0 - 0.98**step
            print(f"step {step}/{steps} cpu {spent:.0f} s action loss {running / bias:.3f}", flush=True)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--wasteful", type=float, default=0.25, help="rate of slips that cannot be undone")
    parser.add_argument("--harmless", type=float, default=0.01, help="rate of slips that cost a step")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed=args.seed)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, vocabulary {len(tokenizer)}")
    warm_up(model, args.seed)
    train(model, tokenizer.get_vocab(), args.steps, args.seed, Slips(args.wasteful, args.harmless))
    tokenizer.save_pretrained(args.out)
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()
