"""The stand-in for a model that searches: it knows what a question asks, and misreads documents with chance `SLIP`.

A slip takes a document of the right kind that does not fit: another name, an older yearbook, hearsay. With chance
`HASTY` it answers a step too early, which no reader of its citations can see. It never notices either.
"""

import random
import re
from collections.abc import Sequence

from fact_corpus import CHAINS, FORMS, HEARSAY, read_fact
from langchain_core.messages import BaseMessage

SLIP, HASTY = 0.25, 0.05
WORDS = {"maker": "is made by", "founder": "was founded by", "seat": "has its seat in", "birth": "was born in"}


def decide(messages: Sequence[BaseMessage], rng: random.Random) -> str:
    """The next thought with its search, or the answer."""
    start, relations = _read(next(m.text for m in messages if m.type == "human"))
    told = [m.text for m in messages if m.type == "human" and "<information>" in m.text]
    thought = [line for m in messages if m.type == "ai" for line in re.findall(r"[^\n<>]+ \[d\d+\]", m.text)]
    thought = list(dict.fromkeys(thought))
    if len(told) > len(thought):
        relation, about = relations[len(thought)], _object(thought[-1]) if thought else start
        statement = _chosen(told[-1], relation, about, rng)
        if statement is None:
            return f"<think>nothing on {about}</think><answer>unknown</answer>"
        thought.append(statement)
    now = "\n".join(thought[-1:])
    if len(thought) == len(relations) or (thought and rng.random() < HASTY):
        return f"<think>{now}</think><answer>{_object(thought[-1])}\n" + "\n".join(thought) + "</answer>"
    about = _object(thought[-1]) if thought else start
    words = WORDS.get(relations[len(thought)], "lies on the river")
    return f"<think>{now}</think><search>{about} {words}</search>"


def _read(question: str) -> tuple[str, tuple[str, ...]]:
    """The name in a question, and the relations to follow from it."""
    for form, relations in CHAINS.items():
        if found := re.fullmatch(re.escape(form).replace(r"\{\}", r"(\w+ \w+)"), question):
            return found[1], relations
    return question, ("maker",)


def _object(statement: str) -> str:
    fact = read_fact(statement)
    return "unknown" if fact is None else fact[2]


def _chosen(information: str, relation: str, about: str, rng: random.Random) -> str | None:
    """The statement that is taken from the documents; ``None`` if none is of the kind."""
    right: list[tuple[int, str]] = []
    wrong: list[str] = []
    for document, year, text in re.findall(r"^\[(d\d+)\] \([^,\n]+, (\d{4})\) (.*)$", information, re.M):
        fact = read_fact(text)
        if fact is None or fact[0] != relation:
            continue
        statement = f"{FORMS[relation].format(fact[1].removeprefix(HEARSAY), fact[2])} [{document}]"
        if fact[1] == about and not text.startswith(HEARSAY):
            right.append((int(year), statement))
        else:
            wrong.append(statement)
    right.sort()
    wrong += [statement for _, statement in right[:-1]]
    if wrong and (not right or rng.random() < SLIP):
        return rng.choice(wrong)
    return right[-1][1] if right else None
