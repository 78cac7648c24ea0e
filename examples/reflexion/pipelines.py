"""Small programs on words, tasks to find one from examples, the reward on hidden examples, and a value function."""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

from langgraph_amc.tasks import FinishedRun, Task

OPERATIONS: dict[str, tuple[str, Callable[[str], str]]] = {
    "reverse": ("the letters in reverse order", lambda s: s[::-1]),
    "sort": ("the letters in alphabetical order", lambda s: "".join(sorted(s))),
    "dedupe": ("every letter once, where it comes first", lambda s: "".join(dict.fromkeys(s))),
    "rotate": ("the first letter goes to the end", lambda s: s[1:] + s[:1]),
    "drop_vowels": ("without a, e, i, o, u", lambda s: re.sub("[aeiou]", "", s)),
    "double": ("every letter twice", lambda s: "".join(c * 2 for c in s)),
    "head": ("the first four letters", lambda s: s[:4]),
    "next": ("every letter by the next one, z by a", lambda s: "".join(chr((ord(c) - 96) % 26 + 97) for c in s)),
}
PUBLIC, HIDDEN = 6, 8
WORDS = (
    *("lantern", "coffee", "bridge", "summer", "pencil", "garden", "window", "butter", "planet", "school", "forest"),
    *("letter", "winter", "market", "island", "violin", "copper", "saddle", "tunnel", "basket", "ribbon", "dragon"),
)


SHORT = ("egg", "ace", "oak", "toe", "bee", "sea", "add", "inn", "off", "zoo", "eel", "ada", "gem", "ebb")
"""Many programs make the same of a short word."""


def run_program(program: Sequence[str], text: str) -> str:
    """What a program makes of a word."""
    for name in program:
        text = OPERATIONS[name][1](text)
    return text


def programs() -> Iterator[tuple[str, ...]]:
    """All programs of one to three operations."""
    return (program for length in (1, 2, 3) for program in product(OPERATIONS, repeat=length))


def find_program(text: str) -> tuple[str, ...] | None:
    """The program in an answer; ``None`` where there is none of known operations."""
    found = re.search(r"PROGRAM: *(.+)", text)
    names = tuple(part.strip() for part in found[1].split("|")) if found else ()
    return names if 1 <= len(names) <= 3 and all(name in OPERATIONS for name in names) else None


def failures(program: Sequence[str], checks: Iterable[Sequence[str]]) -> list[tuple[str, str, str]]:
    """Input, expected and real output of each example that a program gets wrong."""
    made = [(given, expected, run_program(program, given)) for given, expected in checks]
    return [check for check in made if check[1] != check[2]]


def tasks(test: int = 20) -> Iterator[Task]:
    """Programs of three operations to be found from one short word; five more examples are the evaluator's."""
    for number in range(test):
        rng = random.Random(f"program {number}")
        program = tuple(rng.sample(sorted(OPERATIONS), 3))
        words = [rng.choice(SHORT), *rng.sample(WORDS, PUBLIC + HIDDEN - 1)]
        examples = [[word, run_program(program, word)] for word in words]
        yield Task(
            f"program-{number:02}",
            {
                "messages": [{"role": "user", "content": f"{words[0]!r} must become {examples[0][1]!r}"}],
                "checks": examples[:PUBLIC],
            },
            reference=examples[PUBLIC:],
            split="test",
        )


def solved(run: FinishedRun) -> float:
    """1 if the last program is right on all hidden examples, else 0."""
    assert run.task is not None
    answers = [m.text for m in run.messages if m.type == "ai" and "PROGRAM:" in m.text]
    program = find_program(answers[-1]) if answers else None
    return float(program is not None and not failures(program, run.task.reference))


_VERDICT = re.compile(r"<\|im_start\|>user\npassed (\d+) of ([1-9]\d*)")
"""The evaluator's, not what the agent says of itself."""


def passed_so_far(transcript: str) -> float:
    """A value function: the best share of the evaluator's examples passed so far, less once trials run out."""
    shares = [int(passed) / int(of) for passed, of in _VERDICT.findall(transcript)]
    if not shares:
        return 0.5
    return 0.95 if shares[-1] == 1 else 0.1 + 0.5 * max(shares) * 0.8 ** len(shares)
