"""The stand-in for a model at the mail-order desk: it knows the way, and slips at every turn with chance `SLIP`.

A slip is one of three: it looks up another name, mistypes a digit, or takes another number that it has seen. It never
notices. The last kind is invisible to the example's judge.
"""

import random
import re
from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_amc.demo.stand_in import call

SLIP = 0.2
OTHERS = {"product": ("chair", "vase", "bench"), "shipping": ("Peru", "Kenya"), "exchange": ("USD", "PLN")}
_ORDER = re.compile(r"(\d+) x (\w+) and (\d+) x (\w+) cost in (\w+), delivered to (\w+)")


def decide(messages: Sequence[BaseMessage], rng: random.Random) -> AIMessage:
    """The next native tool call, or the answer."""
    results = [m.text for m in messages if m.type == "tool"]
    tool, argument = _next(_question(messages), results, rng)
    if tool is None:
        return AIMessage(argument)
    name = {"shipping": "country", "exchange": "currency", "calculate": "expression"}.get(tool, "name")
    return call(tool, **{name: argument})


def decide_as_text(messages: Sequence[BaseMessage], rng: random.Random) -> str:
    """The same as a thought and an action."""
    results = [m.text for m in messages if m.text.startswith("Observation:")]
    tool, argument = _next(_question(messages), results, rng)
    if tool is None:
        return f"Thought: that is all\nAnswer: {argument}"
    return f"Thought: next I need {tool}\nAction: {tool}[{argument}]"


def _question(messages: Sequence[BaseMessage]) -> str:
    return next(m.text for m in messages if m.type == "human")


def _next(question: str, results: Sequence[str], rng: random.Random) -> tuple[str | None, str]:
    """The tool to use and its argument; ``None`` and the answer at the end."""
    order = _ORDER.search(question)
    if order is None:
        return None, "I can only price orders"
    n, first, m, second, currency, country = order.groups()
    r = [re.findall(r"\d+", result) or ["0"] for result in results]
    lookups = [("product", first), ("product", second), ("shipping", country), ("exchange", currency)]
    step = len(r)
    if step < len(lookups):
        tool, argument = lookups[step]
        return tool, rng.choice(OTHERS[tool]) if rng.random() < SLIP else argument
    if step == 9:
        return None, r[8][0]
    expression = (
        lambda: f"{n} * {r[0][0]} + {m} * {r[1][0]}",
        lambda: f"{n} * {r[0][1]} + {m} * {r[1][1]}",
        lambda: f"{r[5][0]} * {r[2][0]} + {r[2][1]}",
        lambda: f"{r[4][0]} + {r[6][0]}",
        lambda: f"{r[7][0]} * {r[3][1]}",
    )[step - len(lookups)]
    try:
        text = expression()
    except IndexError:  # a slip has brought a result without the number that is needed
        return None, "I do not know"
    return "calculate", _misread(text, r, rng) if rng.random() < SLIP else text


def _misread(expression: str, results: Sequence[Sequence[str]], rng: random.Random) -> str:
    """One number mistyped, or another known one in its place."""
    number = rng.choice(list(re.finditer(r"\d+", expression)))
    seen = [n for found in results for n in found if n != number[0]]
    other = rng.choice(seen) if rng.random() < 0.3 else str(int(number[0]) * 10 + rng.randint(1, 9))
    return expression[: number.start()] + other + expression[number.end() :]
