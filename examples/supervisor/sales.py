"""What regions sold, questions about it, the reward, and a value function that checks where numbers come from."""

import hashlib
import random
import re
from collections.abc import Iterator
from itertools import pairwise

from langgraph_amc.tasks import FinishedRun, Task
from langgraph_amc.trajectories import read_calls

REGIONS = ("North", "East", "South", "West", "Coast", "Valley", "Island", "Lakes")
YEARS = range(2015, 2025)


def sold(region: str, year: int) -> int:
    """Units, a function of the names."""
    return 200 + int.from_bytes(hashlib.sha256(f"{region} {year}".encode()).digest()[:4]) % 700


def tasks(test: int = 20) -> Iterator[Task]:
    """Which of three regions grew most between two years, and by how much; a growth may be negative."""
    for number in range(test):
        rng = random.Random(f"growth {number}")
        regions, (first, last) = rng.sample(REGIONS, 3), sorted(rng.sample(YEARS, 2))
        growth = {region: sold(region, last) - sold(region, first) for region in regions}
        best = max(regions, key=lambda region: growth[region])
        question = f"Which of {', '.join(regions)} grew most from {first} to {last}, and by how many units?"
        yield Task(f"growth-{number:02}", question, reference={"region": best, "units": growth[best]}, split="test")


def right(run: FinishedRun) -> float:
    """1 if the supervisor's answer has the region and the number, else 0."""
    assert run.task is not None
    answer = run.messages[-1].text if run.messages[-1].text.startswith("ANSWER:") else ""
    wanted = run.task.reference
    return float(re.findall(r"-?\d+|[A-Z][a-z]+", answer) == [wanted["region"], str(wanted["units"])])


def traceable(transcript: str) -> float:
    """A value function: numbers should come from a tool, lookups should be asked for, reports should be complete.

    It does not calculate, and does not see known numbers in the wrong place.
    """
    turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", transcript, re.S)
    question = turns[0][1] if turns else ""
    known, faults = set(re.findall(r"\w+", question)), 0
    for (before, _), (role, text) in pairwise([("", ""), *turns]):
        numbers = set(re.findall(r"\d+", text))
        if role == "tool":
            known |= numbers
            continue
        calls = [given for _, given in read_calls(text)]
        given = {str(value) for call in calls for value in call.values()}
        faults += bool((given | numbers) - known) if role == "assistant" else 0
        if role == "assistant" and before == "tool" and not calls:  # a report: three regions, and maybe two years
            faults += len(re.findall(r"^\w+.*: -?\d+$", text, re.M)) not in (3, 6)
    return float(0.9 * 0.2**faults)
