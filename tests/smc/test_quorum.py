"""Stragglers: who is late is left alone, and the weights mean what they say all the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc import (
    Arrival,
    Forked,
    PopulationError,
    Pruned,
    Quorum,
    Resampled,
    Scored,
    at,
    drive,
    ess_below,
    ess_target,
    every,
    fixed,
    particle_filter,
    quorum,
)

from .test_exactness import RUNS, assert_mean_is, target
from .test_filter import final_weights, of, run, take
from .toy import BETA, ScriptedPopulation, ToyPopulation, Walker, choices, is_done, reward_of, wrong_value

PATIENT = Quorum(0.6, patience=1.0)


@dataclass
class SlowPopulation(ToyPopulation):
    """Walkers whose steps take time, by the letter; a virtual clock, and a quorum that does not wait for all.

    ``lost``: stragglers are given up, as one must not.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    rule: Quorum = PATIENT
    lost: bool = False
    late: int = 0
    plans: dict[int, list[list]] = field(default_factory=dict)

    async def advance(self, particles: Sequence[Walker], until: int | None) -> list[Arrival]:
        needs = [self.time_to(walker, until) for walker in particles]
        end, took = math.inf, []
        for need in sorted(needs):
            if need > end:
                break
            took.append(need)
            after = self.rule.goes_on_after(took, len(needs)) if until is not None else None
            end = math.inf if after is None else max(after, need)
        arrivals = []
        for walker, need in zip(particles, needs, strict=True):
            assert not walker.pruned
            self.move(walker, min(need, end))
            late = need > end
            self.late += late
            arrivals.append(
                Arrival(
                    self.reward(walker.state),
                    is_done(walker.state) and not late,
                    failed=late and self.lost,
                    late=late and not self.lost,
                )
            )
        return arrivals

    def time_to(self, walker: Walker, until: int | None) -> float:
        """What the way there takes; the steps on it are drawn now, and taken later."""
        plan, state = self.plans.setdefault(id(walker), []), walker.state
        for letter, _ in plan:
            state += letter
        while not is_done(state) and (until is None or len(state) < until):
            letter = self.pick(choices(state))
            plan.append([letter, self.seconds.get(letter, 1.0) * self.rng.exponential()])
            state += letter
        steps = len(plan) if until is None else max(0, until - len(walker.state))
        return sum(left for _, left in plan[:steps])

    def move(self, walker: Walker, seconds: float) -> None:
        plan = self.plans[id(walker)]
        while plan and plan[0][1] <= seconds + 1e-12:
            letter, left = plan.pop(0)
            walker.state, seconds = walker.state + letter, seconds - left
        if plan:
            plan[0][1] -= seconds

    async def fork(self, particle: Walker) -> Walker:
        assert not self.plans.get(id(particle)), "a particle on its way was forked"
        return await super().fork(particle)

    async def prune(self, particle: Walker) -> None:
        assert not self.plans.get(id(particle)), "a particle on its way was pruned"
        await super().prune(particle)


PACE = {
    "all alike": {},
    "the good are slow": {"a": 0.3, "e": 8.0},
    "the bad are slow": {"b": 8.0, "a": 0.3},
}


def table_of(pace: str, objective: str, repeats: int, seed: int, *, lost: bool = False) -> tuple[np.ndarray, float]:
    """Weight [repeats, runs] that each of so many filters gives to each run, and the share of late arrivals."""
    rng, column = np.random.default_rng(seed), {x: k for k, x in enumerate(RUNS)}
    table, late = np.zeros((repeats, len(RUNS))), 0
    for row in table:
        population = SlowPopulation(rng, wrong_value, seconds=PACE[pace], lost=lost)
        events = particle_filter(
            population,
            particles=5,
            schedule=every(1),
            tempering=fixed(BETA),
            rng=rng,
            objective=objective,
            max_boundary=10,
        )
        *_, last = drive(events)
        for final in last.result.finals:
            if not final.failed:
                row[column[final.particle.state]] += math.exp(final.log_weight)
        late += population.late
    return table, late / (repeats * 5)


@pytest.mark.parametrize("pace", PACE)
@pytest.mark.parametrize("objective", ["sample", "optimise"])
def test_weights_mean_what_they_say_whoever_is_late(pace, objective):
    table, late = table_of(pace, objective, 1000, seed=31)
    assert late > 0.3, "nobody was late: nothing was tested"
    assert_mean_is(table, target(reward_of, BETA))


@pytest.mark.parametrize("pace", list(PACE)[1:])
def test_intervals_of_95_percent_cover_the_evidence(pace):
    """30 studies of 60 runs each, time to arrive correlated with value: their intervals for Z."""
    table, _ = table_of(pace, "sample", 1800, seed=32)
    studies = table.sum(1).reshape(30, 60)
    error = 1.96 * studies.std(1, ddof=1) / math.sqrt(60)
    covered = np.abs(studies.mean(1) - target(reward_of, BETA).sum()) <= error
    assert covered.mean() > 0.8  # below 0.95 also because a sum of weights is skewed


def test_giving_stragglers_up_would_be_seen():
    table, _ = table_of("the good are slow", "sample", 1000, seed=31, lost=True)
    z = target(reward_of, BETA).sum()
    assert table.sum(1).mean() + 5 * table.sum(1).std() / math.sqrt(1000) < z


@dataclass
class Delayed(ScriptedPopulation):
    """Actors that are late at given calls of advance, and then come to where the others are."""

    late: dict[str, set[int]] = field(default_factory=dict)
    calls_made: int = 0

    async def advance(self, particles, until):
        self.calls_made += 1
        return [
            Arrival(0.0, False, late=True) if self.calls_made in self.late.get(a.name, ()) else self.play(a, until)
            for a in particles
        ]


class TestByHand:
    SCRIPTS: ClassVar = {"a": [(0, 1), (0, 1), (0, 0)], "b": [(0, 3), (0, 1), (0, 0)], "slow": [(0, 9), (0, 2), (5, 0)]}

    def test_who_is_late_is_neither_scored_nor_resampled_and_keeps_its_weight(self):
        population = Delayed(self.SCRIPTS, late={"slow": {1}})
        events = run(population, schedule=at(1), objective="sample", resampler=take(1, 1))
        assert [a.name for a in of(Scored, events)[0].particles] == ["a", "b"]
        first = of(Resampled, events)[0]
        assert len(first.ancestors) == 2
        arrived = np.logaddexp(1, 3) - math.log(3)
        assert first.log_weight_after == pytest.approx(arrived - math.log(2))
        final = final_weights(events)
        assert final["slow"] == pytest.approx(5 - math.log(3))
        assert final["b"] == final["b'"] == pytest.approx(arrived - math.log(2) - 3)
        assert [e.particle.name for e in of(Pruned, events)] == ["a"]
        assert [e.child.name for e in of(Forked, events)] == ["b'"]

    def test_one_that_is_late_for_ever_is_waited_for_at_the_end(self):
        events = run(Delayed(self.SCRIPTS, late={"slow": {1, 2, 3}}), schedule=every(1) & ess_below(1e-9))
        assert set(final_weights(events)) == {"a", "b", "slow"}

    def test_the_total_level_keeps_its_slots(self):
        population = Delayed(self.SCRIPTS, late={"slow": {1}})
        events = run(population, schedule=every(1), tempering=ess_target(0.5))
        assert len(of(Resampled, events)[0].ancestors) == 2
        assert of(Resampled, events)[0].log_weight_after == pytest.approx(-math.log(3))

    def test_somebody_has_to_arrive(self):
        with pytest.raises(PopulationError, match="arrived"):
            run(Delayed(self.SCRIPTS, late={name: {1} for name in self.SCRIPTS}), schedule=every(1))


@given(
    took=st.lists(st.floats(0, 100), max_size=10),
    n=st.integers(1, 10),
    share=st.floats(0.01, 1),
    patience=st.floats(1, 9),
)
def test_the_rule(took, n, share, patience):
    after = quorum(share, patience=patience).goes_on_after(took, n)
    assert (after is None) == (len(took) < max(1, math.ceil(share * n - 1e-9)))
    if after is not None:
        assert after == pytest.approx(patience * np.median(took))
        assert quorum(share, patience=patience, seconds=1e4).goes_on_after(took, n) == 1e4


@pytest.mark.parametrize("wrong", [{"share": 0}, {"share": 1.1}, {"share": True}, {"patience": 0.5}, {"seconds": -1}])
def test_what_cannot_be_a_quorum(wrong):
    with pytest.raises(ConfigurationError, match="quorum"):
        quorum(**wrong)
