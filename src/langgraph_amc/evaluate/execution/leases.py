"""A budget that jobs in other processes keep: each job is lent a part of what is left, and gives back the rest.

What is lent is neither spent nor lent twice, so all jobs together stay within every account around. The price: at
the end of a budget parts become small, and a job may be stopped although others will give something back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from langgraph_amc.policy.account import Account
from langgraph_amc.policy.budget import Budget, Limit, Price
from langgraph_amc.policy.gate import current_account
from langgraph_amc.trajectories.types import Usage


@dataclass(frozen=True, slots=True)
class Lease:
    """What one job may spend."""

    number: int
    budget: Budget


class Leases:
    """Lends the account that is open here, and those around it, to at most ``slots`` jobs at a time."""

    def __init__(self, slots: int) -> None:
        self._account: Account | None = current_account.get()
        self._slots = slots
        self._lent: dict[int, Budget] = {}
        self._count = 0

    def take(self) -> Lease | None:
        """A lease for one job; ``None`` where nothing is limited."""
        if self._account is None:
            return None
        self._count += 1
        free = max(1, self._slots - len(self._lent))
        usd, tokens, calls = (self._share(limit, free) for limit in ("usd", "tokens", "calls"))
        deadline = self._account.deadline
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        if 0 in (usd, tokens, seconds):
            calls = 0  # the other limits of a budget are above 0, and without calls they are kept
        budget = Budget(
            usd=usd or None,
            tokens=int(tokens) if tokens else None,
            calls=None if calls is None else int(calls),
            seconds=seconds or None,
            prices=self._prices(),
            output_tokens=self._account.budget.output_tokens,
        )
        lease = Lease(self._count, budget)
        self._lent[lease.number] = budget
        return lease

    def settle(self, lease: Lease | None, used: Usage, exhausted: str | None = None) -> None:
        """End a lease: what the job used is booked, ``exhausted`` says why a call of it was refused."""
        if lease is None or self._account is None or self._lent.pop(lease.number, None) is None:
            return
        self._account.book(used)
        if exhausted is not None:
            self._account.note_refusal(exhausted)

    def lose(self, lease: Lease | None) -> None:
        """End the lease of a job whose process died: all that it might have spent is booked."""
        if lease is not None:
            b = lease.budget
            self.settle(lease, Usage(b.calls or 0, b.tokens or 0, 0, b.usd or 0.0))

    def _share(self, limit: Limit, free: int) -> float | None:
        """An equal part of what the tightest account has left."""
        if self._account is None:
            return None
        left = [r for account in self._account.chain if (r := account.remaining(limit)) is not None]
        if not left:
            return None
        lent = sum(float(budget.allowed(limit) or 0) for budget in self._lent.values())
        part = max(0.0, min(left) - lent) / free
        return part if limit == "usd" else float(int(part))

    def _prices(self) -> dict[str, Price]:
        chain = () if self._account is None else self._account.chain
        return {name: price for account in reversed(chain) for name, price in account.budget.prices.items()}
