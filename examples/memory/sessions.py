"""Conversations over many sessions that end with a question about earlier ones; reward and value function."""

import random
import re
from collections.abc import Iterator

from langgraph_amc.tasks import FinishedRun, Task
from langgraph_amc.trajectories import read_calls

NAMES = ("Ruben", "Siri", "Olev", "Mara", "Tess", "Anton", "Lene", "Paul", "Nadia", "Emil")
TOWNS = ("Orlund", "Sandrum", "Velmora", "Tarsk", "Linvik", "Garsen")
SUBJECTS = {
    "locker code": "number", "dentist": "name", "cat": "name", "gym card": "number", "landlord": "name",
    "sister's town": "town", "train seat": "number", "piano teacher": "name", "storage town": "town",
}  # fmt: skip
CHAT = (
    "It has rained here all week.", "I have been thinking about getting a bicycle.", "The soup at lunch was too salty.",
    "My neighbours are painting their fence.", "I slept badly, and then very well.", "The bus was late again today.",
)  # fmt: skip


def tasks(test: int = 6, sessions: int = 6) -> Iterator[Task]:
    """Three things are asked for in the last session; some were told early, some have changed since."""
    for number in range(test):
        rng = random.Random(f"sessions {number}")
        told = rng.sample(sorted(SUBJECTS), 6)
        asked, changed = rng.sample(told, 3), set(rng.sample(told, 3))
        said: list[list[str]] = [[] for _ in range(sessions)]
        truth: dict[str, str] = {}
        outdated: list[str] = []
        for k, subject in enumerate(told):
            truth[subject] = _value(rng, subject)
            said[k % (sessions // 2)].append(f"By the way, my {subject} is {truth[subject]}.")
        for k, subject in enumerate(sorted(changed)):
            outdated.append(truth[subject])
            truth[subject] = _value(rng, subject, but=truth[subject])
            later = sessions // 2 + k % (sessions // 2 - 1)
            said[later].append(f"My {subject} has changed: it is {truth[subject]} now.")
        for lines in said[:-1]:
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(CHAT))
        said[-1].append(f"Please tell me my {asked[0]}, my {asked[1]} and my {asked[2]}.")
        incoming = [{"session": k, "text": line} for k, lines in enumerate(said) for line in lines]
        yield Task(
            f"sessions-{number:02}",
            {"user": f"user-{number}", "incoming": incoming},
            reference={subject: truth[subject] for subject in asked},
            split="test",
        )


def recalled(run: FinishedRun) -> float:
    """1 if the last reply has all that was asked for, as ``subject: value``, else 0."""
    assert run.task is not None
    calls = [c for m in run.messages if m.type == "ai" for c in m.tool_calls if c["name"] == "reply"]
    last = str(calls[-1]["args"].get("text", "")) if calls else ""
    wanted = run.task.reference.items()
    return float(all(re.search(rf"{re.escape(subject)}: {value}\b", last) for subject, value in wanted))


def kept_and_found(transcript: str) -> float:
    """A value function: what the user tells should be written down as it was told, and replies rest on what was found.

    It looks at numbers and names. What will be asked, and which of two lines is out of date, it does not know.
    """
    faults, told, heard, seen = 0, set[str](), set[str](), set[str]()
    for role, text in re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", transcript, re.S):
        if role == "user" and not text.startswith("["):
            faults += len(told)  # the user goes on, and these were not written down
            told = _details(text)
            heard |= told
        elif role == "tool":
            seen |= _details(text)
        for name, given in read_calls(text) if role == "assistant" else ():
            details = _details(str(given.get("text", "")))
            if name == "reply":
                faults += len(details - seen)
            elif name == "archival_insert":
                faults += len(details - heard)
                told -= details
    return float(0.9 * 0.5**faults)


def _value(rng: random.Random, subject: str, but: str = "") -> str:
    kind = SUBJECTS[subject]
    made = str(rng.randint(1000, 9999)) if kind == "number" else rng.choice(NAMES if kind == "name" else TOWNS)
    return made if made != but else _value(rng, subject, but)


def _details(text: str) -> set[str]:
    """Numbers of four digits, and names inside sentences."""
    return set(re.findall(r"\b\d{4}\b|(?<=[a-z:] )[A-Z][a-z]+", text))
