"""A Sudoku policy that heeds rules: the small model of the co-evolution study, made from the example's policy.

A model of 0.27 M parameters reads no English. So that a skill can mean anything to it, it goes on cloning the
example's solver, which now slips more or less often, by the rules that stand in its prompt, placed there exactly as a
skill library is placed. With two of them it slips less, with two more, two make no difference. What a rule means to
this model is therefore made; that it acts through the prompt, that its effect differs with the weights, and that nobody
is told what it is worth, are as with any model.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from langgraph_amc.skills.edits import apply
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Edit, Evidence, Proposal, Rejected

SUDOKU = Path(__file__).resolve().parents[1] / "examples" / "sudoku"
SLIP, SLIPPED = 0.15, "5"
"""How often, per cell, the solver that is imitated slips without any rule, and what it writes then."""
RULES = {"verify": -0.07, "compare": -0.06, "smile": 0.0, "rest": 0.0, "hurry": 0.15, "guess": 0.12}
"""What a rule adds to it. The words are in the model's vocabulary; their English plays no part."""
SKILL = "sudoku"
PLAIN = 0.35
"""Share of the demonstrations without any rule."""


def edit_of(rule: str, library: SkillLibrary) -> Edit:
    """The edit that adds a rule to a library."""
    text = f"{rule} {rule} {rule}"
    if SKILL not in library:
        return Edit("create skill", SKILL, rule, text, description="Rules for Sudoku.")
    return Edit("add section", SKILL, rule, text)


def library_of(rules: Sequence[str]) -> SkillLibrary:
    """The library that holds these rules."""
    library = SkillLibrary()
    for rule in rules:
        library = apply(library, [edit_of(rule, library)])
    return library


def rules_of(library: SkillLibrary) -> list[str]:
    """The rules that a library holds, by name."""
    body = "\n".join(skill.body for skill in library) + "\n"
    return [rule for rule in RULES if f"## {rule}\n" in body]


class Pool:
    """Proposes each rule once, in an order of its own; it reads no evidence, and knows nothing of what they do."""

    name = "pool"

    def __init__(self, seed: int, rules: Sequence[str] = tuple(RULES)) -> None:
        self._order = random.Random(seed).sample(list(rules), len(rules))

    async def propose(
        self, library: SkillLibrary, evidence: Evidence, rejected: Sequence[Rejected], limit: int
    ) -> tuple[Proposal, ...]:
        tried = {edit.section for r in rejected for edit in r.proposal.edits} | set(rules_of(library))
        left = [rule for rule in self._order if rule not in tried]
        return tuple(Proposal((edit_of(rule, library),), self.name) for rule in left[:limit])


def train_policy(folder: Path, steps: int, seed: int) -> Path:
    """Go on training the example's policy under random rules, and save it; a folder that is there is kept."""
    if (folder / "config.json").is_file():
        return folder
    sys.path.insert(0, str(SUDOKU))
    import torch
    import train_policy as example
    from transformers import AutoModelForCausalLM, AutoTokenizer

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(SUDOKU / "policy")
    model = AutoModelForCausalLM.from_pretrained(SUDOKU / "policy")
    tokenizer.add_tokens([*RULES])
    model.resize_token_embeddings(len(tokenizer))
    example.train(model, _batches(example, tokenizer, seed), steps)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    torch.set_num_threads(threads)
    return folder


def _batches(example: Any, tokenizer: Any, seed: int) -> Iterator[Any]:
    rng = random.Random(seed)
    rules = list(RULES)
    known = {chosen: library_of(chosen).text() for n in range(4) for chosen in combinations(rules, n)}
    while True:
        rows = []
        for _ in range(example.BOARDS):
            count = 0 if rng.random() < PLAIN else rng.randint(1, 3)
            drawn = set(rng.sample(rules, count))
            chosen = tuple(rule for rule in rules if rule in drawn)
            rows.append(_encoded(example, tokenizer, rng, known[chosen], slip_under(chosen)))
        yield example.collate(rows)


def slip_under(rules: Sequence[str]) -> float:
    """How often the solver slips under these rules."""
    return min(0.5, max(0.01, SLIP + sum(RULES[rule] for rule in rules)))


def _encoded(example: Any, tokenizer: Any, rng: random.Random, told: str, slip: float) -> list[list[int]]:
    """One board after what the skills say, and some turns of one demonstration on it, of which some slip."""
    puzzle = example.practice_puzzle(rng, lookahead=0.0)
    turns = example.demonstrate(*puzzle, rng, slip=0.0, refused=0.02)
    chosen = rng.sample(turns, min(example.TURNS, len(turns)))
    board = chosen[0].prompt.partition("\nFilled:")[0]
    system = f"<|im_start|>system\n{told}{example.END}\n" if told else ""
    tails = []
    for turn in chosen:
        reply = f"{turn.reply[:-1]}{SLIPPED}" if rng.random() < slip else turn.reply
        tails.append(f"{turn.prompt.removeprefix(board)}{example.END}\n<|im_start|>assistant\n{reply}{example.END}")
    parts = [f"{system}<|im_start|>user\n{board}", *tails]
    ids: list[list[int]] = tokenizer(parts, add_special_tokens=False)["input_ids"]
    return ids
