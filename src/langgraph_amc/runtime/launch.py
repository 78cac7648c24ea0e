"""What all particles of one run have in common, and how each of them enters the app."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.types import All

from langgraph_amc.context import ParticleContext
from langgraph_amc.policy.account import Account
from langgraph_amc.policy.budget import Budget
from langgraph_amc.runtime.boundaries import Boundary, Edge, ModelCalls
from langgraph_amc.runtime.engine import Engine
from langgraph_amc.runtime.llm_cache import RecordedCalls
from langgraph_amc.runtime.record import Record
from langgraph_amc.runtime.watching import ModelCalled, Watch
from langgraph_amc.trajectories.transcript import Transcript, TranscriptBuilder
from langgraph_amc.trajectories.types import Usage

MODES = ("checkpoints", "updates", "values")
"""Stream modes the runtime itself needs."""

Event = tuple[tuple[str, ...], str, Any, Any]
"""(namespace, mode, payload, the event as LangGraph emitted it)"""


class Keeper(Protocol):
    """Who has to know where particles stand so that a broken run can go on: the journal."""

    def boundary(self, particle: Any) -> None:
        """A particle has reached a boundary, at which it may be compared with others or not."""
        ...

    def particle(self, particle: Any) -> None:
        """Write where a particle stands, or how it has ended."""
        ...


@dataclass(frozen=True, slots=True)
class Launch:
    """What all particles of one run have in common."""

    app: Any
    engine: Engine
    config: RunnableConfig
    thread_id: str
    options: Mapping[str, Any]
    """Keyword arguments of ``stream``/``astream``, stream modes included."""
    alone: bool
    """A single particle of an app that has a saver is a plain run: it needs no copy of anything."""
    kept_modes: frozenset[str]
    boundary: Boundary
    transcript: Transcript | None
    needs_text: bool
    recursion_limit: int
    start_id: str | None
    base_step: int
    """Id and super-step number of the checkpoint the run starts from; None and -2 on a fresh thread."""
    interrupt_before: All | frozenset[str]
    interrupt_after: All | frozenset[str]
    untracked: frozenset[str]
    seed: int
    identity: Callable[[str], ParticleContext]
    keeper: Keeper | None = None
    watched: bool = True
    """Whether anybody sees the stream's events before the run is over."""
    account: Account | None = None
    """What everything in this run is charged to."""
    watch: Watch | None = None
    """Who is told what happens; ``None`` where nobody is."""

    def calls(self, particle: str, nodes: frozenset[str] = frozenset()) -> ModelCalls:
        """The handler of one particle's model calls; ``nodes``: those known to call one."""
        kind = ModelCalls if self.keeper is None else RecordedCalls
        told = None if self.watch is None else functools.partial(self.watch.tell, ModelCalled, particle=particle)
        return kind(nodes, None if self.account is None else self.account.price, told)

    def first_record(self, state: Any) -> Record:
        """The record of a run that has only its first state."""
        builder = None if self.transcript is None else TranscriptBuilder(self.transcript)
        return Record(builder, needed=self.needs_text).extend(state)

    def stops_at(self, edge: Edge) -> bool:
        """Whether a static breakpoint ends the run at this edge."""
        before, after = self.interrupt_before, self.interrupt_after
        return bool(
            (edge.next if before == "*" else not frozenset(before).isdisjoint(edge.next))
            or (edge.ran if after == "*" else not frozenset(after).isdisjoint(edge.ran))
        )


class StepsLeft(int):
    """A recursion limit for a clone, which enters in the middle of a run.

    LangGraph finds the last step as ``step + limit + 1``, where ``step`` is the one it enters at, and hands
    the limit on to subgraphs, which count from their own beginning. So the first to add, the clone itself,
    gets what is left of the limit, so does a subgraph that it enters in the middle, and everybody else gets
    the limit.
    """

    _used: int | None
    _inside: Mapping[int, int]

    def __new__(cls, limit: int, used: int, inside: Mapping[int, int] | None = None) -> StepsLeft:
        """``inside``: steps that subgraphs have used, by the step at which they are entered."""
        left = super().__new__(cls, limit)
        left._used, left._inside = used, inside or {}
        return left

    def __radd__(self, step: int) -> int:
        used, self._used = self._inside.get(step, 0) if self._used is None else self._used, None
        return step + int(self) - used


def untracked_channels(app: Any) -> frozenset[str]:
    """Channels that no checkpoint holds, so that a clone must be handed them."""
    return frozenset(name for name, channel in app.channels.items() if isinstance(channel, UntrackedValue))


@contextmanager
def charged(account: Account | None) -> Iterator[None]:
    """Charge the model calls below to ``account``."""
    if account is None:
        yield
        return
    with account.active():
        yield


@contextmanager
def noted(account: Account | None, spent: list[Usage]) -> Iterator[None]:
    """Charge the model calls below to ``account``, and note what they took together."""
    with charged(account):
        around = () if account is None else reversed(account.chain)
        tab = Budget(prices={name: price for one in around for name, price in one.budget.prices.items()}).open()
        try:
            with tab.active():
                yield
        finally:
            spent.append(tab.spent)


def parse_event(raw: Any) -> Event:
    """An event in either of LangGraph's stream formats."""
    if isinstance(raw, dict):
        return tuple(raw["ns"]), raw["type"], raw["data"], raw
    if len(raw) == 3:
        return tuple(raw[0]), raw[1], raw[2], raw
    return (), raw[0], raw[1], raw


def as_emitted(mode: str, payload: Any, options: Mapping[str, Any]) -> Any:
    """The event as LangGraph would have emitted it for the graph itself."""
    if options.get("version") == "v2":
        return {"type": mode, "ns": (), "data": payload, **({"interrupts": ()} if mode == "values" else {})}
    return ((), mode, payload) if options.get("subgraphs") else (mode, payload)
