"""As many particles as it takes: waves of fresh runs, each as large as all before it, until they are enough.

2, then 4, 8, 16 in all: with doubling, no more than twice of what would have been enough is started. The final
weights of all waves are put on one scale, each wave's total counting by its size. When the number of particles
depends on their answers, these weights are no unbiased estimate any more (runs are added exactly when those there
disagree), so the `sample` objective refuses it and no evidence is reported.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from langgraph_amc.checks import is_whole
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc.enough import Enough, agreement
from langgraph_amc.smc.events import (
    Barrier,
    Event,
    FilterResult,
    FilterState,
    Final,
    Finished,
    Grown,
    Stopped,
)
from langgraph_amc.smc.filter import Population, particle_filter
from langgraph_amc.smc.schedules import Schedule
from langgraph_amc.smc.tempering import Tempering

P = TypeVar("P")

_AGREE = agreement(0.75, among=3)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """How many particles a run is given.

    Attributes
    ----------
    start, most: particles started at first, and at most.
    enough: the rule that ends it earlier.
    """

    start: int = 2
    most: int = 16
    enough: Enough = _AGREE

    def __post_init__(self) -> None:
        for name, number in (("start", self.start), ("most", self.most)):
            if not is_whole(number, 1):
                raise ConfigurationError(f"adaptive({name}=…) is a whole number of at least 1, got {number!r}.")
        if self.start >= self.most:
            raise ConfigurationError(
                f"adaptive(start={self.start}, most={self.most}) cannot grow: give most above start, or a number."
            )
        if not isinstance(self.enough, Enough) or isinstance(self.enough, type):
            raise ConfigurationError(f"adaptive(enough=…) is a rule such as agreement(0.75), got {self.enough!r}.")

    def wave(self, started: int) -> int:
        """Particles of the next wave when so many have been started: as many again, `most` in all."""
        return self.start if started == 0 else min(started, self.most - started)


def adaptive(start: int = 2, most: int = 16, enough: Enough = _AGREE) -> Adaptive:
    """Start with `start` particles and double them, up to `most`, until `enough` says that their answers are enough.

    Rules: `agreement(share, among, key)`, `value_above(threshold)`, combined with | and &; by default three quarters of
    the weight on one `final_text`, of three finished particles at least.
    """
    return Adaptive(start, most, enough)


async def adaptive_filter(
    population: Population[P],
    policy: Adaptive,
    *,
    enough: Callable[[Sequence[Final[P]]], str | None],
    schedule: Schedule,
    tempering: Tempering,
    rng: np.random.Generator,
    start: FilterState[P] | None = None,
    stop: Callable[[Sequence[Final[P]]], str | None] | None = None,
    **how: Any,
) -> AsyncGenerator[Event[P], None]:
    """Run waves of particles until `enough(finals)` gives a reason, or the most were started; yields events.

    `start` goes on from a `Barrier` of an earlier call; `stop` and `how` are those of `particle_filter`. The last
    event is `Finished` with the particles of all waves; the one before it, `Stopped`, says why there are no more.
    """
    if how.get("objective") == "sample":
        raise ConfigurationError(
            "objective='sample' needs a fixed number of particles: where it depends on the answers, the weights are "
            "a biased sample. Give particles=8, say, or objective='optimise'."
        )
    earlier, started = ((), 0) if start is None else (start.earlier, start.started)
    while True:
        n = policy.wave(started)
        finals: tuple[Final[P], ...] = ()
        why: str | None = None
        wave = particle_filter(
            population, particles=n, schedule=schedule, tempering=tempering, rng=rng, start=start, stop=stop, **how
        )
        async with aclosing(wave) as events:
            async for event in events:
                if isinstance(event, Finished):
                    finals = event.result.finals
                    continue
                if isinstance(event, Stopped):
                    why = event.reason
                elif isinstance(event, Barrier):
                    event = Barrier(replace(event.state, earlier=earlier, started=started))
                yield event
        earlier = _merged(earlier, started, finals, n)
        started, start = started + n, None
        if why is None:
            why = enough(earlier) or (f"all {started} particles were started" if started >= policy.most else None)
            if why is None:
                yield Grown(started, policy.wave(started))
                continue
            yield Stopped(None, why)
        yield Finished(FilterResult(earlier, None))
        return


def _merged(earlier: tuple[Final[P], ...], started: int, wave: tuple[Final[P], ...], n: int) -> tuple[Final[P], ...]:
    """All that ended, the total weight of each part counting by the number of particles it was started with."""
    if not earlier:
        return wave
    total = math.log(started + n)
    return (
        *(replace(f, log_weight=f.log_weight + math.log(started) - total) for f in earlier),
        *(replace(f, log_weight=f.log_weight + math.log(n) - total) for f in wave),
    )
