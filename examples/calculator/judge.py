"""A value function without training: any function of a transcript that says how likely success is."""

import re

from langgraph_amc.trajectories import read_calls


def plausible(transcript: str) -> float:
    """Low once a tool was called with a number that is neither in the question nor an earlier result."""
    messages = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", transcript, re.S)
    known: set[str] = set()
    for role, text in messages:
        if role in ("user", "tool"):
            known |= set(re.findall(r"\d+", text))
        for _, numbers in read_calls(text) if role == "assistant" else []:
            if any(str(number) not in known for number in numbers.values()):
                return 0.05
    return 0.9
