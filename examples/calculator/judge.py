"""A value function without training: any function of a transcript that says how likely success is."""

import json
import re


def plausible(transcript: str) -> float:
    """Low once a tool was called with a number that is neither in the question nor an earlier result."""
    messages = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", transcript, re.S)
    known: set[str] = set()
    for role, text in messages:
        if role in ("user", "tool"):
            known |= set(re.findall(r"\d+", text))
        for call in re.findall(r"^(?:add|multiply) (\{.*\})$", text, re.M) if role == "assistant" else []:
            if any(str(number) not in known for number in json.loads(call).values()):
                return 0.05
    return 0.9
