"""The stand-in for a model that reflects: it guesses among the programs that agree with what it knows.

As an actor it knows the example of the task and those in its reflections; with chance `SLIP` it writes one operation
wrongly. As a reflector it writes down the example that failed; with chance `MISREMEMBER` it gets a letter wrong, which
no later trial can mend.
"""

import random
import re
from collections.abc import Sequence
from functools import lru_cache

from langchain_core.messages import BaseMessage
from pipelines import OPERATIONS, programs, run_program

SLIP, MISREMEMBER = 0.15, 0.25


def decide(messages: Sequence[BaseMessage], rng: random.Random) -> str:
    """A program, or a reflection."""
    known = re.findall(r"'(\w+)' must become '(\w*)'", "\n".join(m.text for m in messages[1:]))
    if "failed" in messages[0].text:
        given, expected = known[-1]
        if rng.random() < MISREMEMBER and expected:
            k = rng.randrange(len(expected))
            expected = expected[:k] + rng.choice("aeiou") + expected[k + 1 :]
        return f"REFLECTION: the next program has to get this right: '{given}' must become '{expected}'."
    # what it remembers last it trusts least
    fitting = next(found for n in range(len(known), -1, -1) if (found := _fitting(tuple(known[:n]))))
    program = list(rng.choice(fitting))
    if rng.random() < SLIP:
        program[rng.randrange(len(program))] = rng.choice(sorted(OPERATIONS))
    return f"PROGRAM: {' | '.join(program)}"


@lru_cache(maxsize=4096)
def _fitting(examples: tuple[tuple[str, str], ...]) -> list[tuple[str, ...]]:
    """Programs that agree with all examples."""
    if not examples:
        return list(programs())
    given, expected = examples[-1]
    return [program for program in _fitting(examples[:-1]) if run_program(program, given) == expected]
