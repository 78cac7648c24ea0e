"""The filter's rules, one by one, on scripted particles whose weights can be worked out by hand."""

from __future__ import annotations

import asyncio
import copy
import math
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc import (
    RESAMPLERS,
    Advanced,
    Archived,
    Arrival,
    Barrier,
    Collapsed,
    Finished,
    Forked,
    LogWeights,
    PopulationError,
    Pruned,
    Resampled,
    Scored,
    Weighted,
    WeightError,
    at,
    drive,
    ess_below,
    ess_target,
    every,
    fixed,
    never,
    particle_filter,
    tilt,
)

from .toy import BETA, ScriptedPopulation, ToyPopulation, finish, is_done, reward_of, wrong_value

BROKEN = None


def run(population, *, particles=None, schedule=None, tempering=None, seed=0, **how) -> list:
    n = len(population.scripts) if particles is None else particles
    schedule, tempering = schedule or every(1), tempering or fixed(1.0)
    rng = np.random.default_rng(seed)
    return list(drive(particle_filter(population, particles=n, schedule=schedule, tempering=tempering, rng=rng, **how)))


def of(kind, events) -> list:
    return [event for event in events if isinstance(event, kind)]


def final_weights(events) -> dict[str, float]:
    return {final.particle.name: final.log_weight for final in events[-1].result.finals}


def take(*ancestors):
    """A resampler that gives fixed ancestors."""
    return lambda rng, log_weights, n: np.array(ancestors[:n])


def test_weights_are_not_lost_where_nothing_resamples():
    """Two particles of constant V .9 and .1: the odds stay at .69 to .31 however often they are looked at."""
    population = ScriptedPopulation({"good": [(0, 0.9)] * 4 + [(0, 0)], "bad": [(0, 0.1)] * 4 + [(0, 0)]})
    events = run(population, schedule=every(1) & ess_below(0.01))
    assert not of(Resampled, events)
    for weighted in of(Weighted, events)[:4]:
        odds = LogWeights(np.array(weighted.log_weights)).normalized
        np.testing.assert_allclose(odds, [0.69, 0.31], atol=0.001)
    # At the end neither has earned anything: the value, only an opinion, is taken back.
    assert final_weights(events) == pytest.approx({"good": -math.log(2), "bad": -math.log(2)})


def test_rewards_on_the_way_are_cumulative_and_counted_once():
    population = ScriptedPopulation({"a": [(1, 2), (3, 1), (4, 0)], "b": [(0, 0.5), (0, 0.5), (0, 0)]})
    events = run(population, schedule=every(1) & ess_below(0.01), tempering=fixed(2.0))
    seen = [np.array(event.log_weights) + math.log(2) for event in of(Weighted, events)]
    np.testing.assert_allclose(seen, [[1.5, 0.25], [2, 0.25], [2, 0]])


def test_weights_after_resampling_keep_the_total_and_start_from_the_new_baseline():
    population = ScriptedPopulation({"a": [(0, 1), (0, 3), (5, 0)], "b": [(0, 2), (0, 2), (7, 0)]})
    events = run(population, schedule=at(1, 2) & at(1), resampler=take(1, 1))
    (resampled,) = of(Resampled, events)
    assert resampled.boundary == 1
    assert resampled.log_weights_before == pytest.approx((1 - math.log(2), 2 - math.log(2)))
    total = np.logaddexp(1, 2) - math.log(2)
    assert resampled.log_weight_after == pytest.approx(total - math.log(2))
    # From V = 2 at the resampling to R = 7 at the end, both of them.
    assert final_weights(events) == pytest.approx({"b": total - math.log(2) + 5, "b'": total - math.log(2) + 5})
    assert events[-1].result.log_evidence == pytest.approx(total + 5)


def test_first_offspring_is_the_particle_itself_others_are_forks_made_before_it_goes_on():
    scripts = {name: [(0, value)] * 3 for name, value in zip("abc", (1.0, 2.0, 3.0), strict=True)}
    population = ScriptedPopulation(scripts)
    events = run(population, schedule=at(2), resampler=take(2, 0, 2))
    assert population.calls == ["advance a b c", "score a b c", "prune b", "fork c", "advance c a c'"]
    (pruned,), (forked,) = of(Pruned, events), of(Forked, events)
    assert (pruned.particle.name, forked.parent.name, forked.child.name) == ("b", "c", "c'")
    order = [
        Barrier,
        Advanced,
        Scored,
        Weighted,
        Resampled,
        Pruned,
        Forked,
        Barrier,
        Advanced,
        Weighted,
        *[Archived] * 3,
        Finished,
    ]
    assert [type(event) for event in events] == order
    last_values = {final.particle.name: final.last_value for final in events[-1].result.finals}
    assert last_values == {"c": 3.0, "a": 1.0, "c'": 3.0}


def test_particles_run_freely_between_boundaries_where_the_schedule_cannot_fire():
    rng = np.random.default_rng(0)
    for schedule, asked in [(at(2), [2, None]), (never(), [None]), (every(2) & ess_below(0.5), [2, None])]:
        population = ToyPopulation(rng, wrong_value)
        finish(
            particle_filter(population, particles=8, schedule=schedule, tempering=fixed(BETA), rng=rng, max_boundary=3)
        )
        assert population.asked == asked


def test_finished_particles_get_their_weight_once_and_are_left_alone():
    """The scripted population raises if a finished particle is stepped, scored or forked."""
    population = ScriptedPopulation({"early": [(0, 1), (2, 99)], "late": [(0, 1), (0, 3), (0, 1), (1, 0)]})
    events = run(population, schedule=every(1) & ess_below(0.01))
    archived = of(Archived, events)
    assert [(event.boundary, event.final.particle.name) for event in archived] == [(2, "early"), (4, "late")]
    # V of a finished particle is 0, whatever the script says it might have been.
    assert archived[0].final.log_weight == pytest.approx(2 - math.log(2))
    assert archived[0].final.last_value == 1.0
    assert [len(event.particles) for event in of(Scored, events)] == [2, 1, 1]
    assert not population.actors[0].pruned


def test_ess_is_that_of_the_living():
    scripts = {"done": [(100, 0)], "a": [(0, 0)] * 3, "b": [(0, 0)] * 3, "c": [(0, 0)] * 3}
    events = run(ScriptedPopulation(scripts), schedule=ess_below(0.9))
    assert of(Weighted, events)[0].ess == pytest.approx(1.0)
    assert not of(Resampled, events)


@pytest.mark.parametrize(("objective", "live"), [("optimise", 4), ("sample", 2)])
def test_slots_of_finished_particles_are_reused_only_to_optimise(objective, live):
    scripts = {"done": [(1, 0)], "broke": [BROKEN], "a": [(0, 1)] * 3, "b": [(0, 1)] * 3}
    events = run(ScriptedPopulation(scripts), schedule=at(1), objective=objective)
    (resampled,) = of(Resampled, events)
    assert len(resampled.particles) == 2
    assert len(resampled.ancestors) == live
    before = np.logaddexp.reduce(resampled.log_weights_before)
    assert resampled.log_weight_after + math.log(live) == pytest.approx(before)
    assert sorted(final_weights(events)) == sorted(["done", "broke", "a", "b", "a'", "b'"][: 2 + live])


def test_failures_are_kept_as_failures_of_weight_zero():
    population = ScriptedPopulation({"fine": [(0, 1), (1, 0)], "broken": [(0, 1), BROKEN, (9, 9)]})
    events = run(population, schedule=every(1) & ess_below(0.01))
    (broken,) = [final for final in events[-1].result.finals if final.failed]
    assert broken.particle.name == "broken"
    assert broken.log_weight == -math.inf
    assert not broken.done
    assert math.isnan(broken.reward)  # what the population said, not a 0 in its place
    assert events[-1].result.log_evidence == pytest.approx(1 - math.log(2))


def test_all_failed_is_a_result_and_no_crash():
    events = run(ScriptedPopulation({"a": [BROKEN], "b": [(0, 1), BROKEN]}))
    assert events[-1].result.log_evidence == -math.inf
    assert all(final.failed for final in events[-1].result.finals)


def test_when_no_living_particle_is_possible_they_run_on_and_can_recover():
    lost = [(0, -math.inf), (0, 1.0), (2, 0)]
    events = run(ScriptedPopulation({"a": lost, "b": lost, "done": [(0, 0)]}))
    (collapsed,) = of(Collapsed, events)
    assert collapsed.boundary == 1
    assert [event.boundary for event in of(Resampled, events)] == [2]
    assert final_weights(events)["a"] == pytest.approx(np.log(2 / 3) - math.log(3) + 2)


def test_runs_stopped_from_outside_end_without_a_future():
    class Stopped(ScriptedPopulation):
        def play(self, actor, until):
            return Arrival(super().play(actor, until).reward, done=until is not None and actor.done)

    events = run(Stopped({"a": [(0, 5), (1, 0)], "b": [(0, 5), (2, 0)]}), schedule=never())
    assert [final.done for final in events[-1].result.finals] == [False, False]
    assert final_weights(events) == pytest.approx({"a": 1 - math.log(2), "b": 2 - math.log(2)})


def test_without_a_value_function_nothing_is_scored():
    population = ScriptedPopulation({"a": [(1, 50), (1, 0)], "b": [(0, 50), (0, 0)]})
    events = run(population, schedule=every(1) & ess_below(0.01), scored=False)
    assert not of(Scored, events)
    assert not any(call.startswith("score") for call in population.calls)
    assert of(Weighted, events)[0].log_weights == pytest.approx((1 - math.log(2), -math.log(2)))
    assert all(final.last_value is None for final in events[-1].result.finals)


@pytest.mark.parametrize("tempering", [fixed(1e-6), fixed(1e-300), tilt(1e-6), tilt(1e-300)])
def test_temperature_towards_zero_does_not_overflow(tempering):
    scripts = {f"p{i}": [(0, v), (0, v / 2), (float(i == 3), 0)] for i, v in enumerate([0.1, 0.5, 0.9, 1.0])}
    with np.errstate(over="raise", invalid="raise"):
        events = run(ScriptedPopulation(scripts), tempering=tempering)
    first = of(Resampled, events)[0]
    assert all(math.isfinite(weight) for weight in first.log_weights_before)
    if tempering == fixed(1e-6):
        assert set(first.ancestors) == {3}


class TestEssTarget:
    SCRIPTS: ClassVar = {f"p{i}": [(0, v), (0, v), (float(i == 7), 0)] for i, v in enumerate(np.linspace(0.2, 0.9, 8))}

    def test_the_population_is_weighed_to_the_target(self):
        events = run(ScriptedPopulation(self.SCRIPTS), schedule=ess_below(0.5), tempering=ess_target(0.5))
        first = of(Resampled, events)[0]
        assert first.boundary == 1
        assert first.ess == pytest.approx(0.5)
        assert first.sharpness > 1
        assert events[-1].result.log_evidence is None

    def test_those_who_have_finished_do_not_set_the_sharpness(self):
        script = {name: [(0, v), (0, 0)] for name, v in zip("abcd", [0.1, 0.3, 0.5, 0.9], strict=True)}
        alone = run(ScriptedPopulation(script), tempering=ess_target(0.5))
        events = run(ScriptedPopulation({**script, "done": [(30.0, 0)]}), tempering=ess_target(0.5))
        assert of(Weighted, events)[0].sharpness == of(Weighted, alone)[0].sharpness
        assert of(Weighted, events)[0].ess == pytest.approx(0.5)

    def test_by_level_a_particle_is_ranked_by_what_it_is_worth_now(self):
        """After resampling nothing is subtracted: an estimate that was too high is not held against it."""
        script = {"lucky": [(0, 0.9), (0, 0.6), (0, 0)], "steady": [(0, 0.5), (0, 0.5), (0, 0)]}
        level = run(ScriptedPopulation(script), resampler=take(0, 1), tempering=ess_target(max_sharpness=2))
        growth = run(
            ScriptedPopulation(script),
            resampler=take(0, 1),
            tempering=ess_target(max_sharpness=2, weighs="growth"),
        )
        np.testing.assert_allclose(np.diff(of(Weighted, level)[1].log_weights), [2 * (0.5 - 0.6)])
        np.testing.assert_allclose(np.diff(of(Weighted, growth)[1].log_weights), [2 * (0.0 + 0.3)])

    def test_weights_are_not_lost_where_nothing_resamples(self):
        script = {"good": [(0, 0.9)] * 4, "bad": [(0, 0.1)] * 4}
        for weighs in ("level", "growth"):
            events = run(
                ScriptedPopulation(script),
                schedule=every(1) & ess_below(0.01),
                tempering=ess_target(max_sharpness=2, weighs=weighs),
            )
            for weighted in of(Weighted, events)[:3]:
                np.testing.assert_allclose(np.diff(weighted.log_weights), [-1.6])

    def test_the_last_to_finish_are_weighed_among_themselves(self):
        script = {"a": [(1.0, 0)], "b": [(0.0, 0)], "c": [(0.2, 0)], "d": [BROKEN]}
        events = run(ScriptedPopulation(script), schedule=never(), tempering=ess_target(0.5, max_sharpness=1e3))
        finals = events[-1].result.finals
        assert LogWeights(np.array([final.log_weight for final in finals])).ess == pytest.approx(1.5)

    def test_it_does_not_sample(self):
        with pytest.raises(ConfigurationError, match="optimise"):
            run(ScriptedPopulation(self.SCRIPTS), tempering=ess_target(), objective="sample")


@given(
    seed=st.integers(0, 10**6),
    particles=st.integers(1, 9),
    schedule=st.sampled_from([every(1), at(2), ess_below(0.9), ess_below(0.5) | every(2), never()]),
    resampler=st.sampled_from(list(RESAMPLERS.values())),
    objective=st.sampled_from(["optimise", "sample"]),
    tempering=st.sampled_from([fixed(BETA), fixed(1e-3), ess_target(), ess_target(0.3, weighs="growth")]),
)
@settings(max_examples=150, deadline=None)
def test_whatever_the_settings(seed, particles, schedule, resampler, objective, tempering):
    """The watching population, slots, totals and identities, for any combination."""
    if objective == "sample" and not tempering.exact:
        return
    population = ToyPopulation(np.random.default_rng(seed), wrong_value)
    events = run(
        population,
        particles=particles,
        schedule=schedule,
        tempering=tempering,
        resampler=resampler,
        objective=objective,
        seed=seed,
    )
    finals = events[-1].result.finals
    walkers = [final.particle for final in finals]
    assert len(set(map(id, walkers))) == len(walkers)
    assert all(is_done(w.state) and not w.pruned for w in walkers)
    assert all(final.reward == reward_of(final.particle.state) for final in finals)
    assert len(finals) == particles if objective == "sample" else len(finals) >= particles
    for event in of(Advanced, events):
        assert len(event.particles) <= particles
    for event in of(Resampled, events):
        assert len(event.ancestors) == (particles if objective == "optimise" else len(event.particles))
    forks, prunes = len(of(Forked, events)), len(of(Pruned, events))
    assert len(finals) == particles + forks - prunes
    assert [event.final for event in of(Archived, events)] == list(finals)
    assert len(of(Finished, events)) == 1


def trace(events) -> list:
    """Events with particles replaced by what can be compared."""
    return [
        (type(event).__name__, getattr(event, "log_weights", getattr(event, "ancestors", None))) for event in events
    ] + [(f.particle.state, f.log_weight) for f in events[-1].result.finals]


def toy_filter(seed: int, **how):
    population = ToyPopulation(np.random.default_rng(1), wrong_value)
    rng = np.random.default_rng(seed)
    return particle_filter(population, particles=8, schedule=ess_below(0.9), tempering=fixed(BETA), rng=rng, **how)


@pytest.mark.parametrize("resampler", RESAMPLERS.values(), ids=RESAMPLERS)
def test_one_seed_one_result(resampler):
    one, two = (trace(list(drive(toy_filter(5, resampler=resampler)))) for _ in range(2))
    assert one == two
    others = [trace(list(drive(toy_filter(seed, resampler=resampler)))) for seed in range(6, 16)]
    assert any(other != one for other in others)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    schedule=st.sampled_from([every(1), ess_below(0.9), at(2)]),
    tempering=st.sampled_from([fixed(BETA), ess_target(0.5)]),
)
def test_a_filter_broken_off_at_any_barrier_goes_on_as_if_nothing_had_happened(seed, schedule, tempering):
    rng = np.random.default_rng(seed)
    how = {"particles": 8, "schedule": schedule, "tempering": tempering}
    population = ToyPopulation(np.random.default_rng(seed), wrong_value)
    events, stops = [], []
    for event in drive(particle_filter(population, rng=rng, **how)):
        events.append(event)
        if isinstance(event, Barrier):  # the population, the state and the generator as a journal would keep them
            stops.append((len(events), copy.deepcopy((population, event.state, rng))))
    assert len(stops) > 1
    for seen, (population, state, rng) in stops:
        rest = list(drive(particle_filter(population, rng=rng, start=state, **how)))
        assert trace(rest) == trace(events[seen - 1 :])


async def test_async_and_sync_give_the_same_events():
    in_a_loop = [event async for event in toy_filter(5)]
    assert trace(in_a_loop) == trace(list(drive(toy_filter(5))))


class TestPruning:
    """Whoever stops the filter, every particle still held is pruned, once, and the reason is not hidden."""

    SCRIPTS: ClassVar = {"done": [(0, 1)], "a": [(0, 1)] * 4, "b": [(0, 1)] * 4}

    @pytest.mark.parametrize("call", ["advance", "score", "fork", "prune"])
    def test_after_an_exception(self, call):
        population = ScriptedPopulation(self.SCRIPTS, break_in=call)
        with pytest.raises(OSError, match=f"{call} broke"):
            run(population, schedule=at(1), resampler=take(1, 1, 1))
        assert population.break_in == ""
        asked = [name.removeprefix("prune ") for name in population.calls if name.startswith("prune")]
        assert sorted(asked) == sorted(actor.name for actor in population.actors)

    def test_after_an_early_close(self):
        population = ScriptedPopulation(self.SCRIPTS)
        events = drive(
            particle_filter(population, particles=3, schedule=at(1), tempering=fixed(1.0), rng=np.random.default_rng(0))
        )
        for event in events:
            if isinstance(event, Forked):
                break
        events.close()
        assert len(population.actors) == 4
        assert all(actor.pruned for actor in population.actors)

    async def test_after_cancellation(self):
        population = ScriptedPopulation(self.SCRIPTS)
        stuck = asyncio.Event()

        async def score(particles):
            stuck.set()
            await asyncio.Event().wait()

        population.score = score

        async def consume():
            rng = np.random.default_rng(0)
            async for _ in particle_filter(population, particles=3, schedule=at(1), tempering=fixed(1.0), rng=rng):
                pass

        task = asyncio.create_task(consume())
        await stuck.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert all(actor.pruned for actor in population.actors)

    def test_what_cannot_be_pruned_is_noted_on_the_reason(self):
        class Stubborn(ScriptedPopulation):
            async def prune(self, particle):
                await super().prune(particle)
                raise RuntimeError(f"{particle.name} stays")

        population = Stubborn(self.SCRIPTS, break_in="score")
        with pytest.raises(OSError, match="score broke") as caught:
            run(population, schedule=at(1))
        assert all(actor.pruned for actor in population.actors)
        assert ["a stays" in note for note in caught.value.__notes__].count(True) == 1

        closed = drive(
            particle_filter(
                Stubborn(self.SCRIPTS),
                particles=3,
                schedule=at(1),
                tempering=fixed(1.0),
                rng=np.random.default_rng(0),
            )
        )
        next(closed)
        with pytest.raises(ExceptionGroup, match="could not be pruned"):
            closed.close()

    def test_not_after_a_normal_end(self):
        population = ScriptedPopulation(self.SCRIPTS)
        run(population, schedule=never())
        assert not any(actor.pruned for actor in population.actors)


class TestBadAnswers:
    SCRIPTS: ClassVar = {"a": [(0, 1)] * 3, "b": [(0, 1)] * 3}

    @pytest.mark.parametrize("values", [[0.0], [[0.0, 1.0]], [math.inf, 0.0]])
    def test_of_the_value_function(self, values):
        class Odd(ScriptedPopulation):
            async def score(self, particles):
                return values

        population = Odd(self.SCRIPTS)
        with pytest.raises(PopulationError, match="value function"):
            run(population)
        assert all(actor.pruned for actor in population.actors)

    def test_of_the_reward(self):
        for bad in (math.nan, math.inf):
            with pytest.raises(WeightError):
                run(ScriptedPopulation({"a": [(bad, 0.0), (0.0, 0.0)], "b": [(0.0, 0.0)]}))

    def test_of_the_population(self):
        class TooMany(ScriptedPopulation):
            async def start(self, n):
                started = await super().start(n)
                return [*started, *started]

        class TooFew(ScriptedPopulation):
            async def advance(self, particles, until):
                return (await super().advance(particles, until))[:1]

        class Twins(ScriptedPopulation):
            async def fork(self, particle):
                return particle

        for kind, what in [(TooMany, "start"), (TooFew, "advance"), (Twins, "fork")]:
            population = kind(self.SCRIPTS)
            with pytest.raises(PopulationError, match=what):
                run(population, resampler=take(0, 0))
            assert all(actor.pruned for actor in population.actors)

    def test_of_the_caller(self):
        for how in ({"particles": 0}, {"objective": "best"}, {"max_boundary": -1}):
            with pytest.raises(ConfigurationError):
                run(ScriptedPopulation(self.SCRIPTS), **how)


class Geometric:
    """Runs that end after any step with probability 1/3: some slot is free at every check."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.steps = 0

    async def start(self, n: int) -> list[list[bool]]:
        return [[False] for _ in range(n)]

    async def advance(self, particles: list[list[bool]], until: int | None) -> list[Arrival]:
        for particle in particles:
            self.steps += 1
            particle[0] = until is None or bool(self.rng.random() < 1 / 3)
        return [Arrival(0.0, done=particle[0]) for particle in particles]

    async def score(self, particles: list[list[bool]]) -> list[float]:
        return [0.5] * len(particles)

    async def fork(self, particle: list[bool]) -> list[bool]:
        return list(particle)

    async def prune(self, particle: list[bool]) -> None:
        particle[0] = True


@pytest.mark.parametrize("seed", range(5))
def test_slots_are_reused_but_not_for_ever(seed: int) -> None:
    """At most 2N runs are ever in play, so that runs of varying length cost a bounded multiple of best-of-N."""
    population = Geometric(np.random.default_rng(seed))
    events = run(population, particles=8, schedule=every(1), tempering=ess_target(), seed=seed)
    assert 8 < len(events[-1].result.finals) <= 16
    assert population.steps < 150
