"""Room for a call in all accounts of a chain: found at once, waited for, or refused.

A call for which there is no room now, but may be once calls on their way have settled, waits for them. One lock
guards all accounts: reserving in several at once is then a single step, and takes microseconds beside a model call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from langgraph_amc.policy.bell import Bell, Ear
from langgraph_amc.policy.bounds import Request
from langgraph_amc.policy.budget import BudgetExceededError, Limit, amount, show
from langgraph_amc.policy.ledger import Ledger
from langgraph_amc.policy.under_way import Call, Owner
from langgraph_amc.trajectories.types import Usage

LOCK = threading.RLock()
"""Guards the books of all accounts."""
BELL = Bell()
"""Rings whenever there may be more room than before, or less to wait for."""
PATIENCE = 600.0
"""Seconds without any change after which a call stops waiting for others: they hang, or wait for it."""

_waiting: dict[Owner, tuple[UUID, ...]] = {}
"""Who waits for room, and the calls they were begun under: those, and their own, cannot end before."""
_refused: deque[UUID] = deque(maxlen=1000)
"""Calls that were refused last: LangChain may ask the other handler about them once more."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody who wants to make a call.

    Attributes
    ----------
    run_id: of the call; ``None`` where it has its reservation already and only wants to know that it may go on.
    chain: the books it is charged to, the innermost first; worst: what it may take, in each of them.
    above: calls that were begun in this context; one that is still open may be waiting for this one.
    """

    run_id: UUID | None
    request: Request
    chain: Sequence[Ledger]
    worst: Sequence[Usage]
    owner: Owner
    above: tuple[UUID, ...]

    def stays(self, run_id: UUID, call: Call) -> bool:
        """Whether a call on its way may wait for this ask, or for somebody else who waits for room."""
        if call.owner is self.owner or call.owner in _waiting or run_id in self.above:
            return True
        return any(run_id in above for above in _waiting.values())


def find(ask: Ask, wait: bool, patience: Callable[[], float]) -> None:
    """Reserve, in this thread; raises BudgetExceededError where there can be no room, or may be no waiting for it."""
    try:
        while (ear := _try(ask, wait)) is not None:
            wait = BELL.sleep(ear, patience())
    finally:
        with LOCK:
            _waiting.pop(ask.owner, None)


async def afind(ask: Ask, wait: bool, patience: Callable[[], float]) -> None:
    """The same without blocking the event loop."""
    try:
        while (ear := _try(ask, wait)) is not None:
            wait = await BELL.asleep(ear, patience())
    finally:
        with LOCK:
            _waiting.pop(ask.owner, None)


def was_refused(run_id: UUID) -> bool:
    """Whether this call was refused not long ago."""
    return run_id in _refused


def forget(run_id: UUID, chain: Sequence[Ledger]) -> None:
    """A call will not be made; accounts around may have been asked before this one."""
    _refused.append(run_id)
    for ledger in chain:
        ledger.drop(run_id)
    BELL.ring()


def _try(ask: Ask, wait: bool) -> Ear | None:
    """Reserve in all accounts of the chain (``None``) or in none: then an ear for when to try again."""
    with LOCK:
        todo = [(led, w) for led, w in zip(ask.chain, ask.worst, strict=True) if ask.run_id not in led.calls]
        lacking = [(ledger, worst, limit) for ledger, worst in todo if (limit := ledger.lacks(worst)) is not None]
        if not lacking:
            if ask.run_id is not None:
                for ledger, worst in todo:
                    ledger.reserve(ask.run_id, Call(worst, ask.request, ask.owner))
            return None
        for ledger, worst, limit in lacking:
            if not wait or ledger.lacks(worst, ask.stays) is not None:
                _refuse(ask, ledger, worst, limit)
        if ask.owner not in _waiting:
            _waiting[ask.owner] = ask.above
            BELL.ring()  # whoever counts on this owner's open calls has to think again
        return BELL.listen()


def _refuse(ask: Ask, ledger: Ledger, worst: Usage, limit: Limit) -> None:
    allowed = ledger.budget.allowed(limit) or 0.0
    if limit == "seconds":
        error = BudgetExceededError(limit, allowed, ledger.seconds, 0.0, 0.0)
    else:
        spent, reserved = amount(ledger.spent, limit), amount(ledger.reserved, limit)
        error = BudgetExceededError(limit, allowed, spent, reserved, amount(worst, limit))
    ledger.exhausted = f"{limit}: a call of {ask.request.name} did not fit into {show(limit, allowed)}"
    if ask.run_id is not None:
        forget(ask.run_id, ask.chain)
    raise error
