"""As many particles as it takes, and no more once nobody can do better."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc import (
    Adaptive,
    Barrier,
    Candidate,
    Finished,
    Grown,
    Pruned,
    Stopped,
    Unbeatable,
    adaptive,
    adaptive_filter,
    agreement,
    drive,
    ess_below,
    ess_target,
    every,
    fixed,
    never,
    particle_filter,
    value_above,
)

from .test_filter import of, run, trace
from .toy import BETA, ScriptedPopulation, ToyPopulation, success_of, wrong_value


def candidate(output: object = "x", *, value=None, reward=None, weight=0.0, done=True, failed=False) -> Candidate:
    return Candidate(weight, value, reward, output, done, failed)


class TestRules:
    def test_agreement_counts_weight(self):
        rule = agreement(0.75, among=3)
        assert rule.why([candidate("x"), candidate("x")]) is None
        assert rule.why([candidate("x"), candidate("x"), candidate("y")]) is None
        assert "75%" in rule.why([candidate("x")] * 3 + [candidate("y")])
        assert rule.why([candidate("x", weight=math.log(6)), candidate("y"), candidate("z")]) == (
            "75% of the weight of 3 finished particles is on one answer"
        )
        assert rule.why([candidate("x")] * 3 + [candidate("y", failed=True), candidate("z", done=False)])
        assert agreement(0.75, key=lambda output: None).why([candidate()] * 4) is None  # nobody has answered
        assert agreement(0.75, key=len).why([candidate("a"), candidate("b"), candidate("c")])

    def test_value_is_the_reward_where_it_is_known(self):
        rule = value_above(0.9)
        assert rule.why([candidate(value=0.89), candidate(value=0.95, reward=0.0), candidate()]) is None
        assert rule.why([candidate(value=0.91)])
        assert rule.why([candidate(value=0.1, reward=1.0)])
        assert rule.why([candidate(value=0.99, done=False), candidate(value=0.99, failed=True)]) is None
        assert rule.why([]) is None

    def test_unbeatable_is_observed(self):
        assert Unbeatable(1.0).why([candidate(value=1.0)]) is None
        assert Unbeatable(1.0).why([candidate(reward=1.0, value=0.0)]) == "one has the best possible return, 1"

    def test_they_combine(self):
        agree, good = agreement(among=2), value_above(0.9)
        two, one = [candidate(value=0.1)] * 2, [candidate(value=0.95)]
        for rule, wanted in ((agree | good, (True, True)), (agree & good, (False, False))):
            assert (bool(rule.why(two)), bool(rule.why(one))) == wanted
        assert "and" in (agree & good).why([candidate(value=0.95)] * 2)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: agreement(0),
            lambda: agreement(1.5),
            lambda: agreement(among=1),
            lambda: value_above(math.nan),
            lambda: adaptive(0),
            lambda: adaptive(4, 4),
            lambda: adaptive(2, 8.0),
            lambda: adaptive(enough=0.75),
        ],
    )
    def test_what_cannot_work(self, make):
        with pytest.raises(ConfigurationError):
            make()


@pytest.mark.parametrize(
    ("policy", "waves"), [(adaptive(2, 16), [2, 2, 4, 8]), (adaptive(3, 10), [3, 3, 4]), (adaptive(1, 2), [1, 1])]
)
def test_waves_double(policy: Adaptive, waves: list[int]):
    started: list[int] = []
    while sum(started) < policy.most:
        started.append(policy.wave(sum(started)))
    assert started == waves


@dataclass
class Counted(ToyPopulation):
    started: list[int] = field(default_factory=list)

    async def start(self, n):
        self.started.append(n)
        return await super().start(n)


def grow(policy, enough, *, seed=0, schedule=None, tempering=None, start=None, population=None, rng=None, **how):
    rng = rng or np.random.default_rng(seed)
    population = population or Counted(rng, wrong_value)
    return list(
        drive(
            adaptive_filter(
                population,
                policy,
                enough=enough,
                schedule=schedule or ess_below(0.9),
                tempering=tempering or fixed(BETA),
                rng=rng,
                start=start,
                **how,
            )
        )
    ), population


def test_it_grows_until_it_is_enough():
    asked = []

    def enough(finals):
        asked.append(len(finals))
        return "six is enough" if len(asked) == 2 else None

    events, population = grow(adaptive(2, 16), enough, schedule=never())
    assert (asked, population.started) == ([2, 4], [2, 2])
    assert of(Grown, events) == [Grown(2, 2)]
    assert of(Stopped, events) == [Stopped(None, "six is enough")]
    assert isinstance(events[-1], Finished)
    assert len(of(Finished, events)) == 1
    assert len(events[-1].result.finals) == 4
    assert events[-1].result.log_evidence is None


def test_it_stops_at_the_most():
    events, population = grow(adaptive(2, 7), lambda finals: None, schedule=never())
    assert population.started == [2, 2, 3]
    assert of(Stopped, events)[0].reason == "all 7 particles were started"


def test_waves_are_on_one_scale():
    """With the weights of all waves the total estimates Z as one filter of that size does: the average over waves."""
    sums, sizes = [], [2, 2, 4]
    for seed in range(30):
        waves = []
        events, _ = grow(adaptive(2, 8), lambda finals: None, seed=seed)
        total = np.exp([f.log_weight for f in events[-1].result.finals]).sum()
        finals = []
        for event in events:  # what each wave's own filter made of it
            if isinstance(event, Grown | Stopped):
                waves.append(np.exp(finals).sum())
                finals = []
            elif hasattr(event, "final"):
                finals.append(event.final.log_weight)
        assert total == pytest.approx(np.dot(waves, sizes) / 8)
        sums.append(total)
    assert np.std(sums) > 0


def test_a_sample_of_a_number_that_depends_on_the_answers_is_refused():
    with pytest.raises(ConfigurationError, match="fixed number"):
        grow(adaptive(2, 8), lambda finals: None, objective="sample")


@pytest.mark.parametrize("tempering", [fixed(BETA), ess_target()])
def test_broken_off_at_any_barrier_it_goes_on_as_if_nothing_had_happened(tempering):
    def enough(finals):
        return "enough" if sum(success_of(f.particle.state) for f in finals) >= 3 else None

    rng = np.random.default_rng(4)
    population = Counted(rng, wrong_value)
    events, stops = [], []
    how = {"schedule": every(1), "tempering": tempering}
    for event in drive(adaptive_filter(population, adaptive(2, 16), enough=enough, rng=rng, **how)):
        events.append(event)
        if isinstance(event, Barrier):
            stops.append((len(events), copy.deepcopy((population, event.state, rng))))
    assert len({state.started for _, (_, state, _) in stops}) > 1
    for seen, (population, state, rng) in stops:
        rest, _ = grow(adaptive(2, 16), enough, population=population, rng=rng, start=state, **how)
        assert trace(rest) == trace(events[seen - 1 :])


class TestEarlyStop:
    SCRIPTS: ClassVar = {"done": [(0, 1), (1, 0)], "a": [(0, 1)] * 4, "b": [(0, 1)] * 4}

    def test_whoever_cannot_do_better_is_pruned(self):
        population = ScriptedPopulation(self.SCRIPTS)
        events = run(
            population, schedule=every(1) & ess_below(1e-9), stop=lambda finals: "best" if finals[-1:] else None
        )
        assert of(Stopped, events) == [Stopped(2, "best")]
        assert [e.particle.name for e in of(Pruned, events)] == ["a", "b"]
        assert [f.particle.name for f in events[-1].result.finals] == ["done"]
        assert events[-1].result.log_evidence is None

    def test_a_sample_is_never_stopped(self):
        with pytest.raises(ConfigurationError, match="stop early"):
            run(ScriptedPopulation(self.SCRIPTS), objective="sample", stop=lambda finals: None)

    def test_it_also_stops_growing(self):
        events, population = grow(adaptive(2, 16), lambda finals: None, stop=lambda finals: "best" if finals else None)
        assert population.started == [2]
        assert of(Stopped, events)[0].reason == "best"
        assert isinstance(events[-1], Finished)


async def test_async_and_sync_give_the_same_events():
    def events(seed):
        rng = np.random.default_rng(seed)
        how = {"schedule": every(1), "tempering": fixed(BETA), "rng": rng}
        return adaptive_filter(Counted(rng, wrong_value), adaptive(2, 8), enough=lambda finals: None, **how)

    assert trace([event async for event in events(1)]) == trace(list(drive(events(1))))


def test_a_filter_without_these_options_is_the_plain_one():
    """Same generator, same events: the options cost nothing where they are not given."""
    traces = []
    for how in ({}, {"stop": lambda finals: None, "uncertainty": lambda step: 0.0}):
        rng = np.random.default_rng(3)
        population = ToyPopulation(rng, wrong_value)
        filter = particle_filter(population, particles=6, schedule=every(1), tempering=fixed(BETA), rng=rng, **how)
        traces.append(trace(list(drive(filter))))
    assert traces[0] == traces[1]
