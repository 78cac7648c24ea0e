"""What counts as the same answer: canonical forms of outputs, to be given to ``vote(key=…)``.

Each takes what an app returned: a state with messages, a message, or text. They return None where there is no answer,
which then has no vote.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

_NUMBER = re.compile(
    r"(?<![\w.])[-+−]?(?:\d{1,3}(?:[,' \u00a0\u202f]\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))(?:[eE][-+]?\d+)?%?"
)
_EDGES = " \t\n\"'`*_“”‘’«».,;:!?…()[]{}<>"


def message_text(output: Any) -> str | None:
    """The text of the last message of a state, of a message, or the text itself; None where there is none.

    Content blocks count if they are text; a message without text is passed over for the one before it only if it is
    empty, as a model's that only calls tools.
    """
    if isinstance(output, Mapping) and isinstance(output.get("messages"), Sequence):
        found = (message_text(message) for message in reversed(output["messages"]))
        return next((text for text in found if text), None)
    if isinstance(output, Mapping):
        output = output.get("content")
    elif not isinstance(output, str | list):
        output = getattr(output, "content", None)
    if isinstance(output, list):
        blocks = (block.get("text", "") if isinstance(block, Mapping) else block for block in output)
        output = "".join(block for block in blocks if isinstance(block, str))
    return output if isinstance(output, str) and output.strip() else None


def final_text(output: Any) -> str | None:
    """The last message's text without what does not change an answer: case, spaces, quotes and marks around it.

    For short answers. Two sentences that say the same are two answers.
    """
    text = message_text(output)
    if text is None:
        return None
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return plain.strip(_EDGES) or None


def last_number(output: Any) -> Decimal | None:
    """The last number in the last message's text, exact: 1,234.50 and 1234.5 are the same, 5% is 0.05."""
    text = message_text(output)
    found = [] if text is None else _NUMBER.findall(text)
    if not found:
        return None
    number = found[-1].replace("−", "-")
    percent = number.endswith("%")
    try:
        value = Decimal(re.sub(r"[,' \u00a0\u202f%]", "", number))
    except InvalidOperation:
        return None
    return (value / 100 if percent else value).normalize() + 0  # minus zero is zero
