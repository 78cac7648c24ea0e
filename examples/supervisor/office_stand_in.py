"""The stand-in for the model behind supervisor and workers; it slips with chance `SLIP` at each decision.

A slip looks up another region or year, mistypes a number, leaves a line of a report out, or takes the second best.
"""

import random
import re
from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_amc.demo.stand_in import call

SLIP = 0.1


def decide(messages: Sequence[BaseMessage], rng: random.Random) -> AIMessage:
    """What the role that the prompt names says next."""
    role = messages[0].text.split()[3].strip(".")
    question = next(m.text for m in messages if m.type == "human")
    found = re.search(r"Which of (.*?) grew most from (\d+) to (\d+)", question)
    if found is None:
        return AIMessage("ANSWER: I can only compare regions")
    regions, years = found[1].split(", "), (int(found[2]), int(found[3]))
    brief = max((i for i, m in enumerate(messages) if m.text.startswith("NEXT")), default=0)
    results = [m.text for m in messages[brief:] if m.type == "tool"]
    slip = rng.random() < SLIP
    if role == "researcher":
        return _research(regions, years, results, slip, rng)
    if role == "analyst":
        return _analyse(regions, years, messages[:brief], results, slip, rng)
    return _supervise(regions, years, [m for m in messages if m.type == "ai" and not m.tool_calls], slip)


def _research(
    regions: Sequence[str], years: tuple[int, int], results: Sequence[str], slip: bool, rng: random.Random
) -> AIMessage:
    wanted = [(region, year) for region in regions for year in years]
    if len(results) < len(wanted):
        region, year = wanted[len(results)]
        if slip and rng.random() < 0.5:
            return call("figure", region=rng.choice(("Coast", "Lakes", "West")), year=year)
        return call("figure", region=region, year=year + slip)
    lines = [f"{r} {y}: {re.findall(r'[0-9]+', text)[0]}" for (r, y), text in zip(wanted, results, strict=True)]
    return AIMessage("\n".join(lines[:-1] if slip else lines))


def _analyse(
    regions: Sequence[str],
    years: tuple[int, int],
    before: Sequence[BaseMessage],
    results: Sequence[str],
    slip: bool,
    rng: random.Random,
) -> AIMessage:
    reported = dict(re.findall(r"^(\w+ \d{4}): (\d+)$", "\n".join(m.text for m in before if m.type == "ai"), re.M))
    if len(results) < len(regions):
        region = regions[len(results)]
        last, first = (int(reported.get(f"{region} {year}", 0)) for year in reversed(years))
        if slip and rng.random() < 0.5:
            return call("subtract", minuend=last * 10 + rng.randint(1, 9), subtrahend=first)
        return call("subtract", minuend=first if slip else last, subtrahend=last if slip else first)
    lines = [f"{r}: {text.rpartition('= ')[2]}" for r, text in zip(regions, results, strict=True)]
    return AIMessage("\n".join(lines[:-1] if slip else lines))


def _supervise(regions: Sequence[str], years: tuple[int, int], said: Sequence[BaseMessage], slip: bool) -> AIMessage:
    names, (first, last) = ", ".join(regions), years
    if not said:
        return AIMessage(f"NEXT researcher: units of {names} in {first} and {last}")
    if len(said) == 2:
        return AIMessage(f"NEXT analyst: growth of {names} from {first} to {last}")
    growth = {name: int(number) for name, number in re.findall(r"^(\w+): (-?\d+)$", said[-1].text, re.M)}
    ranked = sorted(growth, key=lambda name: -growth[name])
    if not ranked:
        return AIMessage("ANSWER: not known")
    chosen = ranked[min(int(slip), len(ranked) - 1)]
    return AIMessage(f"ANSWER: {chosen} {growth[chosen]}")
