"""The stand-in for a model that repairs code: it tries small changes in the functions that the issue names.

It changes one operator or number at a time, keeps what makes more tests pass, and undoes the rest; with chance `KEEP`
it leaves a change that did not help. So it searches blindly, in a space that holds the repair.
"""

import random
import re
from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_amc.demo.stand_in import call

KEEP = 0.3
SWAPS = {
    "<=": ("<",), "<": ("<=",), ">=": (">",), ">": (">=",), "==": ("!=",), "!=": ("==",), "//": ("%",), "%": ("//",),
    "+": ("-",), "-": ("+",), "and": ("or",), "or": ("and",), "0": ("1",), "1": ("0", "2"),
}  # fmt: skip
_TOKENS = re.compile(r"<=|>=|==|!=|//|[<>%+]|-(?=[ a-z])|\band\b|\bor\b|\b[01]\b")


def decide(messages: Sequence[BaseMessage], rng: random.Random) -> AIMessage:
    """The next call."""
    issue = next(m.text for m in messages if m.type == "human")
    named = re.findall(r"^(\S+): `(\w+)`", issue, re.M)
    calls = [c for m in messages if m.type == "ai" for c in m.tool_calls]
    results = [m.text for m in messages if m.type == "tool"]
    read = {c["args"]["path"]: text for c, text in zip(calls, results, strict=True) if c["name"] == "read"}
    for path, _ in named:
        if path not in read:
            return call("read", path=path)
    edits = [c["args"] for c, text in zip(calls, results, strict=True) if c["name"] == "edit" and "not" not in text]
    passed = [int(re.findall(r"\d+", t)[0]) for c, t in zip(calls, results, strict=True) if c["name"] == "run_tests"]
    if not passed or calls[-1]["name"] == "edit":
        undone = len(edits) > 1 and (edits[-1]["old"], edits[-1]["new"]) == (edits[-2]["new"], edits[-2]["old"])
        if not passed or not undone:
            return call("run_tests")
    if " tests pass" in results[-1] and "\n" not in results[-1]:
        return call("submit")
    if calls[-1]["name"] == "run_tests" and len(passed) > 1 and passed[-1] <= passed[-2] and rng.random() >= KEEP:
        last = edits[-1]
        return call("edit", path=last["path"], old=last["new"], new=last["old"])
    return _change(named, read, edits, rng)


def _change(
    named: Sequence[tuple[str, str]], read: dict[str, str], edits: Sequence[dict[str, str]], rng: random.Random
) -> AIMessage:
    """A change that was not tried yet, in one of the functions."""
    texts = dict(read)
    for made in edits:
        texts[made["path"]] = texts[made["path"]].replace(made["old"], made["new"])
    tried = {(made["old"], made["new"]) for made in edits}
    options = [(path, *change) for path, name in named for change in _changes(texts[path], name)]
    options = [option for option in options if option[1:] not in tried]
    if not options:
        return call("submit")
    path, old, new = rng.choice(options)
    return call("edit", path=path, old=old, new=new)


def _changes(text: str, function: str) -> list[tuple[str, str]]:
    """Pieces of a function's body, unique in the file, each with one token changed."""
    body = re.search(rf"^def {function}\(.*?(?=^\S|\Z)", text, re.M | re.S)
    if body is None:
        return []
    found: list[tuple[str, str]] = []
    for line in body[0].splitlines()[2:]:
        for token in _TOKENS.finditer(line):
            for other in SWAPS[token[0]]:
                new = line[: token.start()] + other + line[token.end() :]
                if text.count(line) == 1 and text.count(new) == 0:
                    found.append((line, new))
    return found
