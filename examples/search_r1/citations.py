"""Rewards of an answer with citations, and a value function that checks what an editor would.

A *statement* is a sentence followed by the document that it cites, ``Zubor Works was founded by Ina Tek. [d0001]``.
"""

import re
from collections.abc import Sequence

from fact_corpus import HEARSAY, read_fact

from langgraph_amc.tasks import FinishedRun

CITATION, SEARCH, UNSUPPORTED = 0.5, 0.02, 0.25
"""Weights of the composite reward beside 1 for the right answer."""

Shown = dict[str, tuple[int, str]]
"""Year and text of the documents that a run has seen, by id."""


def exact_match(run: FinishedRun) -> float:
    """1 if the answer is the right name, else 0."""
    assert run.task is not None
    return float(_answer(run)[0].casefold() == run.task.reference["answer"].casefold())


def composite(run: FinishedRun) -> float:
    """Answer + citations (F1 against the documents that prove it) − searches − unsupported statements."""
    assert run.task is not None
    _, statements = _answer(run)
    shown = _shown("\n".join(m.text for m in run.messages if m.type == "human"))
    cited, needed = {document for _, document in statements}, set(run.task.reference["documents"])
    f1 = 2 * len(cited & needed) / (len(cited) + len(needed))
    unsupported = sum(not _supported(text, document, shown) for text, document in statements)
    searches = sum("<information>" in m.text for m in run.messages)
    return exact_match(run) + CITATION * f1 - SEARCH * searches - UNSUPPORTED * unsupported


def well_founded(transcript: str) -> float:
    """A value function: each fault of the reasoning so far makes success less likely.

    Faults are a statement whose document was not seen or says something else, one about a name that nobody has asked
    for, one from hearsay, and one that a newer document that was seen contradicts. The right answer is not known
    here, nor how many steps a question needs.
    """
    turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", transcript, re.S)
    question = " ".join(text for role, text in turns[:1] if role == "user")
    shown = _shown("\n".join(text for role, text in turns if role == "user"))
    said = "\n".join(text for role, text in turns if role == "assistant")
    faults, known = 0, question
    for text, document in dict.fromkeys(_statements(said)):
        fact = read_fact(text)
        faults += not _supported(text, document, shown)
        if fact is not None:
            faults += fact[1] not in known
            faults += _outdated(fact, document, shown)
            known += f" {fact[2]}"
    return float(0.9 * 0.2**faults)


def _answer(run: FinishedRun) -> tuple[str, list[tuple[str, str]]]:
    found = re.search(r"<answer>(.*?)</answer>", run.messages[-1].text, re.S)
    if found is None:
        return "", []
    name, _, rest = found[1].strip().partition("\n")
    return name.strip(" ."), _statements(rest)


def _statements(text: str) -> list[tuple[str, str]]:
    """Sentences with the documents that they cite."""
    found = re.findall(r"(?:^|>|\]) *([^\n<>\[\]]+?) *\[(d\d+)\]", text, re.M)
    return [(sentence, document) for sentence, document in found]


def _shown(text: str) -> Shown:
    found = re.findall(r"^\[(d\d+)\] \([^,\n]+, (\d{4})\) (.*)$", text, re.M)
    return {document: (int(year), content) for document, year, content in found}


def _supported(text: str, document: str, shown: Shown) -> bool:
    """Whether a document that was seen holds the whole sentence, and not as hearsay."""
    content = shown.get(document, (0, HEARSAY))[1]
    return text in content and not content.startswith(HEARSAY)


def _outdated(fact: Sequence[str], document: str, shown: Shown) -> bool:
    """Whether a newer document that was seen says something else of the same."""
    if document not in shown:
        return False
    year = shown[document][0]
    others = [(y, read_fact(content)) for y, content in shown.values() if not content.startswith(HEARSAY)]
    return any(y > year and f is not None and f[:2] == tuple(fact[:2]) and f[2] != fact[2] for y, f in others)
