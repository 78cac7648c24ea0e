"""Tool calls, read back from a transcript: for value functions that are plain functions of the text."""

from __future__ import annotations

import json
import re
from typing import Any

_CALL = re.compile(r"^(\S+) (\{.*\})(?:<\|im_end\|>)?$", re.M)


def read_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Name and arguments of each tool call in a transcript, or in one message of it, in order.

    Lines that look like a call and hold no JSON are something that was said, and left out. Arguments are what the model
    sent, before any tool has refused them: expect missing ones, and values of any type.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    for name, arguments in _CALL.findall(text):
        try:
            found.append((name, json.loads(arguments)))
        except (ValueError, RecursionError):  # said, not called
            continue
    return found
