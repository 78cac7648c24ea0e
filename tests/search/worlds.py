"""A tree small enough to look through, and a population that walks it and watches over the rules.

The n-th particle to leave a state takes its n-th branch, so that a search with as many branches sees every child once.
AssertionError is raised as soon as a search asks for what it must not.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from langgraph_amc.search import tree_search
from langgraph_amc.smc import Arrival, FilterResult, Finished, drive

Path = tuple[int, ...]


@dataclass(frozen=True)
class World:
    """Runs of at most `depth` steps with `branches` ways to go on; some end early. Rewards lie in [0, 1]."""

    branches: int = 3
    depth: int = 3
    seed: int = 0
    early: float = 0.0
    same: float | None = None
    """The reward of every run, if they are all alike."""

    def ended(self, path: Path) -> bool:
        return len(path) == self.depth or (bool(path) and self.number("end", path) < self.early)

    def reward(self, path: Path) -> float:
        return self.number("reward", path) if self.same is None else self.same

    def number(self, what: str, path: Path) -> float:
        return random.Random(f"{self.seed}-{what}-{path}").random()

    def ends(self, path: Path = ()) -> list[Path]:
        """Every run that begins like this."""
        if self.ended(path):
            return [path]
        return list(itertools.chain.from_iterable(self.ends((*path, b)) for b in range(self.branches)))

    def optimum(self, path: Path = ()) -> float:
        """The best reward that can still be had, by looking through all runs."""
        return max(map(self.reward, self.ends(path)))


@dataclass(eq=False)
class Walker:
    path: Path = ()
    pruned: bool = False
    broken: bool = False


@dataclass
class Walkers:
    """Value and reward are of paths; `breaks` says where a run fails, `late` how many arrivals are late at first."""

    world: World
    value: Callable[[Path], float]
    breaks: Callable[[Path], bool] = lambda path: False
    late: int = 0
    left: Counter[Path] = field(default_factory=Counter)
    born: list[Walker] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    async def start(self, n: int) -> list[Walker]:
        self.calls.append(f"start {n}")
        self.born += [Walker() for _ in range(n)]
        return self.born[-n:]

    async def advance(self, particles: Sequence[Walker], until: int | None) -> list[Arrival]:
        self.calls.append(f"advance {len(particles)} to {until}")
        return [self.walk(p, until) for p in particles]

    def walk(self, walker: Walker, until: int | None) -> Arrival:
        assert not walker.pruned
        if self.late:
            self.late -= 1
            return Arrival(0.0, False, late=True)
        while not (walker.broken or self.world.ended(walker.path) or (until is not None and len(walker.path) >= until)):
            self.left[walker.path] += 1
            walker.path = (*walker.path, (self.left[walker.path] - 1) % self.world.branches)
            walker.broken = self.breaks(walker.path)
        done = self.world.ended(walker.path)
        return Arrival(self.world.reward(walker.path) if done else 0.0, done, walker.broken)

    async def score(self, particles: Sequence[Walker]) -> list[float]:
        self.calls.append(f"score {len(particles)}")
        assert not any(self.world.ended(p.path) or p.pruned or p.broken for p in particles)
        return [self.value(p.path) for p in particles]

    async def fork(self, particle: Walker) -> Walker:
        self.calls.append("fork")
        assert not particle.pruned
        assert not self.world.ended(particle.path)
        assert particle.path, "nobody stands before the first step"
        self.born.append(Walker(particle.path))
        return self.born[-1]

    async def prune(self, particle: Walker) -> None:
        assert not particle.pruned
        particle.pruned = True


def searched(walkers: Walkers, search, **how) -> FilterResult:
    """The result of a search driven to its end."""
    *_, last = drive(tree_search(walkers, search, **how))
    assert isinstance(last, Finished)
    return last.result


def best(result: FilterResult) -> float:
    return max((f.reward for f in result.finals if not f.failed), default=-math.inf)
