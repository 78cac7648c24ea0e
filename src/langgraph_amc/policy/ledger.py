"""The books of one account: what its calls have taken, and what those under way may still take.

Not locked: who reads or writes them holds `room.LOCK`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from langchain_core.outputs import LLMResult

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy.bounds import priced, settled
from langgraph_amc.policy.budget import Budget, BudgetExceededError, Limit, amount, show
from langgraph_amc.policy.retry import AnswerError, may_be_billed
from langgraph_amc.policy.under_way import SUMS, Call, OpenCalls
from langgraph_amc.trajectories.types import Usage

_SURELY = 1 - 1e-6
"""Share of a limit below which a sum that has drifted is as good as an exact one."""


class Witness(Protocol):
    """Hears of the calls that an account lets go, so that they count even if this process is killed meanwhile."""

    def asked(self, call: UUID, worst: Usage) -> None:
        """A call may be made, and takes so much at most."""
        ...

    def answered(self, *calls: UUID) -> None:
        """What these calls took is booked."""
        ...


class Ledger:
    """The books; see `account.Account` for what its public parts mean."""

    def __init__(self, budget: Budget, clock: Callable[[], float]) -> None:
        self.budget = budget
        self.exhausted: str | None = None
        self.overruns: list[str] = []
        self.witness: Witness | None = None
        self.calls = OpenCalls()
        self.lost: dict[UUID, Usage] = {}
        """Calls without an end, which a provider may bill at their worst case."""
        self.opened = clock()
        self._clock = clock
        self._booked = Usage()
        self._lost_calls: dict[UUID, Call] = {}

    @property
    def spent(self) -> Usage:
        """What is settled, and what calls without an end may have taken."""
        return sum(self.lost.values(), self._booked)

    @property
    def reserved(self) -> Usage:
        """Worst case of the calls on their way."""
        return sum((call.worst for call in self.calls.values()), Usage())

    @property
    def seconds(self) -> float:
        """Since it was opened."""
        return self._clock() - self.opened

    def add(self, usage: Usage) -> None:
        """Book what has been spent."""
        if usage.cost is None and self.budget.usd is not None:
            raise ConfigurationError("the budget caps dollars: book a Usage with its cost, which is None here")
        self._booked = self._booked + usage

    def lacks(self, asked: Usage, stays: Callable[[UUID, Call], bool] | None = None) -> Limit | None:
        """The limit that leaves no room for this.

        ``stays``: whether a call on its way will not have ended before there has to be room; by default none of them.
        """
        if self.budget.seconds is not None and self.seconds >= self.budget.seconds:
            return "seconds"
        for limit in SUMS:
            allowed = self.budget.allowed(limit)
            if allowed is None:
                continue
            about = amount(self._booked, limit) + self.calls.about[limit]
            if not self.lost and about + amount(asked, limit) <= allowed * _SURELY:
                continue
            held = [
                call.worst
                for run_id, call in self.calls.items()
                if stays is None or limit == "calls" or stays(run_id, call)
            ]
            spent = [self._booked, *self.lost.values()]
            if math.fsum(amount(usage, limit) for usage in (*spent, *held, asked)) > allowed:
                return limit
        return None

    def reserve(self, run_id: UUID, call: Call) -> None:
        """Let a call go."""
        self.calls[run_id] = call
        if self.witness is not None:
            self.witness.asked(run_id, call.worst)

    def drop(self, run_id: UUID) -> None:
        """Take back a call that will not be made."""
        if self.calls.take(run_id) is not None and self.witness is not None:
            self.witness.answered(run_id)

    def settle(self, run_id: UUID, response: LLMResult) -> None:
        """Book what an answered call took instead of its reservation."""
        if (call := self._end(run_id)) is not None:
            self.add(self._took(call, response))

    def fail(self, run_id: UUID, error: BaseException) -> None:
        """Release the reservation of a call that failed; if it may be billed nevertheless, it stays charged."""
        if (call := self._end(run_id)) is not None:
            self.add(self._may_have_taken(call, error))

    def give_up(self, run_id: UUID) -> None:
        """Charge a call, whose end nobody will hear of, at its worst case."""
        if (call := self.calls.take(run_id)) is not None:
            self._lost_calls[run_id] = call
            self.lost[run_id] = call.worst

    # -- inside ----------------------------------------------------------------------------------

    def _end(self, run_id: UUID) -> Call | None:
        """Take a call off the books, even one that was given up for lost."""
        call = self.calls.take(run_id) or self._lost_calls.pop(run_id, None)
        self.lost.pop(run_id, None)
        if call is not None and self.witness is not None:
            self.witness.answered(run_id)
        if call is not None and call.farewell is not None and isinstance(call.owner, asyncio.Task):
            call.owner.remove_done_callback(call.farewell)
        return call

    def _took(self, call: Call, response: LLMResult) -> Usage:
        used = settled(call.request, call.worst, response, self.budget)
        for limit in SUMS:
            took, bound = amount(used, limit), amount(call.worst, limit)
            if self.budget.allowed(limit) is not None and took > bound * 1.000001:
                by = call.request.name
                self.overruns.append(f"a call of {by} took {show(limit, took)}, {show(limit, bound)} were reserved")
        return used

    def _may_have_taken(self, call: Call, error: BaseException) -> Usage:
        if isinstance(error, AnswerError):
            return call.worst if error.usage is None else priced(call.request, error.usage, self.budget)
        if isinstance(error, BudgetExceededError):
            # what was refused was never asked; an attempt that was broken off at the deadline is the error's cause
            return call.worst if error.__cause__ is not None and may_be_billed(error.__cause__) else Usage()
        return call.worst if may_be_billed(error) else Usage(1)
