"""``wrap(search=…)``: which settings go with a search, and its tree as the record of a run shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.runtime.journal import JournalError
from langgraph_amc.runtime.particle import Particle
from langgraph_amc.search import Preset, TreeSearch
from langgraph_amc.search.tree import check_sizes
from langgraph_amc.smc import TreeNode

if TYPE_CHECKING:
    from langgraph_amc.runtime.settings import Settings

UNSET: Mapping[str, Any] = {"objective": "optimise", "resampler": "systematic"}
"""What stands for an argument that was not given; else ``None``."""
_DECIDED = ("particles", "resample", "resampler", "tau", "beta", "backtrack", "quorum", "objective")


@dataclass(frozen=True, slots=True)
class Thought:
    """A state in the tree of a search.

    Attributes
    ----------
    particle: who came here. The first child of a state goes on under the same name.
    parent: index of the state it follows, ``None`` for a root.
    boundary: agent steps so far.
    status: "open" (a run was ended here), "expanded", "ended", "failed" or "cut".
    value: V there; ``None`` where there is none.
    worth: reward so far and to come, of an end what it was worth; ``None`` where it is missing.
    visits, mean, best: evaluations of it and of what follows it; 0 and ``None`` where the search counts none.
    """

    particle: str | None
    parent: int | None
    boundary: int
    status: str
    value: float | None
    worth: float | None
    visits: int
    mean: float | None
    best: float | None


def read_search(search: Any, given: Mapping[str, Any], *, valued: bool, rewarded: bool) -> tuple[Any, dict[str, Any]]:
    """The strategy, ``None`` for a preset, and the arguments of `wrap` that go with it.

    Raises ConfigurationError where it does not go with those ``given``.
    """
    if not isinstance(search, TreeSearch | Preset) or isinstance(search, type):
        raise ConfigurationError(f"search is amc.search.mcts(), bfs(), dfs(), beam() or foa(), got {search!r}")
    if isinstance(search, TreeSearch):
        sizes = {"branches": search.branches, "first": search.first, "steps": search.steps, "at_once": search.at_once}
        check_sizes(type(search).__name__, **sizes)
    decided = search.arguments if isinstance(search, Preset) else {"particles": search.at_once}
    taken = _DECIDED if isinstance(search, TreeSearch) else (*decided, "beta", "objective")
    if clash := [name for name in taken if given[name] != UNSET.get(name)]:
        raise ConfigurationError(
            f"search=… decides how many run and who goes on: leave {', '.join(f'{name}=…' for name in clash)} out"
        )
    if isinstance(search, Preset):
        return None, {**given, **decided}
    if search.needs_values and not valued:
        raise ConfigurationError("this search compares states by value: give value=…, a judge for example")
    if not (valued or rewarded):
        raise ConfigurationError("a search needs to know what its runs are worth: give value=… or reward=…")
    return search, {**given, **decided}


def with_search(settings: Settings, search: TreeSearch | Preset) -> Settings:
    """The same settings with a search in the place of the filter.

    Raises ConfigurationError where it needs a value function and there is none.
    """
    unset = {name: UNSET.get(name) for name in _DECIDED}
    valued, rewarded = settings.value is not None, settings.reward is not None
    strategy, decided = read_search(search, unset, valued=valued, rewarded=rewarded)
    found: dict[str, Any] = {"particles": decided["particles"], "search": strategy, "adaptive": None, "quorum": None}
    if isinstance(search, Preset):
        found |= {name: decided[name] for name in ("resample", "resampler", "backtrack")}
        found["tempering"] = decided["tau"]
    return replace(settings, **found)


def check_same_kind(began: bool, search: TreeSearch | None) -> None:
    """Raises JournalError where a run cannot be gone on with: a search began it and this is none, or the reverse."""
    if began != (search is not None):
        how = "by a search" if began else "without a search"
        raise JournalError(
            f"this run was begun {how}: go on with it with the same settings, or delete it with "
            "`amc prune --status resumable`"
        )


def thoughts(earlier: tuple[Thought, ...], tree: Sequence[TreeNode[Particle]]) -> tuple[Thought, ...]:
    """The trees of a run, one for each stretch between effects, one after the other."""
    return (*earlier, *(_thought(node, len(earlier)) for node in tree))


def _thought(node: TreeNode[Particle], base: int) -> Thought:
    particle = node.particle
    boundary = node.boundary
    if boundary is None or (node.status in ("ended", "failed") and particle is not None):
        boundary = 0 if particle is None else particle.boundary
    return Thought(
        None if particle is None else particle.name,
        None if node.parent is None else node.parent + base,
        boundary,
        node.status,
        _known(node.seen),
        _known(node.worth),
        node.visits,
        node.total / node.visits if node.visits else None,
        node.best if node.visits else None,
    )


def _known(number: float) -> float | None:
    return number if abs(number) < float("inf") else None  # NaN is not below anything
