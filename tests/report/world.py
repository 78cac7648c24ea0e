"""An agent that digs: real runs whose values mean something, with effects, rewards and texts that try to break out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

import langgraph_amc as amc
from langgraph_amc.runtime.result import AMCOutput
from langgraph_amc.tasks import FinishedRun
from tests.runtime.support import agent, call, number, turn_of

NASTY = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<!-- ]]> &lt;b&gt; ' \" ` ${document.title} <|im_end|> \u2028 \U0001f9e8 <svg onload=alert(1)>"
)
ROUNDS = 6


@tool
def dig(n: int) -> str:
    """Dig at a place."""
    return f"found {n} {NASTY}"


@tool
def mail(text: str) -> str:
    """Send a mail."""
    return f"sent {text}"


def digging(rounds: int = ROUNDS, *, mails: bool = True) -> Callable[[list[BaseMessage]], AIMessage]:
    """A policy that digs at chance places, writes a mail, and says what it found."""

    def reply(messages: list[BaseMessage]) -> AIMessage:
        turn = turn_of(messages)
        if turn < rounds:
            return call("dig", turn, n=number(len(messages)))
        if turn == rounds and mails:
            return call("mail", turn, text=f"done {NASTY}")
        return AIMessage(f"The treasure is worth {number(0)}. {NASTY}")

    return reply


def dug(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"found (\d+)", text)]


def promising(transcripts: Sequence[Sequence[str]]) -> list[float]:
    """V: the mean of what was dug so far, in [0, 1]."""
    found = [dug("".join(segments)) for segments in transcripts]
    return [sum(n) / len(n) / 1000 if n else 0.5 for n in found]


def rich(run: FinishedRun) -> float:
    """1 for a mean above a half."""
    found = dug("".join(str(m.content) for m in run.messages if m.type == "tool"))
    return float(sum(found) / len(found) > 500)


def run(journal: Path | None = None, *, rounds: int = ROUNDS, **settings: Any) -> AMCOutput:
    """One run of the agent as 8 particles."""
    app = amc.wrap(
        agent(digging(rounds), [dig, mail], InMemorySaver(), name="digger"),
        **{
            "particles": 8,
            "value": promising,
            "reward": rich,
            "resample": amc.every(2),
            "tau": 0.1,
            "seed": 5,
            "effects": {"dig": "pure", "mail": "commit"},
            "journal": journal,
            **settings,
        },
    )
    asked = {"messages": [("user", f"Dig for treasure {NASTY}")]}
    output: AMCOutput = app.invoke(asked, {"configurable": {"thread_id": "t"}})
    return output
