"""A process small enough to enumerate, scripted particles, and populations that watch over the rules.

Both populations raise AssertionError as soon as the filter asks for what it must not: a finished particle
stepped, scored or forked, a pruned one used again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from langgraph_amc.smc import Arrival, FilterResult, Finished, drive

Value = Callable[[str], float]

POLICY = {
    "": {"a": 0.5, "b": 0.3, "c": 0.2},
    "a": {"a": 0.6, "b": 0.4},
    "b": {"a": 0.25, "b": 0.45, "e": 0.3},
}
STEP_REWARD = {"a": 0.3, "b": -0.4, "c": 0.2, "e": 1.1}
LENGTH = 3
BETA = 0.5


def choices(state: str) -> dict[str, float]:
    return POLICY[state[-1:]]


def is_done(state: str) -> bool:
    """Runs end after 1, 2 or 3 steps: at c, at e, or at full length."""
    return len(state) == LENGTH or state[-1:] in ("c", "e")


@cache
def reward_of(state: str) -> float:
    return sum(STEP_REWARD[letter] for letter in state)


def success_of(state: str) -> float:
    """A 0/1 outcome, known at the end only."""
    return float(is_done(state) and state.endswith(("ba", "e", "aab")))


def trajectories(state: str = "", probability: float = 1.0) -> dict[str, float]:
    """All complete runs from a state with their probability under the policy."""
    if is_done(state):
        return {state: probability}
    runs: dict[str, float] = {}
    for letter, p in choices(state).items():
        runs |= trajectories(state + letter, probability * p)
    return runs


@cache
def soft_value(state: str) -> float:
    """The exact soft value β·log E[exp(future reward/β)] by enumeration."""
    return BETA * math.log(
        sum(p * math.exp((reward_of(run) - reward_of(state)) / BETA) for run, p in trajectories(state).items())
    )


@cache
def chance_of_success(state: str) -> float:
    return sum(p * success_of(run) for run, p in trajectories(state).items())


@cache
def wrong_value(state: str) -> float:
    """A value function that has learned nothing true."""
    return 0.6 * math.sin(7.0 * len(state) + 3.0 * sum(map(ord, state)))


def wrong_chance(state: str) -> float:
    return 0.5 + 0.7 * wrong_value(state)


@dataclass(eq=False)
class Walker:
    state: str = ""
    pruned: bool = False


@dataclass
class ToyPopulation:
    """Walkers of the decision process above; none of its coroutines suspends."""

    rng: np.random.Generator
    value: Value
    reward: Value = reward_of
    asked: list[int | None] = field(default_factory=list)

    async def start(self, n: int) -> list[Walker]:
        return [Walker() for _ in range(n)]

    async def advance(self, particles: Sequence[Walker], until: int | None) -> list[Arrival]:
        self.asked.append(until)
        for walker in particles:
            assert not walker.pruned
            assert not is_done(walker.state), "a finished particle was stepped"
            while not is_done(walker.state) and (until is None or len(walker.state) < until):
                options = choices(walker.state)
                walker.state += self.pick(options)
        return [Arrival(self.reward(walker.state), is_done(walker.state)) for walker in particles]

    def pick(self, options: dict[str, float]) -> str:
        left = self.rng.random()
        for letter, p in options.items():
            left -= p
            if left < 0:
                return letter
        return letter

    async def score(self, particles: Sequence[Walker]) -> list[float]:
        assert not any(is_done(walker.state) or walker.pruned for walker in particles)
        return [self.value(walker.state) for walker in particles]

    async def fork(self, particle: Walker) -> Walker:
        assert not is_done(particle.state)
        assert not particle.pruned
        return Walker(particle.state)

    async def prune(self, particle: Walker) -> None:
        assert not particle.pruned
        particle.pruned = True


@dataclass(eq=False)
class Actor:
    """A particle that plays a script: (reward, value) per boundary; None where it breaks."""

    name: str
    script: list[tuple[float, float] | None]
    at: int = 0
    pruned: bool = False

    @property
    def done(self) -> bool:
        return self.at == len(self.script)


@dataclass
class ScriptedPopulation:
    """Actors by script; a run ends with its script. A fork is called parent' and plays on from there."""

    scripts: dict[str, list[tuple[float, float] | None]]
    calls: list[str] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    break_in: str = ""

    async def start(self, n: int) -> list[Actor]:
        assert n == len(self.scripts)
        self.actors = [Actor(name, script) for name, script in self.scripts.items()]
        return list(self.actors)

    async def advance(self, particles: Sequence[Actor], until: int | None) -> list[Arrival]:
        self.note("advance", *particles)
        return [self.play(actor, until) for actor in particles]

    def play(self, actor: Actor, until: int | None) -> Arrival:
        assert not actor.done, f"{actor.name} was stepped after its end"
        end = len(actor.script) if until is None else min(until, len(actor.script))
        while actor.at < end:
            if actor.script[actor.at] is None:
                actor.at = len(actor.script)
                return Arrival(math.nan, done=False, failed=True)
            actor.at += 1
        return Arrival(actor.script[actor.at - 1][0], actor.done)

    async def score(self, particles: Sequence[Actor]) -> list[float]:
        self.note("score", *particles)
        assert not any(actor.done for actor in particles)
        return [actor.script[actor.at - 1][1] for actor in particles]

    async def fork(self, particle: Actor) -> Actor:
        self.note("fork", particle)
        assert not particle.done
        child = Actor(particle.name + "'", particle.script, particle.at)
        self.actors.append(child)
        return child

    async def prune(self, particle: Actor) -> None:
        self.note("prune", particle)
        particle.pruned = True

    def note(self, call: str, *actors: Actor) -> None:
        assert not any(actor.pruned for actor in actors), f"{call} after prune"
        self.calls.append(f"{call} {' '.join(actor.name for actor in actors)}")
        if call == self.break_in:
            self.break_in = ""
            raise OSError(f"{call} broke")


def finish(events) -> FilterResult:
    """The result of a filter driven to its end."""
    *_, last = drive(events)
    assert isinstance(last, Finished)
    return last.result
