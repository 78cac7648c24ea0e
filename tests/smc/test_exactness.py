"""The filter samples what it says it samples: π·exp(r/β)/Z, with an unbiased Z, on an enumerable process.

For every run x, the weight the filter gives to particles that ended as x is in expectation π(x)·exp(r(x)/β),
for any number of particles and any value function: that is what "properly weighted" means, and E[Ẑ] = Z is
its sum. All runs are tested at once (Hotelling's T², a chi-square in the number of runs). Particles of one
filter depend on each other, so the independent observations are filters. Seeds are fixed: no test can fail by
chance one day.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from langgraph_amc.smc import (
    RESAMPLERS,
    Candidate,
    at,
    drive,
    ess_below,
    every,
    fixed,
    never,
    particle_filter,
    sample,
    tilt,
)
from langgraph_amc.smc.events import Resampled

from .toy import (
    BETA,
    ToyPopulation,
    chance_of_success,
    finish,
    reward_of,
    soft_value,
    success_of,
    trajectories,
    wrong_chance,
    wrong_value,
)

RUNS = trajectories()
PARTICLES = 5
TILT_BETA = 0.4


def target(reward, beta) -> np.ndarray:
    """π(x)·exp(r(x)/β) of every run x."""
    return np.array([p * math.exp(reward(x) / beta) for x, p in RUNS.items()])


def results(repeats: int, value, *, reward=reward_of, tempering=None, particles=PARTICLES, seed=11, **how):
    rng = np.random.default_rng(seed)
    tempering = fixed(BETA) if tempering is None else tempering
    how = {"max_boundary": 10, **how}  # no run is longer than 3: spares looking 10 000 boundaries ahead
    for _ in range(repeats):
        yield (
            rng,
            finish(
                particle_filter(
                    ToyPopulation(rng, value, reward),
                    particles=particles,
                    tempering=tempering,
                    rng=rng,
                    **how,
                )
            ),
        )


def weights_per_run(repeats: int, value, **how) -> np.ndarray:
    """Weight [repeats, runs] that each of so many independent filters gives to each run."""
    column = {x: k for k, x in enumerate(RUNS)}
    table = np.zeros((repeats, len(RUNS)))
    for row, (_, result) in zip(table, results(repeats, value, **how), strict=True):
        for final in result.finals:
            row[column[final.particle.state]] += math.exp(final.log_weight)
        assert math.exp(result.log_evidence) == pytest.approx(row.sum())
    return table


def merge_rare(table: np.ndarray, expected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same with the runs that are too rare for a normal limit taken together."""
    rare = expected < 0.015 * expected.sum()
    if not rare.any():
        return table, expected
    together = table[..., rare].sum(-1, keepdims=True)
    return np.concatenate([table[..., ~rare], together], -1), np.append(expected[~rare], expected[rare].sum())


def assert_mean_is(table: np.ndarray, expected: np.ndarray) -> None:
    """Hotelling's T² for all columns together, and a z-test for their sum."""
    table, expected = merge_rare(table, expected)
    n = len(table)
    difference = table.mean(0) - expected
    t2 = n * difference @ np.linalg.solve(np.cov(table.T), difference)
    assert stats.chi2.sf(t2, len(expected)) > 1e-4, difference / (table.std(0) / math.sqrt(n))
    total = table.sum(1)
    assert abs(total.mean() - expected.sum()) < 4 * total.std() / math.sqrt(n) + 1e-9


SCHEDULES = {
    "every boundary": every(1),
    "one boundary skipped": at(2),
    "checked, seldom resampled": ess_below(0.75),
    "never": never(),
}


def test_the_toy_is_what_the_tests_need():
    assert sum(RUNS.values()) == pytest.approx(1.0)
    assert {len(run) for run in RUNS} == {1, 2, 3}
    assert BETA * math.log(target(reward_of, BETA).sum()) == pytest.approx(soft_value(""))


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("objective", ["sample", "optimise"])
@pytest.mark.parametrize("value", [soft_value, wrong_value])
def test_properly_weighted_for_any_value_function(schedule, objective, value):
    table = weights_per_run(1000, value, schedule=schedule, objective=objective)
    assert_mean_is(table, target(reward_of, BETA))


@pytest.mark.parametrize("resampler", RESAMPLERS.values(), ids=RESAMPLERS)
@pytest.mark.parametrize("objective", ["sample", "optimise"])
def test_properly_weighted_with_every_resampler(resampler, objective):
    table = weights_per_run(1500, wrong_value, schedule=every(1), objective=objective, resampler=resampler, seed=12)
    assert_mean_is(table, target(reward_of, BETA))


@pytest.mark.parametrize("value", [chance_of_success, wrong_chance])
def test_properly_weighted_by_the_tilt(value):
    table = weights_per_run(
        1500, value, reward=success_of, tempering=tilt(TILT_BETA), schedule=ess_below(0.8), objective="sample"
    )
    assert_mean_is(table, target(success_of, TILT_BETA))


def test_properly_weighted_without_a_value_function():
    table = weights_per_run(1500, None, schedule=every(1), objective="sample", scored=False)
    assert_mean_is(table, target(reward_of, BETA))


def test_properly_weighted_where_checks_end_before_the_runs_do():
    table = weights_per_run(1500, wrong_value, schedule=every(1), objective="sample", max_boundary=1)
    assert_mean_is(table, target(reward_of, BETA))


def test_the_schedule_that_checks_does_both():
    """The case 'checked, seldom resampled' is worth something only if it is what it says."""
    rng = np.random.default_rng(3)
    fired = []
    for _ in range(200):
        population = ToyPopulation(rng, wrong_value)
        events = list(
            drive(
                particle_filter(
                    population, particles=PARTICLES, schedule=ess_below(0.75), tempering=fixed(BETA), rng=rng
                )
            )
        )
        fired.append(sum(isinstance(event, Resampled) for event in events))
    assert 20 < fired.count(0) < 180


def test_the_exact_soft_value_makes_the_evidence_more_certain():
    z = target(reward_of, BETA).sum()
    error = {
        value: (weights_per_run(300, value, schedule=every(1), objective="sample", particles=20).sum(1) / z).std()
        for value in (soft_value, wrong_value)
    }
    assert error[soft_value] < 0.75 * error[wrong_value]


@pytest.mark.parametrize("resampler", RESAMPLERS.values(), ids=RESAMPLERS)
def test_a_selected_run_weighted_by_the_evidence_is_an_exact_draw(resampler):
    """E[Ẑ·1(selected = x)] = π(x)·exp(r(x)/β): the selector `sample` without its bias of order 1/N."""
    column = {x: k for k, x in enumerate(RUNS)}
    table = np.zeros((2000, len(RUNS)))
    how = {"schedule": every(1), "objective": "sample", "resampler": resampler, "seed": 13}
    for row, (rng, result) in zip(table, results(2000, soft_value, **how), strict=True):
        row[column[selected(rng, result)]] = math.exp(result.log_evidence)
    assert_mean_is(table, target(reward_of, BETA))


@pytest.mark.parametrize("objective", ["sample", "optimise"])
def test_selected_runs_follow_the_posterior(objective):
    """Plain chi-square of what a user gets, at an N where the bias of order 1/N is below what the test can see."""
    repeats = 800
    how = {"schedule": ess_below(0.9), "objective": objective, "particles": 24, "seed": 14}
    counts = dict.fromkeys(RUNS, 0)
    for rng, result in results(repeats, soft_value, **how):
        counts[selected(rng, result)] += 1

    def p_value(expected: np.ndarray) -> float:
        observed, expected = merge_rare(np.array(list(counts.values())), expected)
        return stats.chisquare(observed, repeats * expected / expected.sum()).pvalue

    assert p_value(target(reward_of, BETA)) > 1e-3
    assert p_value(np.array(list(RUNS.values()))) < 1e-12  # and not the policy's own distribution


def selected(rng, result) -> str:
    candidates = [
        Candidate(final.log_weight, final.last_value, final.reward, final.particle.state, final.done, final.failed)
        for final in result.finals
    ]
    return candidates[sample(rng, candidates)].output
