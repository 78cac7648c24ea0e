"""The stand-in for a model with a memory: it uses the functions as it should, and slips with chances set here."""

import random
import re
from collections.abc import Sequence

from langchain_core.messages import AIMessage, BaseMessage

from langgraph_amc.demo.stand_in import call

FORGET = 0.15
"""Of not writing down what the user tells."""
GARBLE = 0.06
"""Of writing it down wrongly."""
STALE = 0.12
"""Of taking another of the lines that were found."""
GIVE_UP = 0.5
"""Of not looking into recall memory when archival memory has nothing."""
_TOLD = re.compile(r"my ([\w' ]+?) (?:is|has changed: it is) (\w+)(?: now)?\.", re.I)


def decide(messages: Sequence[BaseMessage], rng: random.Random) -> AIMessage:
    """The next function to call."""
    begin = max(i for i, m in enumerate(messages) if m.type == "human" and not m.text.startswith("["))
    user, since = messages[begin].text, messages[begin + 1 :]
    done = [c for m in since if m.type == "ai" for c in m.tool_calls]
    if asked := re.search(r"tell me my (.*?), my (.*?) and my (.*?)\.", user):
        return _answer(asked.groups(), since, rng)
    told = _TOLD.search(user)
    if told and not done and rng.random() >= FORGET:
        return call("archival_insert", text=f"{told[1]}: {_garbled(told[2], rng)}")
    forgotten = _TOLD.search("\n".join(m.text for m in messages[:begin] if m.type == "human"))
    if any(m.text.startswith("[") for m in since) and forgotten and not done and rng.random() < 0.5:
        return call("archival_insert", text=f"{forgotten[1]}: {forgotten[2]}")  # warned: again, to be sure
    return call("reply", text="Noted." if told else "I see.")


def _answer(subjects: Sequence[str], since: Sequence[BaseMessage], rng: random.Random) -> AIMessage:
    """Search for each subject in turn, then reply."""
    calls = {c["id"]: c for m in since if m.type == "ai" for c in m.tool_calls}
    found: dict[str, list[str]] = {}
    last = ""
    for message in since:
        if message.type == "tool":
            used = calls[message.tool_call_id]
            last = used["name"]
            subject = used["args"]["query"]
            values = re.findall(rf"{re.escape(subject)}(?:: | is | has changed: it is )(\w+)", message.text)
            found[subject] = values or found.get(subject, [])
    for subject in subjects:
        if subject not in found:
            missed = list(found)[-1] if found and last == "archival_search" else None
            if missed and not found[missed] and rng.random() >= GIVE_UP:
                return call("recall_search", query=missed)
            return call("archival_search", query=subject)
    taken = {s: rng.choice(v) if rng.random() < STALE else v[0] for s, v in found.items() if v}
    return call("reply", text="; ".join(f"{s}: {taken.get(s, 'not known')}" for s in subjects))


def _garbled(value: str, rng: random.Random) -> str:
    if rng.random() >= GARBLE:
        return value
    return str((int(value) + 10 * rng.randint(1, 9)) % 10_000) if value.isdigit() else value[::-1].capitalize()
