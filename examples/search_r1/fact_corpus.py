"""A made-up country in some five thousand short documents, and questions that need several of them.

Facts form chains (product, maker, founder, birthplace, river). Beside them lie what misleads a reader: companies and
people of nearly the same name, yearbooks of which the older one is out of date, and hearsay that the registers deny.
Everything is a function of the seed.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from langgraph_amc.tasks import Task

FORMS = {
    "maker": "The {} is made by {}.",
    "founder": "{} was founded by {}.",
    "seat": "{} has its seat in {}.",
    "birth": "{} was born in {}.",
    "river": "{} lies on the river {}.",
}
HEARSAY = "Some say that "
CHAINS = {
    "Where was the founder of {} born?": ("founder", "birth"),
    "In which town does the maker of the {} have its seat today?": ("maker", "seat"),
    "Where was the founder of the company that makes the {} born?": ("maker", "founder", "birth"),
    "On which river lies the town where the maker of the {} has its seat today?": ("maker", "seat", "river"),
    "On which river lies the birthplace of the founder of the company that makes the {}?": (
        *("maker", "founder", "birth"),
        "river",
    ),
}
_KINDS = ("lamp", "kettle", "drill", "radio", "scale", "stove", "clock", "pump")
_FIRMS = ("Works", "Labs", "Brothers", "Foundry")
_FIRST = ("Ina", "Jon", "Mara", "Olev", "Tess", "Ruben", "Siri", "Anton", "Lene", "Paul")


@dataclass(frozen=True, slots=True)
class Document:
    """One document; ``year`` is that of its source."""

    id: str
    source: str
    year: int
    text: str

    def __str__(self) -> str:
        return f"[{self.id}] ({self.source}, {self.year}) {self.text}"


@dataclass(frozen=True, slots=True)
class Country:
    """The documents, and of each fact the subject, its object and the document that holds it, by relation."""

    documents: tuple[Document, ...]
    facts: dict[str, dict[str, tuple[str, str]]]

    def follow(self, start: str, relations: tuple[str, ...]) -> tuple[str, list[str]]:
        """Where a chain of relations leads, and the documents on the way."""
        used = []
        for relation in relations:
            start, document = self.facts[relation][start]
            used.append(document)
        return start, used


@cache
def country(seed: int = 0, companies: int = 640) -> Country:
    """The country of this seed."""
    rng = random.Random(f"country {seed}")
    towns, rivers = _names(rng, 240, "um"), _names(rng, 40, "a")
    stems, surnames = _names(rng, companies // 2, ""), _names(rng, companies // 2, "ek")
    firms = [f"{stem} {kind}" for stem in stems for kind in rng.sample(_FIRMS, 2)]
    people = [f"{name} {surname}" for surname in surnames for name in rng.sample(_FIRST, 2)]
    products = [f"{name} {rng.choice(_KINDS)}" for name in _names(rng, 2 * companies, "o")]
    written: list[tuple[str, int, str]] = []
    facts: dict[str, dict[str, tuple[str, str]]] = {relation: {} for relation in FORMS}

    def state(relation: str, subject: str, found: str, source: str, year: int) -> None:
        facts[relation][subject] = found, f"d{len(written)}"
        written.append((source, year, FORMS[relation].format(subject, found)))

    for product in products:
        state("maker", product, rng.choice(firms), "catalogue", rng.randint(2015, 2023))
    rng.shuffle(people)
    for firm, person in zip(firms, people, strict=True):
        state("founder", firm, person, "company register", rng.randint(1990, 2010))
        seats = rng.sample(towns, 2)
        if rng.random() < 0.5:
            written.append(("yearbook", rng.randint(2001, 2012), FORMS["seat"].format(firm, seats[1])))
        state("seat", firm, seats[0], "yearbook", rng.randint(2016, 2024))
        births = rng.sample(towns, 2)
        if rng.random() < 0.5:
            written.append(("newspaper", rng.randint(1995, 2024), HEARSAY + FORMS["birth"].format(person, births[1])))
        state("birth", person, births[0], "register of births", rng.randint(1930, 1980))
        town = rng.choice(towns)
        written.append(("newspaper", rng.randint(1995, 2024), f"{firm} opens a shop in {town}, says {person}."))
    for town in towns:
        state("river", town, rng.choice(rivers), "atlas", 2020)
        written.append(("newspaper", rng.randint(1995, 2024), f"The market of {town} draws visitors from far away."))
    return _shuffled(rng, written, facts)


def tasks(test: int = 20, seed: int = 0) -> Iterator[Task]:
    """Questions with their answers and the documents that prove them."""
    made = country(seed)
    for number in range(test):
        rng = random.Random(f"question {seed} {number}")
        question, relations = list(CHAINS.items())[number % len(CHAINS)]
        start = rng.choice(sorted(made.facts[relations[0]]))
        answer, documents = made.follow(start, relations)
        yield Task(
            f"question-{seed}-{number:03}",
            question.format(start),
            reference={"answer": answer, "documents": documents},
            metadata={"hops": len(relations)},
            split="test",
        )


def read_fact(text: str) -> tuple[str, str, str] | None:
    """Relation, subject and object of the first fact that a sentence states."""
    for relation, form in FORMS.items():
        if found := re.search(form.replace(".", r"\.").format(r"(\w+(?: \w+)?)", r"(\w+(?: \w+)?)"), text):
            return relation, found[1], found[2]
    return None


def _names(rng: random.Random, count: int, ending: str) -> list[str]:
    """Distinct made-up names."""
    made: dict[str, None] = {}
    while len(made) < count:
        syllables = [rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") + rng.choice(["", "l", "n", "r"])]
        syllables += [rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(2)]
        made["".join(syllables).capitalize() + ending] = None
    return list(made)


def _shuffled(
    rng: random.Random, written: list[tuple[str, int, str]], facts: dict[str, dict[str, tuple[str, str]]]
) -> Country:
    """Documents in random order: their numbers tell nothing."""
    order = list(range(len(written)))
    rng.shuffle(order)
    new = {f"d{old}": f"d{position:04}" for position, old in enumerate(order)}
    documents = tuple(Document(f"d{position:04}", *written[old]) for position, old in enumerate(order))
    renamed = {r: {s: (o, new[d]) for s, (o, d) in found.items()} for r, found in facts.items()}
    return Country(documents, renamed)
