"""Model calls under way: what each has reserved, and who made it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langgraph_amc.policy.bounds import Request
from langgraph_amc.policy.budget import Limit, amount
from langgraph_amc.trajectories.types import Usage

Owner = asyncio.Task[Any] | threading.Thread
SUMS: tuple[Limit, ...] = ("usd", "tokens", "calls")
"""Limits on what calls add up to; seconds go by whoever calls."""


@dataclass(slots=True)
class Call:
    """A call on its way."""

    worst: Usage
    request: Request
    owner: Owner
    farewell: Callable[[Any], None] | None = None
    """What its owner, a task, does when it has ended."""


class OpenCalls(dict[UUID, Call]):
    """Calls on their way, with about what their worst cases add up to: floats drift, `math.fsum` does not."""

    def __init__(self) -> None:
        super().__init__()
        self.about = dict.fromkeys(SUMS, 0.0)

    def __setitem__(self, run_id: UUID, call: Call) -> None:
        self.take(run_id)
        super().__setitem__(run_id, call)
        self._count(call, 1)

    def take(self, run_id: UUID) -> Call | None:
        """Remove a call."""
        call = self.pop(run_id, None)
        if call is not None:
            self._count(call, -1)
        return call

    def _count(self, call: Call, sign: int) -> None:
        for limit in SUMS:
            self.about[limit] = self.about[limit] + sign * amount(call.worst, limit) if self else 0.0


def this_task() -> asyncio.Task[Any]:
    """The task that runs here."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("this is called in a task of an event loop")
    return task
