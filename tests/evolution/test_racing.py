"""Racing: who stops early, how well the rule keeps its word, and what it changes of the update."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.estimator import estimate
from langgraph_amc.evolution.racing import Racing, completed, go_on

PAIRS, TASKS = 16, 32
MARGIN = 0.5


def population(rng: np.random.Generator, noise: float, tasks: int = TASKS) -> np.ndarray:
    """Rewards [members, tasks] of antithetic pairs: task difficulty, the pair's effect, and noise of each rollout."""
    effect = rng.normal(size=(PAIRS, 1)) * np.array([1, -1])
    return rng.normal(size=tasks) * 3 + effect.reshape(-1, 1) + noise * rng.normal(size=(2 * PAIRS, tasks))


def raced(rewards: np.ndarray, racing: Racing) -> tuple[np.ndarray, float]:
    """The rewards that are left when members stop as the rule says, and the share that was run."""
    seen = np.full_like(rewards, np.nan)
    going = np.ones(len(rewards) // 2, bool)
    for first in range(0, rewards.shape[1], racing.block):
        rows = np.repeat(going, 2)
        last = first + racing.block
        seen[rows, first:last] = rewards[rows, first:last]
        if last < rewards.shape[1]:
            going &= go_on(seen[:, :last], antithetic=True, columns=rewards.shape[1], racing=racing)
    return seen, float((~np.isnan(seen)).mean())


def weights(rewards: np.ndarray) -> np.ndarray:
    return estimate(rewards, antithetic=True, shaping="z", baseline="task").weights


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def compared(noise: float, spread: float, margin: float) -> tuple[float, float, float, float]:
    """Mean share run, and cosine with the true effects of: all rewards, raced ones, as many of the first tasks."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(40):
        effect = rng.normal(size=PAIRS)
        each = noise * np.repeat(np.exp(spread * rng.normal(size=PAIRS)), 2)[:, None]
        full = np.outer(effect, [1, -1]).reshape(-1, 1) + each * rng.normal(size=(2 * PAIRS, TASKS))
        full += 3 * rng.normal(size=TASKS)
        seen, share = raced(full, Racing(margin))
        first = full[:, : max(2, round(share * TASKS))]
        estimates = (weights(r) for r in (full, completed(seen, ~np.isnan(seen)), first))
        found.append((share, *(cosine(w, effect) for w in estimates)))
    share, full_, raced_, first_ = np.mean(found, axis=0)
    return float(share), float(full_), float(raced_), float(first_)


def test_it_saves_rollouts_where_directions_are_clear_and_hardly_changes_the_update() -> None:
    share, full, with_racing, _ = compared(noise=0.5, spread=0.0, margin=0.25)
    assert share < 0.4
    assert full - with_racing < 0.01


def test_it_beats_a_smaller_batch_where_some_members_are_noisier_and_not_where_none_is() -> None:
    share, full, with_racing, smaller = compared(noise=1.0, spread=1.0, margin=0.5)
    assert share < 0.6
    assert with_racing > smaller + 0.01
    assert full - with_racing < 0.02
    _, _, with_racing, smaller = compared(noise=0.5, spread=0.0, margin=0.25)
    assert abs(with_racing - smaller) < 0.01


def test_what_was_not_run_keeps_each_pairs_mean_difference_and_what_failed_stays_missing() -> None:
    full = population(np.random.default_rng(5), noise=0.2, tasks=12)
    seen, run = full.copy(), np.ones(full.shape, bool)
    seen[:8, 4:], run[:8, 4:] = np.nan, False
    seen[20, 7] = np.nan
    filled = completed(seen, run)
    assert np.isnan(filled).sum() == 1
    assert (filled[run & ~np.isnan(seen)] == seen[run & ~np.isnan(seen)]).all()
    before = np.nanmean(seen[0:8:2, :4] - seen[1:8:2, :4], axis=1)
    np.testing.assert_allclose((filled[0:8:2] - filled[1:8:2]).mean(axis=1), before)


def test_it_stops_nobody_where_rewards_are_noise() -> None:
    rng = np.random.default_rng(1)
    assert np.mean([raced(population(rng, noise=8.0), Racing(0.25))[1] for _ in range(10)]) > 0.97


def test_a_stopped_pair_would_have_moved_no_further_than_the_margin() -> None:
    rng = np.random.default_rng(2)
    within = []
    for _ in range(60):
        full = population(rng, noise=1.0)
        gains = (full[0::2] - full[1::2]) / 2
        seen, _ = raced(full, Racing(MARGIN))
        known = (seen[0::2] - seen[1::2]) / 2
        stopped = np.isnan(known).any(axis=1)
        moved = np.abs(gains.mean(axis=1) - np.nanmean(known, axis=1))[stopped]
        within.extend(moved <= MARGIN * np.sqrt(np.mean(gains.mean(axis=1) ** 2)) * 1.1)
    assert len(within) > 200
    assert np.mean(within) > 0.95


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.floats(0.1, 5), st.booleans())
def test_it_depends_on_neither_the_scale_nor_the_order_of_rewards(seed: int, factor: float, antithetic: bool) -> None:
    rewards = population(np.random.default_rng(seed), noise=0.5, tasks=8)
    order = np.random.default_rng(seed).permutation(8)
    kept = go_on(rewards, antithetic=antithetic, columns=TASKS, racing=Racing(MARGIN))
    # powers of two change no digit
    other = go_on(rewards[:, order] * 4.0, antithetic=antithetic, columns=TASKS, racing=Racing(MARGIN))
    shifted = go_on(rewards + 2.0**10 * round(factor), antithetic=antithetic, columns=TASKS, racing=Racing(MARGIN))
    assert (kept == other).all()
    assert (kept == shifted).mean() > 0.9


def test_equal_rewards_and_missing_ones_stop_nobody() -> None:
    racing = Racing(MARGIN)
    assert go_on(np.ones((8, 4)), antithetic=True, columns=16, racing=racing).all()
    assert go_on(np.full((8, 4), np.nan), antithetic=True, columns=16, racing=racing).all()
    rewards = population(np.random.default_rng(3), noise=0.01, tasks=8)
    rewards[:2] = np.nan
    alive = go_on(rewards, antithetic=True, columns=TASKS, racing=racing)
    assert alive[0]
    assert not alive[1:].any()


@pytest.mark.parametrize("arguments", [{"margin": 0}, {"margin": "x"}, {"margin": float("nan")}, {"block": 1}])
def test_settings_that_cannot_work_are_refused(arguments: dict) -> None:
    with pytest.raises(ConfigurationError, match="racing"):
        Racing(**arguments)
