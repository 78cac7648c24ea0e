"""Spending against a `Budget`: the worst case of each call is reserved before it is made and settled after.

Accounts nest: a call charges the account it was made under and all around it, and each may refuse. A call for
which there is no room now, but may be once calls on their way have settled, waits for them. One lock guards all
accounts: reserving in several at once is then a single step, and takes microseconds beside a model call.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.policy import gate
from langgraph_amc.policy.bell import Bell, Ear
from langgraph_amc.policy.bounds import Request, own_price, priced, settled, worst_case
from langgraph_amc.policy.budget import Budget, BudgetExceededError, Limit, amount, show
from langgraph_amc.policy.retry import AnswerError, may_be_billed
from langgraph_amc.trajectories.types import Usage

PATIENCE = 600.0
"""Seconds without any change after which a call stops waiting for others: they hang, or wait for it."""

Owner = asyncio.Task[Any] | threading.Thread
_lock = threading.RLock()
_bell = Bell()
_waiting: dict[Owner, tuple[UUID, ...]] = {}
"""Who waits for room, and the calls they were begun under: those, and their own, cannot end before."""
_refused: deque[UUID] = deque(maxlen=1000)
"""Calls that were refused last: LangChain may ask the other handler about them once more."""
_SUMS: tuple[Limit, ...] = ("usd", "tokens", "calls")
_SURELY = 1 - 1e-6
"""Share of a limit below which a sum that has drifted is as good as an exact one."""


@dataclass(slots=True)
class _Call:
    """A call on its way."""

    worst: Usage
    request: Request
    owner: Owner
    farewell: Callable[[Any], None] | None = None


class _Open(dict[UUID, _Call]):
    """Calls on their way, with about what their worst cases add up to: floats drift, `math.fsum` does not."""

    def __init__(self) -> None:
        super().__init__()
        self.about = dict.fromkeys(_SUMS, 0.0)

    def __setitem__(self, run_id: UUID, call: _Call) -> None:
        self.take(run_id)
        super().__setitem__(run_id, call)
        self._count(call, 1)

    def take(self, run_id: UUID) -> _Call | None:
        """Remove a call."""
        call = self.pop(run_id, None)
        if call is not None:
            self._count(call, -1)
        return call

    def _count(self, call: _Call, sign: int) -> None:
        for limit in _SUMS:
            self.about[limit] = self.about[limit] + sign * amount(call.worst, limit) if self else 0.0


@dataclass(frozen=True, slots=True)
class _Ask:
    """Somebody who wants to make a call: what it may take, in each account of the chain.

    ``above``: calls that were begun in this context; one that is still open may be waiting for this one.
    """

    run_id: UUID | None
    request: Request
    worst: Sequence[Usage]
    owner: Owner
    above: tuple[UUID, ...]


class Witness(Protocol):
    """Hears of the calls that an account lets go, so that they count even if this process is killed meanwhile."""

    def asked(self, call: UUID, worst: Usage) -> None:
        """A call may be made, and takes so much at most."""
        ...

    def answered(self, *calls: UUID) -> None:
        """What these calls took is booked."""
        ...


class Account:
    """What has been spent and reserved under a `Budget`; thread-safe, for any number of event loops.

    Made by `Budget.open`. ``with budget.open() as account:`` charges every LangChain model call made below, in
    tasks and in threads whose context was copied.
    """

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self.budget = budget
        self.outer: Account | None = gate.current_account.get()
        self.exhausted: str | None = None
        """Which limit refused a call, and which call; ``None`` while none was refused."""
        self.overruns: list[str] = []
        """Calls that took more than their worst case: a wrong bound, to be reported as a bug."""
        self.async_gate = gate.AsyncGate(self)
        self.sync_gate = gate.SyncGate(self)
        self.witness: Witness | None = None
        self._clock = clock
        self._opened = clock()
        self._booked = Usage()
        self._calls = _Open()
        self._lost: dict[UUID, Usage] = {}
        self._lost_calls: dict[UUID, _Call] = {}
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
        with _lock:
            return sum(self._lost.values(), self._booked)

    @property
    def reserved(self) -> Usage:
        """Worst case of the calls on their way."""
        with _lock:
            return sum((call.worst for call in self._calls.values()), Usage())

    @property
    def seconds(self) -> float:
        """Seconds since the account was opened, earlier parts of a restored run included."""
        return self._clock() - self._opened

    @property
    def deadline(self) -> float | None:
        """When the seconds are over, on `time.monotonic`; the earliest of the accounts around this one."""
        own = None if self.budget.seconds is None else self._opened + self.budget.seconds
        outer = None if self.outer is None else self.outer.deadline
        return min((d for d in (own, outer) if d is not None), default=None)

    def remaining(self, limit: Limit) -> float | None:
        """What is neither spent nor reserved, in the limit's unit; ``None`` where there is no such limit."""
        allowed = self.budget.allowed(limit)
        if allowed is None:
            return None
        if limit == "seconds":
            return max(0.0, allowed - self.seconds)
        with _lock:
            return max(0.0, allowed - amount(self.spent, limit) - amount(self.reserved, limit))

    def timed_out(self) -> BudgetExceededError:
        """The error of a run that is broken off at its `deadline`."""
        account = min(self.chain, key=lambda a: math.inf if a.budget.seconds is None else a._opened + a.budget.seconds)
        account.exhausted = account.exhausted or "seconds: the run was broken off"
        return BudgetExceededError("seconds", account.budget.seconds or 0.0, account.seconds, 0.0, 0.0)

    def restore(self, usage: Usage, seconds: float = 0.0) -> None:
        """Take over what an earlier part of the run has spent."""
        with _lock:
            self._opened -= seconds
            self._add(usage)

    def lose(self, calls: Mapping[UUID, Usage]) -> None:
        """Charge calls of an earlier part of the run whose answers were never heard of: a provider may bill them."""
        with _lock:
            self._lost.update(calls)

    @property
    def lost(self) -> tuple[UUID, ...]:
        """Calls without an end that are charged at their worst case."""
        with _lock:
            return tuple(self._lost)

    def book(self, usage: Usage) -> None:
        """Book spending that did not go through LangChain, here and in the accounts around; never refuses."""
        with _lock:
            for account in self.chain:
                account._add(usage)
        _bell.ring()

    def price(self, names: Sequence[str], input_tokens: int, output_tokens: int, cached: int = 0) -> float | None:
        """US dollars for a call of the model with these names, where this budget or one around it has a price for it.

        A `Pricing` for `UsageCallback`.
        """
        request = Request(tuple(names), input_tokens)
        found = (own_price(request, account.budget) for account in self.chain)
        own = next((known for known in found if known is not None), None)
        return None if own is None else own.of(input_tokens, output_tokens, cached)

    @property
    def chain(self) -> tuple[Account, ...]:
        """This account and those around it, the innermost first."""
        return (self, *(() if self.outer is None else self.outer.chain))

    # -- one call --------------------------------------------------------------------------------

    def knows(self, run_id: UUID) -> bool:
        """Whether this call has been reserved here, or was just refused."""
        with _lock:
            return run_id in self._calls or run_id in _refused

    def under_way(self, run_ids: Sequence[UUID]) -> tuple[UUID, ...]:
        """Those of these calls that have not ended."""
        with _lock:
            return tuple(run_id for run_id in run_ids if any(run_id in account._calls for account in self.chain))

    def reserve(self, run_id: UUID, request: Request, *, wait: bool = True) -> None:
        """Reserve a call's worst case, in this thread, waiting where others may still free what it takes.

        Raises BudgetExceededError where they cannot, or may not be waited for.
        """
        self._wait(self._ask(run_id, request, threading.current_thread()), wait)

    async def areserve(self, run_id: UUID, request: Request) -> None:
        """The same without blocking the event loop; to be called in the task that makes the model call.

        A call whose task has ended without an answer was cancelled and stays charged at its worst case.
        """
        task = _this_task()
        await self._await(self._ask(run_id, request, task))
        task.add_done_callback(self._farewell(run_id))

    def retry(self, request: Request, usage: Usage | None, *, wait: bool = True) -> None:
        """Book an attempt whose answer is thrown away (``None``: nobody knows what it took), and find room for another.

        The call's own reservation is then the next attempt's. Raises BudgetExceededError where there is no room.
        """
        self.throw_away(request, usage)
        self._wait(self._again(request, threading.current_thread()), wait)

    async def aretry(self, request: Request, usage: Usage | None, *, wait: bool = True) -> None:
        """The same without blocking the event loop."""
        self.throw_away(request, usage)
        await self._await(self._again(request, _this_task()), wait)

    def throw_away(self, request: Request, usage: Usage | None) -> None:
        """Book an attempt without an answer worth keeping; the call itself is still on its way."""
        with _lock:
            for account in self.chain:
                budget = account.budget
                account._add(worst_case(request, budget) if usage is None else priced(request, usage, budget))
        _bell.ring()

    def settle(self, run_id: UUID, response: LLMResult) -> None:
        """Book what an answered call took instead of its reservation."""
        for account in self.chain:
            with _lock:
                call = account._end(run_id)
                if call is not None:
                    account._add(account._settled(call, response))
        _bell.ring()

    def fail(self, run_id: UUID, error: BaseException) -> None:
        """Release the reservation of a call that failed; if it may be billed nevertheless, it stays charged."""
        for account in self.chain:
            with _lock:
                call = account._end(run_id)
                if call is not None:
                    account._add(account._failed(call, error))
        _bell.ring()

    # -- inside ----------------------------------------------------------------------------------

    def _ask(self, run_id: UUID, request: Request, owner: Owner) -> _Ask:
        try:
            return _Ask(run_id, request, self._worst(request), owner, gate.calls_here.get())
        except ConfigurationError:
            with _lock:
                self._forget(run_id)
            raise

    def _again(self, request: Request, here: Owner) -> _Ask:
        """Room for nothing more than is reserved, asked for by whoever made the call that is under way here."""
        above = gate.calls_here.get()
        call = next((self._calls[run_id] for run_id in above if run_id in self._calls), None)
        return _Ask(None, request, [Usage()] * len(self.chain), here if call is None else call.owner, above)

    def _wait(self, ask: _Ask, wait: bool) -> None:
        try:
            while (ear := self._try(ask, wait)) is not None:
                wait = _bell.sleep(ear, self._patience())
        finally:
            with _lock:
                _waiting.pop(ask.owner, None)

    async def _await(self, ask: _Ask, wait: bool = True) -> None:
        try:
            while (ear := self._try(ask, wait)) is not None:
                wait = await _bell.asleep(ear, self._patience())
        finally:
            with _lock:
                _waiting.pop(ask.owner, None)

    def _try(self, ask: _Ask, wait: bool) -> Ear | None:
        """Reserve in all accounts of the chain (``None``) or in none: then an ear for when to try again."""
        with _lock:
            todo = [(a, w) for a, w in zip(self.chain, ask.worst, strict=True) if ask.run_id not in a._calls]
            lacking = [(a, w, limit) for a, w in todo if (limit := a._lacks(w)) is not None]
            if not lacking:
                if ask.run_id is not None:
                    for account, worst in todo:
                        account._calls[ask.run_id] = _Call(worst, ask.request, ask.owner)
                        if account.witness is not None:
                            account.witness.asked(ask.run_id, worst)
                return None
            for account, worst, limit in lacking:
                if not wait or account._lacks(worst, ask) is not None:
                    self._refuse(ask, account, worst, limit)
            if ask.owner not in _waiting:
                _waiting[ask.owner] = ask.above
                _bell.ring()  # whoever counts on this owner's open calls has to think again
            return _bell.listen()

    def _lacks(self, asked: Usage, ask: _Ask | None = None) -> Limit | None:
        """The limit that leaves no room; with an ask, none even if all calls that may end before it is met had."""
        if self.budget.seconds is not None and self.seconds >= self.budget.seconds:
            return "seconds"
        for limit in _SUMS:
            allowed = self.budget.allowed(limit)
            if allowed is None:
                continue
            if not self._lost and self._about(limit) + amount(asked, limit) <= allowed * _SURELY:
                continue
            held = [
                call.worst
                for run_id, call in self._calls.items()
                if ask is None or limit == "calls" or _waits(run_id, call.owner, ask)
            ]
            spent = [self._booked, *self._lost.values()]
            if math.fsum(amount(usage, limit) for usage in (*spent, *held, asked)) > allowed:
                return limit
        return None

    def _about(self, limit: Limit) -> float:
        return amount(self._booked, limit) + self._calls.about[limit]

    def _refuse(self, ask: _Ask, account: Account, worst: Usage, limit: Limit) -> None:
        allowed = account.budget.allowed(limit) or 0.0
        if limit == "seconds":
            error = BudgetExceededError(limit, allowed, account.seconds, 0.0, 0.0)
        else:
            spent, reserved = amount(account.spent, limit), amount(account.reserved, limit)
            error = BudgetExceededError(limit, allowed, spent, reserved, amount(worst, limit))
        account.exhausted = f"{limit}: a call of {ask.request.name} did not fit into {show(limit, allowed)}"
        if ask.run_id is not None:
            self._forget(ask.run_id)
        raise error

    def _forget(self, run_id: UUID) -> None:
        """A call that will not be made; accounts around may have been asked before this one."""
        _refused.append(run_id)
        for account in self.chain:
            if account._calls.take(run_id) is not None and account.witness is not None:
                account.witness.answered(run_id)
        _bell.ring()

    def _worst(self, request: Request) -> list[Usage]:
        return [worst_case(request, account.budget) for account in self.chain]

    def _failed(self, call: _Call, error: BaseException) -> Usage:
        if isinstance(error, AnswerError):
            return call.worst if error.usage is None else priced(call.request, error.usage, self.budget)
        if isinstance(error, BudgetExceededError):
            # what was refused was never asked; an attempt that was broken off at the deadline is the error's cause
            return call.worst if error.__cause__ is not None and may_be_billed(error.__cause__) else Usage()
        return call.worst if may_be_billed(error) else Usage(1)

    def _settled(self, call: _Call, response: LLMResult) -> Usage:
        used = settled(call.request, call.worst, response, self.budget)
        for limit in _SUMS:
            took, bound = amount(used, limit), amount(call.worst, limit)
            if self.budget.allowed(limit) is not None and took > bound * 1.000001:
                by = call.request.name
                self.overruns.append(f"a call of {by} took {show(limit, took)}, {show(limit, bound)} were reserved")
        return used

    def _add(self, usage: Usage) -> None:
        if usage.cost is None and self.budget.usd is not None:
            raise ConfigurationError("the budget caps dollars: book a Usage with its cost, which is None here")
        self._booked = self._booked + usage

    def _end(self, run_id: UUID) -> _Call | None:
        """Take a call off the books, even one that was given up for lost."""
        call = self._calls.take(run_id) or self._lost_calls.pop(run_id, None)
        self._lost.pop(run_id, None)
        if call is not None and self.witness is not None:
            self.witness.answered(run_id)
        if call is not None and call.farewell is not None and isinstance(call.owner, asyncio.Task):
            call.owner.remove_done_callback(call.farewell)
        return call

    def _farewell(self, run_id: UUID) -> Callable[[Any], None]:
        """What to do when the task that made the call has ended: a call without an end was cancelled."""

        def on_done(_: Any) -> None:
            with _lock:
                for account in self.chain:
                    if (call := account._calls.take(run_id)) is not None:
                        account._lost_calls[run_id] = call
                        account._lost[run_id] = call.worst
            _bell.ring()

        with _lock:
            for account in self.chain:
                if (call := account._calls.get(run_id)) is not None and call.farewell is None:
                    call.farewell = on_done
        return on_done

    def _patience(self) -> float:
        return PATIENCE if self.deadline is None else min(PATIENCE, max(0.0, self.deadline - self._clock()))


def _waits(run_id: UUID, owner: Owner, ask: _Ask) -> bool:
    """Whether a call on its way may wait for this ask, or for somebody else who waits for room."""
    if owner is ask.owner or owner in _waiting or run_id in ask.above:
        return True
    return any(run_id in above for above in _waiting.values())


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("this is called in a task of an event loop")
    return task
