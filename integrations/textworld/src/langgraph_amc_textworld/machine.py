"""A story in Jericho's Z-machine: one text in, one out, and a state that can be written down and put back.

TextWorld's own environment copies itself by starting another interpreter and offers no state to keep. Jericho gives
the machine's whole state (memory, stack, registers, random numbers); it is small, and smaller as a difference to the
start. The story's "tw-" commands, by which TextWorld's environment reads score and actions, are used as it uses them.
"""

from __future__ import annotations

import base64
import hashlib
import re
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from langgraph_amc_textworld.games import TextWorldError

# 0 would mean: by the clock.
SEED = 1
WON, LOST = "*** The End ***", "*** You lost! ***"
LONGEST = 198

_TAG = re.compile(r"<(score|moves|description|inventory)>\n(.*?)</\1>", re.S)
_EVENT = re.compile(r"\[[^\]]+\]\n?")
_BANNER = re.compile(r"^.*\$\$[^\n]*\n", re.S)
_NOT_TYPED = re.compile(r"[^ -~]")
# The bytes of a story's header that say when it was compiled, and the sum over all bytes.
_DATED = (slice(0x12, 0x18), slice(0x1C, 0x1E))


@dataclass(frozen=True, slots=True)
class Reply:
    """What a story prints.

    Attributes
    ----------
    score: so far; None where the story says nothing of it.
    actions: what happened, in TextWorld's words for Inform's actions.
    """

    text: str
    score: int | None
    won: bool
    lost: bool
    actions: tuple[str, ...]


class Machine:
    """An interpreter in this process with one story. Not for several threads at once."""

    def __init__(self, story: Path) -> None:
        from jericho import FrotzEnv, UnsupportedGameWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsupportedGameWarning)  # it knows commercial games, and is right
            self._frotz = FrotzEnv(str(story), seed=SEED)
        self._story = _fingerprint(story.read_bytes())
        self.begin()

    def begin(self) -> Reply:
        """Start the story anew."""
        text, _ = self._frotz.reset()
        for command in ("tw-trace-actions", "tw-extra-infos score"):
            self._frotz.step(command)
        self._start = self._frotz.get_state()
        return _read(_BANNER.sub("", text))

    def send(self, command: str) -> Reply:
        """Type a line; only what fits on one line of printable ASCII reaches the story.

        Frotz waits for ever for the rest of a line that a NUL ends.
        """
        line = _NOT_TYPED.sub("?", " ".join(command.split()))[:LONGEST]
        text, _, _, _ = self._frotz.step(line)
        return _read(text)

    def state(self) -> dict[str, Any]:
        """The machine's state, JSON-able, a few kilobytes."""
        ram, stack, pc, sp, fp, frames, opcode, rng, printing = self._frotz.get_state()
        return {
            "story": self._story,
            "memory": _packed(ram ^ self._start[0]),
            "stack": _packed(stack ^ self._start[1]),
            "registers": [int(x) for x in (pc, sp, fp, frames, opcode)],
            "random": [int(x) for x in rng],
            "printing": _packed(np.frombuffer(printing, dtype=np.uint8)),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Put a state back, also one of another machine with the same story."""
        if state["story"] != self._story:
            raise TextWorldError(
                "this snapshot is of a story that was compiled differently: restore it where it was taken, or replay"
            )
        ram, stack = self._start[:2]
        self._frotz.set_state(
            (
                _unpacked(state["memory"], ram.shape) ^ ram,
                _unpacked(state["stack"], stack.shape) ^ stack,
                *state["registers"],
                tuple(state["random"]),
                _unpacked(state["printing"]).tobytes(),
            )
        )


def _read(text: str) -> Reply:
    """A story's output, without what it prints for TextWorld only."""
    tags = dict(_TAG.findall(text))
    text = _TAG.sub("", text)
    events = [found.strip().strip("[]") for found in _EVENT.findall(text)]
    text = _EVENT.sub("", text)
    text = text.rpartition("\n>")[0] or text  # after the prompt comes the status line
    for end in (WON, LOST):
        if end in text:
            text = text[: text.index(end) + len(end)]  # no offer to restart
    done = [event.removesuffix(" - succeeded") for event in events if event.endswith(" - succeeded")]
    return Reply(
        text=re.sub(r"\n\s*\n\s*", "\n\n", text).strip(),
        score=int(tags["score"].split()[0]) if tags.get("score", "").strip() else None,
        won=WON in text,
        lost=LOST in text,
        actions=tuple(event for event in done if "(" not in event),  # those in brackets are parts of others
    )


def _fingerprint(story: bytes) -> str:
    plain = bytearray(story)
    for dated in _DATED:
        plain[dated] = bytes(dated.stop - dated.start)
    return hashlib.sha256(plain).hexdigest()[:16]


def _packed(data: Any) -> str:
    return base64.b64encode(zlib.compress(data.tobytes(), 6)).decode()


def _unpacked(text: str, shape: tuple[int, ...] = (-1,)) -> Any:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8).reshape(shape)
