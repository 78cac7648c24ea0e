"""What a resampling does to the population: nobody descends from some, who are pruned; others are forked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from langgraph_amc.errors import AMCError
from langgraph_amc.smc.events import Forked, Pruned

P = TypeVar("P")


class PopulationError(AMCError):
    """A population or value function that answered with the wrong number of things, or with what is no number."""


class Branching(Protocol[P]):
    """The part of a `Population` that branches it."""

    async def fork(self, particle: P) -> P: ...

    async def prune(self, particle: P) -> None: ...


async def branch(
    population: Branching[P],
    boundary: int,
    live: Sequence[P],
    ancestors: Sequence[int],
    held: dict[int, P],
    past: Sequence[P] = (),
) -> tuple[list[P], list[Pruned[P] | Forked[P]]]:
    """The next generation, slot k descending from `[*live, *past][ancestors[k]]`, and what it took.

    The first offspring of a live particle is the particle itself; copies that stand at earlier states stay there.
    """
    changes: list[Pruned[P] | Forked[P]] = []
    offspring: list[P] = []
    first = set[int]()
    sources = [*live, *past]
    for i in sorted(set(range(len(live))) - set(ancestors)):
        await population.prune(held.pop(id(live[i])))
        changes.append(Pruned(boundary, live[i]))
    for i in ancestors:
        child = sources[i]
        if i in first or i >= len(live):
            child = await population.fork(sources[i])
            if id(child) in held:
                raise PopulationError("Population.fork returned a particle that is in use: return a new one.")
            held[id(child)] = child
            changes.append(Forked(boundary, sources[i], child))
        first.add(i)
        offspring.append(child)
    return offspring, changes


async def prune_all(population: Branching[P], particles: Sequence[P], error: BaseException) -> None:
    """Prune everything that is left because of `error`, and note on it what could not be pruned."""
    failures: list[Exception] = []
    for particle in particles:
        try:
            await population.prune(particle)
        except Exception as failure:
            error.add_note(f"While cleaning up, a particle could not be pruned: {failure!r}")
            failures.append(failure)
    if failures and isinstance(error, GeneratorExit):  # which nobody ever sees
        raise ExceptionGroup("The filter was closed early and particles could not be pruned", failures)
