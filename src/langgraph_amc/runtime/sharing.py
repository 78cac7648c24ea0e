"""What a run shows of what particles share although they should not: docs/isolation.md says what to do instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langchain_core.globals import get_llm_cache

from langgraph_amc.runtime.cells import ATOMS, Shared, freeze
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.runtime.population import AppPopulation


def sharing_warnings(population: AppPopulation) -> list[str]:
    """One sentence for each thing that particles shared, with its cause and what to do."""
    born = population.born
    if len(born) < 2:
        return []
    found = [*_threads(population), *_server_state(born)]
    founders = [p for p in born if p.parent is None]
    if shared := set().union(*(p.saver.shared_channels() for p in founders)):
        found.append(
            f"the values of {', '.join(sorted(shared))} cannot be copied, so particles share them: keep such "
            "objects out of the graph's state"
        )
    if live := _live(population) - shared:
        found.append(
            f"{', '.join(sorted(live))} held a live object (a session, a client) when a particle was branched, and "
            "clones go on with the same one: open it in the tool that needs it, or name its tools in effects="
        )
    if cached_by_model(born):
        found.append(
            "answers came from a model's own cache=, which AMC cannot salt, so particles get each other's: give the "
            "cache to LangChain as the global one (set_llm_cache), or none"
        )
    return found


def cached_by_model(particles: Sequence[Particle]) -> bool:
    """The global cache is salted; an answer from a cache although there is none came from the model's own."""
    return get_llm_cache() is None and any(p.calls.cached for p in particles)


def _threads(population: AppPopulation) -> list[str]:
    own = population.launch.thread_id
    called = {
        thread: node
        for p in population.born
        for thread, node in p.calls.threads.items()
        if thread != own and not thread.startswith("amc-")
    }
    return [
        f"a graph was called with a thread id of its own ({thread!r}; a model ran in its node {node!r}): all particles "
        "write to that thread, and what losers wrote stays; call it without a thread id, or as a subgraph"
        for thread, node in sorted(called.items())
    ]


def _server_state(born: Sequence[Particle]) -> list[str]:
    names: set[str] = set().union(*(p.calls.server_state for p in born))
    if not names:
        return []
    return [
        f"the model continues state that its provider keeps ({', '.join(sorted(names))}): particles that branch after "
        "such a call go on from each other's; send the messages instead"
    ]


def _live(population: AppPopulation) -> set[str]:
    """Channels that no checkpoint holds and whose value could not be copied for a clone."""
    if all(p.parent is None for p in population.born):
        return set()
    states = [p.state for p in population.born if isinstance(p.state, Mapping)]
    return {
        name
        for state in states
        for name in population.launch.untracked & state.keys()
        if type(state[name]) not in ATOMS and isinstance(freeze(state[name]), Shared)
    }
