"""Train the example's policy from scratch: a tiny Llama that clones a Sudoku solver that slips.

Writes an ordinary Hugging Face folder (ChatML chat template, word-level tokenizer)::

    python examples/sudoku/train_policy.py --out examples/sudoku/policy

Training stops long before the model has learnt all it could. So it errs in two ways: it imitates slips that more
certainty would avoid, and it misjudges boards, more of them the more cells are empty, which only better weights mend.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from sudoku.board import BOX, CELLS, DIGITS, EMPTY, SIZE, cell_name
from sudoku.demonstrations import demonstrate
from sudoku.env import INSTRUCTIONS, NO_MOVE, OUT_OF_RANGE
from sudoku.puzzles import practice_puzzle
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROLES = ("system", "user", "assistant", "tool")
PAD, UNKNOWN, END = "<pad>", "<unk>", "<|im_end|>"
SENTENCES = (INSTRUCTIONS, NO_MOVE, OUT_OF_RANGE)  # one token each: they say the same every time
WORDS = "Filled: Empty: Last turn: set Filled with is given filled already"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ROPE_THETA = 1e5  # slow enough that content can be matched across a whole prompt
WIDTH, LAYERS, HEADS, INNER = 96, 2, 4, 192
RATE, BOARDS, TURNS = 3e-3, 16, 6  # boards in a batch, turns of each
REPLY = 4  # tokens: set, the cell, the digit, the end

# Where the planted embeddings keep what a token says.
ROW, COLUMN, BOX_, DIGIT, BARE, ONE = 0, 9, 18, 27, 37, 39


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer in which ``r2c7``, ``r2c7=4``, ChatML headers and fixed sentences are one token each."""
    specials = [PAD, UNKNOWN, END, *(f"<|im_start|>{role}\n" for role in ROLES), *SENTENCES]
    cells = [cell_name(cell) for cell in range(CELLS)]
    known = [f"{name}={digit}" for name in cells for digit in DIGITS + EMPTY]
    vocab = {word: i for i, word in enumerate([*specials, *WORDS.split(), *DIGITS, *cells, *known])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
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
    """A Llama of two layers with four heads of 24, random but for what is planted."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            intermediate_size=INNER,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        )
    )
    plant_embeddings(model, tokenizer.get_vocab())
    plant_attention(model)
    return model


@torch.no_grad()
def plant_embeddings(model: LlamaForCausalLM, vocab: dict[str, int]) -> None:
    """Start from embeddings that tell where each cell is and what it holds."""
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0.0, 0.05)
    embedding[:, ONE] = 0.25
    for cell in range(CELLS):
        row, column = divmod(cell, SIZE)
        place = [ROW + row, COLUMN + column, BOX_ + row // BOX * BOX + column // BOX]
        embedding[vocab[cell_name(cell)], [*place, BARE]] += 0.5
        for k, digit in enumerate(DIGITS + EMPTY):
            embedding[vocab[f"{cell_name(cell)}={digit}"], [*place, DIGIT + k]] += 0.5
    for k, digit in enumerate(DIGITS):
        embedding[vocab[digit], DIGIT + k] += 0.5


@torch.no_grad()
def plant_attention(model: LlamaForCausalLM) -> None:
    """Start from rough attention instead of waiting for it to emerge; how to use it is learnt, all of it trainable.
    Without it the digits are still at chance after 300 steps.

    Three heads of layer 0 look at the cells of the same row, column and box and vote against the digits there.
    One head of layer 1 looks three tokens back, from ``set`` to the last empty cell, and names it.
    """
    size = WIDTH // HEADS
    speed = ROPE_THETA ** (-torch.arange(0, size, 2) / size)
    slow = [i for i in range(size // 2) if speed[i] < 0.006]  # phases that hardly turn within a prompt
    slots = (slow + [i + size // 2 for i in slow])[:SIZE]
    first, second = (layer.self_attn for layer in model.model.layers)
    for head, unit in enumerate((ROW, COLUMN, BOX_)):
        rows = slice(head * size, (head + 1) * size)
        query, value = torch.zeros(size, WIDTH), torch.zeros(size, WIDTH)
        query[slots, unit : unit + SIZE] = 1.3 * torch.eye(SIZE)
        value[:SIZE, DIGIT : DIGIT + SIZE] = torch.eye(SIZE)
        first.q_proj.weight[rows] = first.k_proj.weight[rows] = query
        first.v_proj.weight[rows] = value
        first.o_proj.weight[:, rows] = -0.3 * value.T
    fast = (speed > 0.05).float()
    gain = (5.0 * math.sqrt(size) / float(fast.sum())) ** 0.5 / 2.0
    query, key, value = (torch.zeros(size, WIDTH) for _ in range(3))
    query[: size // 2, ONE] = fast * gain
    key[: size // 2, ONE] = fast * (3 * speed).cos() * gain
    key[size // 2 :, ONE] = fast * (3 * speed).sin() * gain
    query[slots[0], ONE], key[slots[0], BARE] = 2.0, 1.0
    value[: 2 * SIZE, : 2 * SIZE] = torch.eye(2 * SIZE)  # row and column; the box follows from them
    second.q_proj.weight[:size], second.k_proj.weight[:size] = query, key
    second.v_proj.weight[:size] = value
    second.o_proj.weight[:, :size] = 0.3 * value.T


@dataclass(frozen=True, slots=True)
class Batch:
    """Several turns of each board in one row: the turns share the board and do not see each other.

    ``ids`` and ``positions`` are (boards, length), ``mask`` is additive, (boards, 1, length, length), ``reply`` tells
    the tokens to be learnt.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    reply: torch.Tensor


def encode(tokenizer: PreTrainedTokenizerFast, rng: random.Random, slip: float, lookahead: float) -> list[list[int]]:
    """Token ids of one board, and of some of the turns of one demonstration on it."""
    turns = demonstrate(*practice_puzzle(rng, lookahead=lookahead), rng, slip=slip, refused=0.03)
    chosen = rng.sample(turns, min(TURNS, len(turns)))
    board = chosen[0].prompt.partition("\nFilled:")[0]
    tails = [f"{turn.prompt.removeprefix(board)}{END}\n<|im_start|>assistant\n{turn.reply}{END}" for turn in chosen]
    return tokenizer([f"<|im_start|>user\n{board}", *tails], add_special_tokens=False)["input_ids"]


def collate(rows: list[list[list[int]]]) -> Batch:
    """Lay boards and turns out in tensors, padded on the right."""
    length = max(sum(map(len, parts)) for parts in rows)
    ids, positions = (torch.zeros(len(rows), length, dtype=torch.long) for _ in range(2))
    part_of, reply = torch.full((len(rows), length), -1), torch.zeros(len(rows), length, dtype=torch.bool)
    for row, parts in enumerate(rows):
        at = 0
        for number, part in enumerate(parts):
            here = slice(at, at + len(part))
            start = 0 if number == 0 else len(parts[0])
            ids[row, here] = torch.tensor(part)
            positions[row, here] = torch.arange(start, start + len(part))
            part_of[row, here] = number
            reply[row, here.stop - REPLY : here.stop] = number > 0
            at = here.stop
    order = torch.arange(length)
    board, own = part_of[:, None, :] == 0, part_of[:, None, :] == part_of[:, :, None]
    allowed = (order[:, None] >= order) & (board | own)
    mask = torch.zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(torch.float32).min).unsqueeze(1)
    return Batch(ids, positions, mask, reply)


def batches(tokenizer: PreTrainedTokenizerFast, seed: int, slip: float, lookahead: float) -> Iterator[Batch]:
    """Batches without end, made on the fly."""
    rng = random.Random(seed)
    while True:
        yield collate([encode(tokenizer, rng, slip, lookahead) for _ in range(BOARDS)])


def train(model: LlamaForCausalLM, made: Iterator[Batch], steps: int) -> None:
    """Behaviour cloning with AdamW and a cosine schedule."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05, betas=(0.9, 0.98))
    start, running = time.process_time(), torch.zeros(REPLY)
    model.train()
    for step, batch in enumerate(itertools.islice(made, steps), 1):
        decay = max(0.03, 0.5 * (1.0 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / 50) * decay
        hidden = model.model(
            input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions, use_cache=False
        ).last_hidden_state
        losses = F.cross_entropy(
            model.lm_head(hidden[:, :-1][batch.reply[:, 1:]]), batch.ids[batch.reply], reduction="none"
        )
        optimizer.zero_grad(set_to_none=True)
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running = 0.97 * running + 0.03 * losses.detach().view(-1, REPLY).mean(0)
        if step % 50 == 0 or step == steps:
            _, cell, digit, _ = (running / (1.0 - 0.97**step)).tolist()
            spent = time.process_time() - start
            print(f"step {step}/{steps} cpu {spent:.0f} s loss: cell {cell:.3f} digit {digit:.3f}", flush=True)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=230)
    parser.add_argument("--slip", type=float, default=0.02, help="chance that the solver writes a wrong digit")
    parser.add_argument("--lookahead", type=float, default=0.2, help="share of boards like the lookahead puzzles")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed=args.seed)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, vocabulary {len(tokenizer)}")
    train(model, batches(tokenizer, args.seed, args.slip, args.lookahead), args.steps)
    tokenizer.save_pretrained(args.out)
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()
