"""Train the demo's policy from scratch: a tiny Llama that clones a slipping expert of the crafting world.

Writes an ordinary Hugging Face folder (ChatML chat template, word-level tokenizer). About 20 minutes on one
core::

    python examples/crafting/train_policy.py --out src/langgraph_amc/demo/policy --minutes 18

Training has two phases on the seeds of the "policy" split only: first the expert's action is the label at
every step (slips happen but are not imitated), then slips are imitated too, so that the finished policy errs
by the step.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
SMALL = Shape(recipes=(2, 3), plan_steps=(3, 7))


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


def build_model(vocab_size: int, pad: int, eos: int, *, width: int, layers: int, seed: int) -> LlamaForCausalLM:
    """A randomly initialised Llama with heads of 32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=pad,
        bos_token_id=None,
        eos_token_id=eos,
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
    vocab: dict[str, int], task: CraftingTask, steps: list[DemoStep], imitate_slips: bool, observed: float
) -> tuple[list[int], list[float]]:
    """Token ids and loss weights of a demonstration: 1 for actions, ``observed`` for observations."""
    user, assistant, end = vocab["<|im_start|>user\n"], vocab["<|im_start|>assistant\n"], vocab[END]
    ids = [user, *(vocab[w] for w in task.prompt.split()), end]
    weights = [0.0] * len(ids)
    for step in steps:
        action = [vocab[w] for w in step.message.split()] + [end]
        label = 1.0 if imitate_slips or not step.slip else 0.0
        observation = [vocab[w] for w in step.observation.split()] + [end]
        ids += [assistant, *action, user, *observation]
        weights += [0.0, *[label] * len(action), 0.0, *[observed] * len(observation)]
    return ids, weights


def copy_batches(vocab_size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Random words said over and over: pure copying, to settle the induction circuit."""
    while True:
        period = int(torch.randint(6, 31, (), generator=generator))
        words = torch.randint(len(ROLES) + 3, vocab_size, (16, period), generator=generator)
        yield words.repeat(1, 96 // period + 1)[:, :96]


def warm_up(model: LlamaForCausalLM, seconds: float, seed: int) -> None:
    """Train on copying alone for ``seconds`` of CPU time."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05, betas=(0.9, 0.98))
    start = time.process_time()
    for tokens in copy_batches(model.config.vocab_size, torch.Generator().manual_seed(seed)):
        if time.process_time() - start > seconds:
            break
        logits = model(tokens).logits[:, 31:-1]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 32:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"copying: loss {loss.item():.3f}", flush=True)


def batches(
    vocab: dict[str, int], seeds: Iterator[int], budget: int, progress: Any, args: argparse.Namespace
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Length-bucketed batches of about ``budget`` padded tokens, generated on the fly."""
    rng = random.Random(args.seed)
    while True:
        pool = []
        for _ in range(320):
            done = progress()
            seed = next(seeds)
            shape = SMALL if rng.random() < max(0.0, 0.9 - 4.0 * done) * (args.start is None) else DEFAULT_SHAPE
            task = make_task(seed, stock="unlimited" if rng.random() < 0.25 else "finite", shape=shape)
            late = done > args.late
            slips = Slips(args.wasteful, args.harmless) if late else Slips(0.15, 0.08)
            pool.append(encode(vocab, task, demonstrate(task, rng, slips), late, args.observed))
        pool.sort(key=lambda e: len(e[0]))
        groups: list[list[tuple[list[int], list[float]]]] = [[]]
        for example in pool:
            if (len(groups[-1]) + 1) * len(example[0]) > budget:
                groups.append([])
            groups[-1].append(example)
        rng.shuffle(groups)
        for group in groups:
            length = max(len(ids) for ids, _ in group)
            tokens = torch.zeros(len(group), length, dtype=torch.long)
            weights = torch.zeros(len(group), length)
            for row, (ids, weight) in enumerate(group):
                tokens[row, : len(ids)] = torch.tensor(ids)
                weights[row, : len(ids)] = torch.tensor(weight)
            yield tokens, weights


def train(model: LlamaForCausalLM, vocab: dict[str, int], args: argparse.Namespace) -> None:
    """Behaviour cloning with AdamW and a cosine schedule over ``args.minutes`` of CPU time."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, betas=(0.9, 0.98))
    start, total = time.process_time(), args.minutes * 60.0

    def progress() -> float:
        return min(1.0, (time.process_time() - start) / total)

    seeds = iter(SPLITS["policy"][args.seed * 1_000_000 :])
    seen, running = 0, 0.0
    model.train()
    for step, (tokens, weights) in enumerate(batches(vocab, seeds, args.batch, progress, args), 1):
        done = progress()
        if done >= 1.0:
            break
        rate = args.lr * min(1.0, step / 50) * max(0.03, 0.5 * (1.0 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        # padding is on the right and the mask causal, so no attention mask is needed
        hidden = model.model(tokens).last_hidden_state[:, :-1]
        picked = weights[:, 1:] > 0
        losses = F.cross_entropy(model.lm_head(hidden[picked]), tokens[:, 1:][picked], reduction="none")
        label_weights = weights[:, 1:][picked]
        loss = (losses * label_weights).sum() / label_weights.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen += tokens.numel()
        acts = label_weights == 1.0
        running = 0.98 * running + 0.02 * float(losses[acts].mean().detach())
        if step % 100 == 0:
            spent = time.process_time() - start
            bias = 1.0 - 0.98**step
            print(
                f"step {step} cpu {spent:.0f}s tokens {seen / 1e6:.2f}M {seen / spent:.0f}/s "
                f"action loss {running / bias:.3f}",
                flush=True,
            )
        if args.checkpoint_every and step % args.checkpoint_every == 0:
            model.save_pretrained(args.out)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="continue from this folder")
    parser.add_argument("--minutes", type=float, default=18.0, help="CPU minutes")
    parser.add_argument("--warm-up", type=float, default=20.0, help="CPU seconds of copying before anything else")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--batch", type=int, default=3072, help="padded tokens per step")
    parser.add_argument("--late", type=float, default=0.75, help="share of training after which slips are imitated")
    parser.add_argument("--wasteful", type=float, default=0.15)
    parser.add_argument("--harmless", type=float, default=0.03)
    parser.add_argument("--observed", type=float, default=0.2, help="loss weight of observation tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-every", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    vocab = tokenizer.get_vocab()
    if args.start:
        model = LlamaForCausalLM.from_pretrained(args.start, dtype=torch.float32)
    else:
        model = build_model(
            len(tokenizer),
            tokenizer.pad_token_id,
            tokenizer.eos_token_id,
            width=args.width,
            layers=args.layers,
            seed=args.seed,
        )
        warm_up(model, args.warm_up, args.seed)
    tokenizer.save_pretrained(args.out)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, vocabulary {len(tokenizer)}")
    train(model, vocab, args)
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()
