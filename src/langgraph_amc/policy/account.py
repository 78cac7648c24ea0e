"""Spending against a `Budget`: the worst case of each call is reserved before it is made and settled after.

Accounts nest: a call charges the account it was made under and all around it, and each may refuse. Each has books
(`ledger`), and calls find or wait for room in all of them at once (`room`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy import gate, room
from langgraph_amc.policy.bounds import Request, own_price, priced, worst_case
from langgraph_amc.policy.budget import Budget, BudgetExceededError, Limit, amount
from langgraph_amc.policy.ledger import Ledger, Witness
from langgraph_amc.policy.room import BELL, LOCK, Ask
from langgraph_amc.policy.under_way import Owner, this_task
from langgraph_amc.trajectories.types import Usage


class Account:
    """What has been spent and reserved under a `Budget`; thread-safe, for any number of event loops.

    Made by `Budget.open`. ``with budget.open() as account:`` charges every LangChain model call made below, in
    tasks and in threads whose context was copied.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self.budget = budget
        self.outer: Account | None = gate.current_account.get()
        self.async_gate = gate.AsyncGate(self)
        self.sync_gate = gate.SyncGate(self)
        self._clock = clock
        self._ledger = Ledger(budget, clock)
        self._entered: list[AbstractContextManager[Account]] = []

    def __enter__(self) -> Self:
        self._entered.append(self.active())
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.pop().__exit__(None, None, None)

    @contextmanager
    def active(self) -> Iterator[Account]:
        """Charge this account from here on down; unlike the ``with`` statement on itself, usable in many tasks."""
        before = gate.activate(self)
        try:
            yield self
        finally:
            gate.activate(before)

    @property
    def handlers(self) -> tuple[BaseCallbackHandler, BaseCallbackHandler]:
        """Callback handlers for a config; both, in this order. Not needed below the ``with`` statement."""
        return self.async_gate, self.sync_gate

    # -- what is left ----------------------------------------------------------------------------

    @property
    def spent(self) -> Usage:
        """Settled usage, and the worst case of calls that were cancelled: a provider may bill them."""
        with LOCK:
            return self._ledger.spent

    @property
    def reserved(self) -> Usage:
        """Worst case of the calls on their way."""
        with LOCK:
            return self._ledger.reserved

    @property
    def seconds(self) -> float:
        """Seconds since the account was opened, earlier parts of a restored run included."""
        return self._ledger.seconds

    @property
    def exhausted(self) -> str | None:
        """Which limit refused a call, and which call; ``None`` while none was refused."""
        return self._ledger.exhausted

    @exhausted.setter
    def exhausted(self, why: str | None) -> None:
        self._ledger.exhausted = why

    @property
    def refused(self) -> str | None:
        """The same, of this account or else of one around."""
        return next((account.exhausted for account in self.chain if account.exhausted is not None), None)

    def note_refusal(self, why: str) -> None:
        """A call was refused elsewhere on behalf of this account and those around it: what they lent is used up."""
        for ledger in self._books:
            ledger.exhausted = ledger.exhausted or why

    @property
    def overruns(self) -> list[str]:
        """Calls that took more than their worst case: a wrong bound, to be reported as a bug."""
        return self._ledger.overruns

    @property
    def deadline(self) -> float | None:
        """When the seconds are over, on `time.monotonic`; the earliest of the accounts around this one."""
        own = None if self.budget.seconds is None else self._ledger.opened + self.budget.seconds
        outer = None if self.outer is None else self.outer.deadline
        return min((d for d in (own, outer) if d is not None), default=None)

    def remaining(self, limit: Limit) -> float | None:
        """What is neither spent nor reserved, in the limit's unit; ``None`` where there is no such limit."""
        allowed = self.budget.allowed(limit)
        if allowed is None:
            return None
        if limit == "seconds":
            return max(0.0, allowed - self.seconds)
        with LOCK:
            return max(0.0, allowed - amount(self.spent, limit) - amount(self.reserved, limit))

    def timed_out(self) -> BudgetExceededError:
        """The error of a run that is broken off at its `deadline`."""
        ledger = min(
            self._books, key=lambda led: math.inf if led.budget.seconds is None else led.opened + led.budget.seconds
        )
        ledger.exhausted = ledger.exhausted or "seconds: the run was broken off"
        return BudgetExceededError("seconds", ledger.budget.seconds or 0.0, ledger.seconds, 0.0, 0.0)

    @property
    def chain(self) -> tuple[Account, ...]:
        """This account and those around it, the innermost first."""
        return (self, *(() if self.outer is None else self.outer.chain))

    # -- booking without a call ------------------------------------------------------------------

    @property
    def witness(self) -> Witness | None:
        """Who hears of the calls that this account lets go."""
        return self._ledger.witness

    @witness.setter
    def witness(self, witness: Witness | None) -> None:
        self._ledger.witness = witness

    def restore(self, usage: Usage, seconds: float = 0.0) -> None:
        """Take over what an earlier part of the run has spent."""
        with LOCK:
            self._ledger.opened -= seconds
            self._ledger.add(usage)

    def lose(self, calls: Mapping[UUID, Usage]) -> None:
        """Charge calls of an earlier part of the run whose answers were never heard of: a provider may bill them."""
        with LOCK:
            self._ledger.lost.update(calls)

    @property
    def lost(self) -> tuple[UUID, ...]:
        """Calls without an end that are charged at their worst case."""
        with LOCK:
            return tuple(self._ledger.lost)

    def book(self, usage: Usage) -> None:
        """Book spending that did not go through LangChain, here and in the accounts around; never refuses."""
        with LOCK:
            for ledger in self._books:
                ledger.add(usage)
        BELL.ring()

    def price(self, names: Sequence[str], input_tokens: int, output_tokens: int, cached: int = 0) -> float | None:
        """US dollars for a call of the model with these names, where this budget or one around it has a price for it.

        A `Pricing` for `UsageCallback`.
        """
        request = Request(tuple(names), input_tokens)
        found = (own_price(request, account.budget) for account in self.chain)
        own = next((known for known in found if known is not None), None)
        return None if own is None else own.of(input_tokens, output_tokens, cached)

    # -- one call --------------------------------------------------------------------------------

    def knows(self, run_id: UUID) -> bool:
        """Whether this call has been reserved here, or was just refused."""
        with LOCK:
            return run_id in self._ledger.calls or room.was_refused(run_id)

    def under_way(self, run_ids: Sequence[UUID]) -> tuple[UUID, ...]:
        """Those of these calls that have not ended."""
        with LOCK:
            return tuple(run_id for run_id in run_ids if any(run_id in ledger.calls for ledger in self._books))

    def reserve(self, run_id: UUID, request: Request, *, wait: bool = True) -> None:
        """Reserve a call's worst case, in this thread, waiting where others may still free what it takes.

        Raises BudgetExceededError where they cannot, or may not be waited for.
        """
        room.find(self._ask(run_id, request, threading.current_thread()), wait, self._patience)

    async def areserve(self, run_id: UUID, request: Request) -> None:
        """The same without blocking the event loop; to be called in the task that makes the model call.

        A call whose task has ended without an answer was cancelled and stays charged at its worst case.
        """
        task = this_task()
        await room.afind(self._ask(run_id, request, task), True, self._patience)
        task.add_done_callback(self._farewell(run_id))

    def retry(self, request: Request, usage: Usage | None, *, wait: bool = True) -> None:
        """Book an attempt whose answer is thrown away (``None``: nobody knows what it took), and find room for another.

        The call's own reservation is then the next attempt's. Raises BudgetExceededError where there is no room.
        """
        self.throw_away(request, usage)
        room.find(self._again(request, threading.current_thread()), wait, self._patience)

    async def aretry(self, request: Request, usage: Usage | None, *, wait: bool = True) -> None:
        """The same without blocking the event loop."""
        self.throw_away(request, usage)
        await room.afind(self._again(request, this_task()), wait, self._patience)

    def throw_away(self, request: Request, usage: Usage | None) -> None:
        """Book an attempt without an answer worth keeping; the call itself is still on its way."""
        with LOCK:
            for ledger in self._books:
                budget = ledger.budget
                ledger.add(worst_case(request, budget) if usage is None else priced(request, usage, budget))
        BELL.ring()

    def settle(self, run_id: UUID, response: LLMResult) -> None:
        """Book what an answered call took instead of its reservation."""
        for ledger in self._books:
            with LOCK:
                ledger.settle(run_id, response)
        BELL.ring()

    def fail(self, run_id: UUID, error: BaseException) -> None:
        """Release the reservation of a call that failed; if it may be billed nevertheless, it stays charged."""
        for ledger in self._books:
            with LOCK:
                ledger.fail(run_id, error)
        BELL.ring()

    # -- inside ----------------------------------------------------------------------------------

    @property
    def _books(self) -> tuple[Ledger, ...]:
        """Of this account and those around it."""
        return tuple(account._ledger for account in self.chain)

    def _ask(self, run_id: UUID, request: Request, owner: Owner) -> Ask:
        books = self._books
        try:
            worst = [worst_case(request, ledger.budget) for ledger in books]
        except ConfigurationError:
            with LOCK:
                room.forget(run_id, books)
            raise
        return Ask(run_id, request, books, worst, owner, gate.calls_here.get())

    def _again(self, request: Request, here: Owner) -> Ask:
        """Room for nothing more than is reserved, asked for by whoever made the call that is under way here."""
        above, open_calls, books = gate.calls_here.get(), self._ledger.calls, self._books
        call = next((open_calls[run_id] for run_id in above if run_id in open_calls), None)
        return Ask(None, request, books, [Usage()] * len(books), here if call is None else call.owner, above)

    def _farewell(self, run_id: UUID) -> Callable[[Any], None]:
        """What to do when the task that made the call has ended: a call without an end was cancelled."""
        books = self._books

        def on_done(_: Any) -> None:
            with LOCK:
                for ledger in books:
                    ledger.give_up(run_id)
            BELL.ring()

        with LOCK:
            for ledger in books:
                if (call := ledger.calls.get(run_id)) is not None and call.farewell is None:
                    call.farewell = on_done
        return on_done

    def _patience(self) -> float:
        patience = room.PATIENCE
        return patience if self.deadline is None else min(patience, max(0.0, self.deadline - self._clock()))
