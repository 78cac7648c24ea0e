"""V's error within a task, measured without knowing the truth."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from langgraph_amc.value.uncertainty import MIN_TASKS, Uncertainty, fit_uncertainty


def world(noise: float, tasks: int = 300, runs: int = 8, steps: int = 3, seed: int = 0) -> tuple[np.ndarray, ...]:
    """V = chance + noise within tasks that differ in difficulty; 0/1 returns."""
    rng = np.random.default_rng(seed)
    task, step = np.repeat(np.arange(tasks), runs * steps), np.tile(np.arange(steps), tasks * runs)
    p = np.clip(rng.uniform(0.2, 0.8, tasks)[task] + rng.normal(0, 0.15, len(task)), 0, 1)
    return p + rng.normal(0, noise, len(p)), (rng.random(len(p)) < p).astype(float), step, task


@pytest.mark.parametrize("noise", [0.1, 0.2, 0.4])
def test_the_error_is_found_from_outcomes_alone(noise: float) -> None:
    found = fit_uncertainty(*world(noise))
    assert found.pooled == pytest.approx(noise, rel=0.2)
    assert set(found.steps) == {0, 1, 2}


def test_a_value_that_knows_nothing_is_all_error_and_a_true_one_almost_none() -> None:
    v, returns, step, task = world(0.0)
    assert fit_uncertainty(v, returns, step, task).pooled < 0.06
    shuffled = np.random.default_rng(1).permutation(returns)
    assert fit_uncertainty(v, shuffled, step, task).pooled == pytest.approx(0.15, abs=0.02)


def test_differences_between_tasks_do_not_count() -> None:
    v, returns, step, task = world(0.1)
    shifted = fit_uncertainty(v + 5.0 * (task % 3), returns, step, task)
    assert shifted.pooled == pytest.approx(fit_uncertainty(v, returns, step, task).pooled, rel=1e-6)


def test_steps_that_few_tasks_reach_share_the_pooled_figure() -> None:
    v, returns, step, task = world(0.1)
    found = fit_uncertainty(v, returns, np.where(task < MIN_TASKS - 1, 9, step), task)
    assert 9 not in found.steps
    assert found(9) == found.pooled
    assert found(1) == found.steps[1]


def test_equal_states_say_nothing() -> None:
    assert fit_uncertainty([0.5] * 20, [0, 1] * 10, [0] * 20, np.arange(20) % 4) is None
    assert fit_uncertainty([0.5, 0.7], [0, 1], [0, 0], [1, 1]) is None


def test_json_keeps_it() -> None:
    found = fit_uncertainty(*world(0.1))
    assert Uncertainty.from_json(json.loads(json.dumps(asdict(found)))) == found
