"""Going back to earlier states: which, with what weight, and what becomes of the copies that stand there."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc import (
    Barrier,
    Forked,
    Past,
    Resampled,
    backtrack,
    drive,
    ess_target,
    every,
    fixed,
    particle_filter,
)

from .test_filter import of, trace
from .toy import BETA, ToyPopulation, Walker, chance_of_success, is_done, success_of, wrong_value


@dataclass
class Parking(ToyPopulation):
    parked: list[Walker] = field(default_factory=list)
    refuses: bool = False

    async def park(self, particle: Walker) -> Walker | None:
        if self.refuses:
            return None
        assert not particle.pruned
        self.parked.append(Walker(particle.state))
        return self.parked[-1]


def events_of(population, rng, *, rule=None, start=None, tempering=None, particles=6, schedule=None):
    return particle_filter(
        population,
        particles=particles,
        schedule=schedule or every(1),
        tempering=tempering or ess_target(0.5),
        rng=rng,
        start=start,
        backtrack=(rule or backtrack(0.9), population),
    )


def test_weights_are_discounted_by_age():
    pool = [
        Past("old", 1, -1.0, 0.5, 0.5, 0.5),
        Past("new", 3, -1.0, 0.5, 0.5, 0.5),
        Past("now", 4, 0.0, 9.0, 9.0, 9.0),
    ]
    weights = backtrack(0.5).log_weights(pool, 2.0, 4)
    assert weights == pytest.approx([3 * math.log(0.5), math.log(0.5), -math.inf])
    kept, forgotten = backtrack(0.5, most=2).kept(pool, 2.0, 4)
    assert [past.particle for past in kept] == ["new", "now"]
    assert [past.particle for past in forgotten] == ["old"]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    tempering=st.sampled_from([ess_target(0.5), ess_target(0.3, weighs="growth"), fixed(BETA)]),
    most=st.integers(1, 40),
    discount=st.floats(0.1, 0.99),
)
def test_whatever_the_settings(seed, tempering, most, discount):
    rng = np.random.default_rng(seed)
    population = Parking(rng, wrong_value)
    events = list(drive(events_of(population, rng, rule=backtrack(discount, most), tempering=tempering)))
    assert all(walker.pruned for walker in population.parked), "a copy was left behind"
    finals = events[-1].result.finals
    assert all(is_done(f.particle.state) and not f.particle.pruned for f in finals)
    assert events[-1].result.log_evidence is None
    for event in of(Resampled, events):
        assert event.past <= most
        here = len(event.particles) - event.past
        assert all(i < len(event.particles) for i in event.ancestors)
        assert len(event.log_weights_before) == len(event.particles)
        assert here >= 1
    for event in of(Barrier, events):
        assert len(event.state.pool) <= most


def test_it_does_go_back_and_the_child_starts_there():
    went_back = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        population = Parking(rng, wrong_value)
        for event in drive(events_of(population, rng, rule=backtrack(0.95))):
            if isinstance(event, Forked) and event.parent in population.parked:
                went_back += 1
                assert event.child.state == event.parent.state
    assert went_back > 10


def test_it_loses_nothing_where_a_mistake_shows_late():
    """V sees a mistake one step late: those that are lost already are replaced by what they were before."""

    def v(state: str) -> float:
        return chance_of_success(state[:-1]) if len(state) > 1 else chance_of_success("")

    def solved(goes_back: bool) -> float:
        hits = 0
        for seed in range(400):
            rng = np.random.default_rng(seed)
            population = Parking(rng, v, reward=success_of)
            how = {"backtrack": (backtrack(0.9), population)} if goes_back else {}
            filter = particle_filter(
                population, particles=2, schedule=every(1), tempering=ess_target(0.5), rng=rng, **how
            )
            *_, last = drive(filter)
            hits += any(f.reward for f in last.result.finals)
        return hits / 400

    assert solved(True) >= solved(False) - 0.05


def test_states_that_cannot_be_kept_are_left_out():
    rng = np.random.default_rng(0)
    population = Parking(rng, wrong_value, refuses=True)
    plain = ToyPopulation(np.random.default_rng(0), wrong_value)
    events = list(drive(events_of(population, rng)))
    rng = plain.rng
    same = list(drive(particle_filter(plain, particles=6, schedule=every(1), tempering=ess_target(0.5), rng=rng)))
    assert trace(events) == trace(same)


def test_broken_off_at_any_barrier_it_goes_on_as_if_nothing_had_happened():
    rng = np.random.default_rng(9)
    population = Parking(rng, wrong_value)
    events, stops = [], []
    for event in drive(events_of(population, rng)):
        events.append(event)
        if isinstance(event, Barrier):
            stops.append((len(events), copy.deepcopy((population, event.state, rng))))
    assert any(state.pool for _, (_, state, _) in stops)
    for seen, (population, state, rng) in stops:
        assert trace(list(drive(events_of(population, rng, start=state)))) == trace(events[seen - 1 :])


def test_copies_are_dropped_when_the_filter_breaks():
    rng = np.random.default_rng(0)
    population = Parking(rng, wrong_value)
    events = drive(events_of(population, rng))
    for event in events:
        if isinstance(event, Resampled):
            break
    events.close()
    assert population.parked
    assert all(walker.pruned for walker in population.parked)


def test_a_sample_never_goes_back():
    rng = np.random.default_rng(0)
    population = Parking(rng, wrong_value)
    with pytest.raises(ConfigurationError, match="go back"):
        list(
            drive(
                particle_filter(
                    population,
                    particles=4,
                    schedule=every(1),
                    tempering=fixed(BETA),
                    rng=rng,
                    objective="sample",
                    backtrack=(backtrack(), population),
                )
            )
        )


@pytest.mark.parametrize("wrong", [{"discount": 0}, {"discount": 1}, {"discount": True}, {"most": 0}, {"most": 2.0}])
def test_what_cannot_be(wrong):
    with pytest.raises(ConfigurationError, match="backtrack"):
        backtrack(**wrong)
