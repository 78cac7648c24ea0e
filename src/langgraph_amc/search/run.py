"""Any search over the states of a population: the strategy says which go on, this makes it so.

A state is a particle that stands at a boundary and is not advanced. Following it up forks it as often as it needs
children, and lets the particle itself go on as the first of them, as resampling does; so one branch is a plain run,
and nothing is ever replayed. The events are those of the particle filter, and the whole tree is in its `Barrier`s.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from langgraph_amc.search.tree import Move, SearchError, Tree, TreeSearch, checked_move, closing
from langgraph_amc.smc.branching import PopulationError, prune_all
from langgraph_amc.smc.events import (
    Advanced,
    Archived,
    Arrival,
    Barrier,
    Event,
    FilterResult,
    FilterState,
    Final,
    Finished,
    Forked,
    Pruned,
    Scored,
    Stopped,
    Weighted,
)
from langgraph_amc.smc.filter import Population
from langgraph_amc.smc.nodes import TreeNode

P = TypeVar("P")
Why = Callable[[Sequence[Final[P]]], str | None]


async def tree_search(
    population: Population[P],
    search: TreeSearch,
    *,
    scored: bool = True,
    start: FilterState[P] | None = None,
    stop: Why[P] | None = None,
    exhausted: Callable[[], str | None] | None = None,
) -> AsyncGenerator[Event[P], None]:
    """Search until the strategy makes no move more; yields events, last `Finished`, whose finals are the answers.

    Parameters
    ----------
    scored: False if there is no value function: V is 0 everywhere.
    start: go on from here: a `Barrier` of an earlier search, or particles that all stand at one state, the root.
    stop: why those that have ended are enough, or None; then the others are pruned.
    exhausted: why there is nothing left to search with, or None; then the best state there is runs as far as it can.

    If the population raises, or the generator is closed early, every particle still held is pruned.
    Raises PopulationError for bad answers, SearchError for moves that cannot be made.
    """
    walk = _Walk(population, search, scored)
    try:
        await walk.begin(start)
        while walk.tree.having("pending"):
            yield Barrier(walk.state())
            for event in await walk.advanced():
                yield event
            if stop is not None and (why := stop(walk.finals)):
                yield Stopped(None, why)
                break
            if walk.tree.having("pending"):
                continue  # some are late
            if not walk.closed and exhausted is not None and (why := exhausted()):
                yield Stopped(None, why)
                walk.closed = True
                move = closing(walk.tree)
            else:
                move = Move() if walk.closed else checked_move(walk.tree, search.decide(walk.tree))
            for change in await walk.moved(move):
                yield change
        for pruned in await walk.cleared():
            yield pruned
        if not walk.finals:
            raise SearchError(
                "the search ended before any of its runs did, so there is no answer: TreeSearch.decide has to expand "
                "or finish an open state as long as none has ended"
            )
    except BaseException as error:
        await prune_all(population, list(walk.held.values()), error)
        raise
    yield Finished(FilterResult(walk.weighted(), None, tuple(walk.tree.nodes)))


class _Walk(Generic[P]):
    """A search under way."""

    def __init__(self, population: Population[P], search: TreeSearch, scored: bool) -> None:
        self.tree: Tree[P] = Tree([TreeNode(None, None, 0, "expanded")])
        self.closed = False
        """Whether the last move has been made."""
        self.held: dict[int, P] = {}
        """Everything to prune should the search be stopped."""
        self._population, self._search, self._scored = population, search, scored
        self._ended: dict[int, Final[P]] = {}

    @property
    def finals(self) -> tuple[Final[P], ...]:
        """Those that have ended, in the order in which they did."""
        return tuple(self._ended.values())

    async def begin(self, start: FilterState[P] | None) -> None:
        """The root and its children, or the tree as it was."""
        if start is None or not start.tree:
            first = await self._population.start(self._search.first) if start is None else start.live
            root = 0 if start is None else start.boundary
            self.tree.put(0, boundary=root)
            for particle in first:
                self._hold(particle)
                self.tree.add(0, particle, root + self._search.steps)
            return
        self.tree = Tree(start.tree)
        ended = {id(final.particle): final for final in start.finals}
        for i, node in enumerate(start.tree):
            if node.status in ("pending", "open"):
                self._hold(node.particle)
            elif node.status in ("ended", "failed"):
                if (final := ended.get(id(node.particle))) is not None:
                    self._ended[i] = final
                else:  # what a budget had ended can go on
                    self._hold(node.particle)
                    self.tree.put(i, status="pending")

    def state(self) -> FilterState[P]:
        """Where the search stands."""
        nodes = self.tree.nodes
        live = [nodes[i] for i in self.tree.having("pending", "open")]
        # the last check of one that is on its way was where it comes from
        checked = [nodes[n.parent or 0] if n.status == "pending" else n for n in live]
        at = [c.boundary or 0 for c in checked]
        zeros = (0.0,) * len(live)
        boundary = next((b for b, n in zip(at, live, strict=True) if n.status == "pending"), 0)
        return FilterState(
            boundary,
            tuple(n.particle for n in live if n.particle is not None),
            self.finals,
            zeros,
            zeros,
            zeros,
            tuple(c.seen for c in checked),
            tuple(at),
            tree=tuple(nodes),
        )

    async def advanced(self) -> list[Event[P]]:
        """Let those on their way arrive, and see what they are worth."""
        events: list[Event[P]] = []
        reached: list[int] = []
        pending = self.tree.having("pending")
        for until in sorted({self.tree.nodes[i].boundary for i in pending}, key=lambda b: math.inf if b is None else b):
            group = [i for i in pending if self.tree.nodes[i].boundary == until]
            particles = tuple(self._standing(i) for i in group)
            arrivals = await self._population.advance(particles, until)
            if len(arrivals) != len(group):
                raise PopulationError(f"Population.advance returned {len(arrivals)} items for {len(group)} particles")
            events.append(Advanced(until, particles, tuple(arrivals)))
            for i, arrival in zip(group, arrivals, strict=True):
                if not arrival.late:
                    reached.append(i)
                    self._arrived(i, arrival)
        events += await self._valued(reached)
        for i in reached:
            if (final := self._ended.get(i)) is not None:
                events.append(Archived(self.tree.nodes[i].boundary, final))
        self._search.learn(self.tree, reached)
        return events

    async def moved(self, move: Move) -> list[Event[P]]:
        """Make a move: prune, fork, and send on their way."""
        events: list[Event[P]] = [await self._cut(i) for i in move.cut]
        for i in (*move.expand, *move.finish):
            node = self.tree.nodes[i]
            assert node.boundary is not None
            runners = [self._standing(i)]
            for _ in range(self._search.branches - 1 if i in move.expand else 0):
                runners.append(await self._fork(i, events))
            self.tree.put(i, status="expanded")
            for runner in runners:
                self.tree.add(i, runner, node.boundary + self._search.steps if i in move.expand else None)
        for i in move.rollout:
            self.tree.add(i, await self._fork(i, events), None)
        return events

    async def cleared(self) -> list[Event[P]]:
        """Prune whoever has not ended."""
        return [await self._cut(i) for i in self.tree.having("pending", "open")]

    def weighted(self) -> tuple[Final[P], ...]:
        """All that ended; where states were visited, weighed by the visits of each among its siblings on the way."""
        weights = {i: -math.inf if final.failed else self._share(i) for i, final in self._ended.items()}
        return tuple(
            Final(f.particle, weights[i], f.reward, f.last_value, f.done, f.failed) for i, f in self._ended.items()
        )

    # -- inside ----------------------------------------------------------------------------------

    def _arrived(self, i: int, arrival: Arrival) -> None:
        node = self.tree.nodes[i]
        status = "failed" if arrival.failed else "ended" if arrival.done or node.boundary is None else "open"
        self.tree.put(i, status=status, worth=-math.inf if arrival.failed else arrival.reward)
        if status != "open":
            particle = self._standing(i)
            seen = self.tree.nodes[node.parent or 0].seen
            last = None if math.isnan(seen) else seen
            self._ended[i] = Final(particle, 0.0, arrival.reward, last, arrival.done, arrival.failed)
            self.held.pop(id(particle), None)

    async def _valued(self, reached: Sequence[int]) -> list[Event[P]]:
        """V of those that stand at a boundary; a missing one is taken to be worth what it was worth before."""
        standing = [i for i in reached if self.tree.nodes[i].status == "open"]
        if not standing:
            return []
        particles = tuple(self._standing(i) for i in standing)
        boundary = self.tree.nodes[standing[0]].boundary or 0
        events: list[Event[P]] = []
        values = np.zeros(len(standing))
        if self._scored:
            values = np.asarray(await self._population.score(particles), dtype=np.float64)
            if values.shape != (len(standing),) or np.isinf(values).any():
                raise PopulationError(
                    f"The value function must return one finite number for each of {len(standing)} particles, or NaN "
                    f"where it is missing, got {values!r}."
                )
            events.append(Scored(boundary, particles, tuple(values.tolist())))
        worth = np.array([self.tree.nodes[i].worth for i in standing]) + values
        typical = float(np.nanmean(worth)) if not np.isnan(worth).all() else 0.0
        for i, value, known in zip(standing, values.tolist(), worth.tolist(), strict=True):
            before = self.tree.nodes[self.tree.nodes[i].parent or 0].worth
            guess = typical if math.isnan(before) else before
            self.tree.put(i, seen=value if self._scored else math.nan, worth=guess if math.isnan(known) else known)
        events.append(Weighted(boundary, particles, (0.0,) * len(standing), 1.0, 1.0))
        return events

    async def _fork(self, i: int, events: list[Event[P]]) -> P:
        parent = self._standing(i)
        child = await self._population.fork(parent)
        if id(child) in self.held:
            raise PopulationError("Population.fork returned a particle that is in use: return a new one.")
        self._hold(child)
        events.append(Forked(self.tree.nodes[i].boundary or 0, parent, child))
        return child

    async def _cut(self, i: int) -> Pruned[P]:
        particle = self._standing(i)
        await self._population.prune(self.held.pop(id(particle)))
        self.tree.put(i, status="cut")
        return Pruned(self.tree.nodes[i].boundary, particle)

    def _hold(self, particle: P | None) -> None:
        assert particle is not None
        self.held[id(particle)] = particle

    def _standing(self, i: int) -> P:
        particle = self.tree.nodes[i].particle
        assert particle is not None
        return particle

    def _share(self, i: int) -> float:
        """log Π n(s)/Σ n(siblings) from the root to a state; −log of the number of ends where nobody counts visits."""
        nodes = self.tree.nodes
        if not nodes[0].visits:
            return -math.log(len(self._ended))
        share = 0.0
        for k in self.tree.path(i)[:-1]:
            siblings = sum(nodes[s].visits for s in self.tree.children(nodes[k].parent or 0))
            share += math.log(nodes[k].visits / siblings) if nodes[k].visits else -math.inf
        return share
