"""Ask and tell: ties, missing rewards, limits of the step, and the JSON of it all."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.asktell import State, Update, ask, start, tell
from langgraph_amc.evolution.estimator import estimate, fixed_point
from langgraph_amc.evolution.members import Member
from langgraph_amc.evolution.schedules import Automatic, Cosine
from langgraph_amc.evolution.signal import Trend
from langgraph_amc.evolution.strategy import Strategy

NAN = math.nan
OPTIONS = [
    {"antithetic": antithetic, "shaping": shaping, "baseline": baseline}
    for antithetic in (True, False)
    for shaping in ("z", "ranks", "none")
    for baseline in ("task", "none")
]
every_option = pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))


def told(rewards, **options):
    strategy = Strategy(population=len(rewards), sigma=0.1, **options)
    state = start(strategy)
    return tell(strategy, state, ask(strategy, state), rewards)[0]


def directions(update):
    """Weight of each direction per unit of alpha / pairs."""
    return np.array(update.coefficients) * update.scale / update.alpha


@every_option
@given(value=st.floats(-1e6, 1e6), tasks=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_all_equal_or_all_missing_is_exactly_zero(options, value, tasks, seed):
    if not options["antithetic"] and options["baseline"] == "none" and options["shaping"] == "none":
        assert told(np.full((6, tasks), value), **options).is_zero
        return
    by_task = np.random.default_rng(seed).normal(value, 1, size=tasks)  # tasks differ, members do not
    rewards = np.tile(by_task, (6, 1))
    update = told(rewards, **options)
    assert update.is_zero
    assert update.rms == 0
    assert update.signal_to_noise in (0, None)
    assert told(np.full((6, tasks), NAN), **options).is_zero
    rewards[np.random.default_rng(seed).random(rewards.shape) < 0.3] = NAN
    if options["baseline"] == "task" or options["antithetic"]:
        assert told(rewards, **options).is_zero


@every_option
def test_equal_means_in_another_order_are_ties(options):
    rewards = np.array([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.2, 0.3, 0.1], [0.3, 0.1, 0.2]])
    assert len(set(rewards.sum(axis=1))) > 1, "the sums should differ by rounding, or this shows nothing"
    assert told(rewards, **options).is_zero


@every_option
@given(
    rewards=arrays(np.float64, (8, 3), elements=st.one_of(st.just(NAN), st.floats(-1, 1, width=16))),
    shift=st.integers(-8, 8),
    power=st.integers(-20, 20),
)
@settings(max_examples=40, deadline=None)
def test_offsets_cancel_and_units_scale(options, rewards, shift, power):
    """Rewards in other units, or above another zero, weigh directions alike."""
    before = told(rewards, **options)
    scaled = told(rewards * 2.0**power, **options)
    factor = 2.0**power if options["shaping"] == "none" else 1.0
    np.testing.assert_allclose(directions(scaled), directions(before) * factor, rtol=1e-9, atol=1e-12 * factor)
    if options["baseline"] == "task" or (options["antithetic"] and options["shaping"] == "none"):
        moved = told(rewards + shift * np.array([1.0, 2.0, -1.0]), **options)
        # where rounding makes or breaks a tie, ranks may move by one
        np.testing.assert_allclose(directions(moved), directions(before), atol=2e-5)


@every_option
def test_better_members_pull_towards_themselves(options):
    rewards = np.array([[3.0, 1.0], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0], [2.0, 2.0], [2.0, 2.0]])
    found = directions(told(rewards, **options))
    if options["antithetic"]:
        assert found[0] > 0 > found[1]
        assert found[2] == 0
    else:
        assert found[4] == found[5]
        order = np.argsort(rewards.mean(axis=1), kind="stable")
        assert (np.diff(found[order]) >= 0).all()


def test_z_is_the_paper_s_formula():
    rewards = np.random.default_rng(0).normal(size=(16, 4))
    means = rewards.mean(axis=1)
    z = (means - means.mean()) / means.std()
    np.testing.assert_allclose(directions(told(rewards, antithetic=False)), z / 16, atol=2e-5)
    np.testing.assert_allclose(directions(told(rewards)), (z[::2] - z[1::2]) / 2 / 8, atol=2e-5)
    paper = told(rewards, antithetic=False, alpha=5e-4)
    assert paper.rms == pytest.approx(5e-4 / 4, rel=1e-4)  # alpha / sqrt(N), whatever the rewards


def test_ranks_share_ties_and_have_unit_variance():
    weights = estimate(
        np.array([[5.0], [1.0], [1.0], [9.0], [1.0]]), antithetic=False, shaping="ranks", baseline="task"
    ).weights
    np.testing.assert_allclose(weights * np.sqrt(2), [1, -1, -1, 2, -1])
    untied = estimate(
        np.random.default_rng(0).normal(size=(31, 1)), antithetic=False, shaping="ranks", baseline="task"
    ).weights
    assert untied.mean() == pytest.approx(0, abs=1e-12)
    assert untied.var() == pytest.approx(1)


def test_a_pair_with_one_side_missing():
    """Task 0 is easy: who lacks it must not look bad. Worked out by hand."""
    rewards = np.array([[NAN, 0.5], [1.0, 0.25], [NAN, 0.5], [1.0, NAN], [1.0, 0.0], [1.0, 0.25]])
    # three tasks of pairs are whole: gains 0.125, 0 and -0.125; of three halves one has a gain, of 0.5 - 0.25
    found = directions(told(rewards, shaping="none"))
    np.testing.assert_allclose(found, np.array([0.125, 0.25 / 2, -0.125]) / 4.5, atol=1e-6)
    # without a baseline there is nothing to compare a half with
    found = directions(told(rewards, shaping="none", baseline="none"))
    np.testing.assert_allclose(found, np.array([0.125, 0, -0.125]) / 3, atol=1e-6)


@pytest.mark.parametrize("shaping", ["z", "ranks", "none"])
def test_pairs_of_which_little_is_known_count_less(shaping):
    rewards = np.tile([[1.0], [0.0]], (3, 8))
    rewards[2:4, 2:] = NAN  # pair 1 has two of eight tasks, pair 2 has none
    rewards[4:6] = NAN
    found = told(rewards, shaping=shaping).coefficients
    assert found[0] == pytest.approx(4 * found[1], rel=1e-4)
    assert found[2] == 0
    rewards[3] = NAN  # of pair 1 one member is left, which is good
    found = told(rewards, shaping=shaping).coefficients
    assert 0 < found[1] < found[0] / 4


def test_task_baseline_makes_missing_rewards_harmless():
    """Equal members, tasks of different difficulty, some rewards missing."""
    rewards = np.tile([0.0, 10.0, 20.0], (6, 1))
    rewards[0, 2] = rewards[3, 0] = NAN
    assert told(rewards, antithetic=False).is_zero
    assert not told(rewards, antithetic=False, baseline="none").is_zero


def test_a_task_that_one_member_has_says_nothing():
    rewards = np.array([[1.0, 5.0], [0.0, NAN], [0.5, NAN]])
    alone = told(rewards, antithetic=False)
    assert alone.coefficients == told(rewards[:, :1], antithetic=False).coefficients
    assert told(np.array([[1.0], [NAN], [NAN]]), antithetic=False).is_zero


def test_trust_region_bounds_the_step():
    rewards = np.random.default_rng(0).normal(size=(8, 4))
    free = told(rewards)
    bound = told(rewards, trust_region=free.rms / 4)
    assert bound.rms == free.rms / 4
    assert bound.trust == pytest.approx(0.25)
    assert bound.coefficients == free.coefficients
    assert bound.scale == pytest.approx(free.scale / 4)
    assert told(rewards, trust_region=free.rms * 2).scale == free.scale


def test_alpha_is_constant_or_follows_sigma():
    rewards = [[1.0], [0.0]]
    for alpha, sizes in ((None, [0.05, 0.025]), (0.03, [0.03, 0.03])):
        strategy = Strategy(population=2, sigma=Cosine(0.1, 0.05, 2), alpha=alpha)
        state, seen = start(strategy), []
        for _ in range(2):
            update, state = tell(strategy, state, ask(strategy, state), rewards)
            seen.append(update.alpha)
        assert seen == sizes


def test_no_direction_no_step():
    """At sigma = 0 members are equal, whatever luck says: the reference takes a full random step here."""
    strategy = Strategy(population=4, sigma=Cosine(0.1, 0.0, 2), alpha=5e-4, decay=0.1)
    state = State(1, Trend(0.1))
    update, after = tell(strategy, state, ask(strategy, state), [[1.0], [0.0], [0.0], [0.0]])
    assert update.coefficients == (0, 0)
    assert not update.is_zero, "the decay is still there"
    assert after.number == 2


def test_members_come_in_the_order_of_the_rewards():
    generation = ask(Strategy(population=4), State())
    assert generation.members == (Member(0, 1), Member(0, -1), Member(1, 1), Member(1, -1))
    assert generation.pairs == 2
    generation = ask(Strategy(population=3, antithetic=False), State())
    assert generation.members == (Member(0, 1), Member(1, 1), Member(2, 1))


@given(
    rewards=arrays(np.float64, (6, 4), elements=st.one_of(st.just(NAN), st.floats(-1e9, 1e9))),
    option=st.sampled_from(OPTIONS),
    rank=st.one_of(st.none(), st.integers(1, 9)),
    noise=st.sampled_from(["rademacher", "gaussian"]),
)
@settings(max_examples=60, deadline=None)
def test_json_is_exact(rewards, option, rank, noise):
    strategy = Strategy(
        population=6, sigma=Automatic(0.1), rank=rank, noise=noise, trust_region=0.5, decay=0.01, **option
    )
    assert Strategy.from_json(json.loads(json.dumps(strategy.to_json()))) == strategy
    update, state = tell(strategy, start(strategy), ask(strategy, State()), rewards)
    assert Update.from_json(json.loads(json.dumps(update.to_json(), allow_nan=False))) == update
    assert State.from_json(json.loads(json.dumps(state.to_json(), allow_nan=False))) == state


@pytest.mark.parametrize("shaping", ["z", "ranks"])
@pytest.mark.parametrize("power", [-590, -300, 300])
def test_the_unit_of_the_reward_makes_no_difference(shaping, power):
    strategy = Strategy(population=6, shaping=shaping)
    rewards = np.random.default_rng(0).random((6, 4))
    updates = [tell(strategy, start(strategy), ask(strategy, State()), np.ldexp(rewards, by))[0] for by in (0, power)]
    assert updates[0].coefficients == updates[1].coefficients


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e200, 1e200, allow_subnormal=False)))
def test_fixed_point_keeps_sixteen_bits(weights):
    integers, exponent = fixed_point(weights)
    assert max(map(abs, integers)) <= 1 << 16
    np.testing.assert_allclose(
        np.ldexp(np.array(integers, float), exponent), weights, rtol=0, atol=2.0**-16 * np.abs(weights).max()
    )


@pytest.mark.parametrize(
    "rewards",
    [
        np.zeros(4),
        np.zeros((3, 2)),
        np.zeros((4, 0)),
        np.full((4, 1), math.inf),
        [["a"]] * 4,
        [[1.0], [1.0, 2.0], [1.0], [1.0]],
        None,
    ],
)
def test_bad_rewards(rewards):
    strategy = Strategy(population=4)
    with pytest.raises(ConfigurationError):
        tell(strategy, start(strategy), ask(strategy, State()), rewards)


def test_a_generation_is_told_once():
    strategy = Strategy(population=2)
    generation = ask(strategy, State())
    _, state = tell(strategy, State(), generation, [[1.0], [0.0]])
    with pytest.raises(ConfigurationError, match="generation"):
        tell(strategy, state, generation, [[1.0], [0.0]])


@pytest.mark.parametrize(
    "wrong",
    [
        {"population": 1},
        {"population": 5},
        {"population": 2.0},
        {"sigma": 0.0},
        {"sigma": "1"},
        {"alpha": 0},
        {"alpha_ratio": NAN},
        {"shaping": "softmax"},
        {"baseline": "member"},
        {"trust_region": -1},
        {"decay": 1.0},
        {"decay": -0.1},
        {"noise": "uniform"},
        {"rank": 0},
        {"rank": True},
        {"seed": -1},
    ],
    ids=str,
)
def test_bad_strategies(wrong):
    with pytest.raises(ConfigurationError):
        Strategy(**wrong)
