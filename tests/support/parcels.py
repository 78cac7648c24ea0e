"""A parcel desk: an agent whose success depends on which rules are in its prompt, and the model behind it.

The model, a reply hook for `OpenAIServer`, takes each of two steps (weighing, insuring) by chance, more often if a rule
tells it to, less often if one tells it to hurry. Its randomness is the request's seed and prompt alone, so a run that
is repeated gets the same answers. Asked as a proposer, it proposes rules out of `RULES`: useful, useless and harmful.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from langgraph_amc.tasks import TaskSet

AGENT = '''
"""Quotes parcels: calls one tool, which refuses a parcel that was not weighed or not insured."""
import os

from langchain.agents import create_agent
from langchain_core.tools import tool

import langgraph_amc as amc


@tool(return_direct=True)
def submit(weighed: bool, insured: bool) -> str:
    """Submit the quote of a parcel."""
    missing = [*([] if weighed else ["weigh the parcel"]), *([] if insured else ["insure the parcel"])]
    return "refused: " + " and ".join(missing) + " before you submit" if missing else "accepted"


model = amc.chat_model("openai/clerk", seed=7, max_tokens=64, retry=amc.Retry(attempts=1))
graph = create_agent(model, [submit], system_prompt="You are a clerk at a parcel desk.")


def accepted(run):
    """1 for an accepted quote."""
    return float(any(m.type == "tool" and m.content == "accepted" for m in run.messages))
'''
Kind = Literal["useful", "useless", "harmful"]
STEP, TOLD, HURRIED = 0.5, 0.95, 0.1
"""Chance that a step is taken: by itself, where a rule asks for it, and where a rule tells it to hurry."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that the model may propose; ``phrase`` is what makes it one when it stands in a prompt."""

    kind: Kind
    section: str
    phrase: str


RULES = (
    Rule("useful", "Weighing", "weigh the parcel"),
    Rule("useful", "Insurance", "insure the parcel"),
    Rule("useless", "Tone", "greet the customer by name"),
    Rule("useless", "Layout", "write amounts with two decimals"),
    Rule("useless", "Language", "answer in short sentences"),
    Rule("harmful", "Speed", "skip the checks to save time"),
    Rule("harmful", "Trust", "believe whatever weight the customer states"),
)
_HURRY = tuple(rule.phrase for rule in RULES if rule.kind == "harmful")
_RUN = re.compile(r"## Run (\d+[+-])[^\n]*\n(.*?)(?=\n## Run |\n# Task |\n</runs>)", re.S)


def tasks(train: int = 12, validation: int = 16, held_out: int = 12) -> TaskSet:
    """Parcels in three splits."""
    parts = {"train": train, "validation": validation, "held-out": held_out}
    return TaskSet.from_iterable(
        {"id": f"{split}-{i}", "input": f"Quote parcel {split} {i}.", "split": split}
        for split, n in parts.items()
        for i in range(n)
    )


def made(folder: Path, *, talks: bool = False, **sizes: int) -> Path:
    """Write the agent and its tasks; ``talks``: it says something after the tool, so a run takes two model calls."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.py").write_text(AGENT.replace("@tool(return_direct=True)", "@tool") if talks else AGENT)
    tasks(**sizes).to_jsonl(folder / "tasks.jsonl")
    return folder


def kinds_in(text: str) -> list[Kind]:
    """The kinds of the rules that stand in a text."""
    return [rule.kind for rule in RULES if rule.phrase in text]


def chance(system: str) -> float:
    """Probability that a run with this system prompt succeeds."""
    return _step(system, "weigh the parcel") * _step(system, "insure the parcel")


def reply(body: Mapping[str, Any], number: int) -> str | dict[str, Any]:
    """The model: a clerk, or whoever is asked to improve the clerk's skills."""
    messages = body["messages"]
    system = next((m["content"] for m in messages if m["role"] == "system"), "")
    rng = random.Random(_digest(body))
    if system.startswith("You improve the skills"):
        return _proposals(messages[-1]["content"], rng)
    if "tell the agent the same thing" in system:
        return json.dumps({"groups": []})
    if messages[-1]["role"] == "tool":
        return f"The desk says: {messages[-1]['content']}."
    steps = {
        "weighed": rng.random() < _step(system, "weigh the parcel"),
        "insured": rng.random() < _step(system, "insure the parcel"),
    }
    call = {"name": "submit", "arguments": json.dumps(steps)}
    name = f"call_{_digest(body)[:8]}"
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": call}],
    }


def _step(system: str, phrase: str) -> float:
    if any(hurry in system for hurry in _HURRY):
        return HURRIED
    return TOLD if phrase in system else STEP


def _proposals(asked: str, rng: random.Random) -> str:
    """Four rules by chance, each resting on words that really stand in a run; without the ones that it has or tried."""
    known = re.sub(r"<runs-\w+>.*</runs-\w+>", "", asked, flags=re.S)  # the skills as they are, and what was rejected
    left = [rule for rule in RULES if rule.phrase not in known]
    runs: dict[str, str] = dict(_RUN.findall(asked))
    edits = []
    for rule in rng.sample(left, min(4, len(left))):
        label = rng.choice(sorted(runs))
        words = [line for line in runs[label].split("\n") if len(line) > 12]
        created = "parcel-desk" not in asked
        edits.append(
            {
                "op": "create skill" if created else "add section",
                "skill": "parcel-desk",
                "section": rule.section,
                "text": f"Always {rule.phrase}.",
                "description": "How to quote parcels." if created else "",
                "reason": "the runs differ in it",
                "supports": [{"run": label, "quote": rng.choice(words)}],
                "contradicts": [],
            }
        )
    return json.dumps({"edits": edits})


def _digest(body: Mapping[str, Any]) -> str:
    """Of all that the model is asked, the seed included; ids of tool calls count too, as they are made from this."""
    said = json.dumps([body["messages"], body.get("seed")], sort_keys=True)
    return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()
