"""The design and its two estimates, by simulation against effects that are known."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from langgraph_amc.coevolve.design import assign, by_cell, by_member, paired
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.estimator import estimate
from langgraph_amc.skills.gate import EXACT, compare

PAIRS, TASKS = 8, 12


def draw(rng: np.random.Generator, seed: int, skill: float, arms: int = 2, noise: float = 0.3, bend: float = 0.5):
    """One generation: rewards [members, tasks], design, and what each direction is really worth [pairs].

    Big effects of tasks and directions, odd and even, beside an effect of the skills that is not smaller.
    """
    odd, even = rng.normal(0, 1, PAIRS), bend * rng.normal(0, 1, PAIRS) ** 2
    design = assign(seed, 0, PAIRS, TASKS, arms)
    signs = np.tile([1.0, -1.0], PAIRS)
    rewards = np.repeat(odd, 2)[:, None] * signs[:, None] + np.repeat(even, 2)[:, None]
    rewards = rewards + rng.normal(0, 2, TASKS) + skill * by_member(design, True)
    return rewards + rng.normal(0, noise, rewards.shape), design, odd


def test_each_block_has_every_arm_equally_often_and_nothing_else_is_regular() -> None:
    for arms in (2, 3):
        design = assign(3, 5, PAIRS, 40, arms)
        for column in design.T:
            counts = Counter(column.tolist())
            assert set(counts) == set(range(arms))
            assert max(counts.values()) - min(counts.values()) <= 1
        assert len({tuple(c) for c in design.T.tolist()}) > 20
    assert (assign(3, 5, PAIRS, 4, 2) == assign(3, 5, PAIRS, 40, 2)[:, :4]).all()
    assert (assign(3, 5, PAIRS, 40, 2) != assign(3, 6, PAIRS, 40, 2)).any()
    share = np.mean([assign(seed, 0, PAIRS, 20, 2) for seed in range(200)], axis=0)
    assert np.abs(share - 0.5).max() < 0.15  # every plot is as likely to carry either
    with pytest.raises(ConfigurationError, match="raise the population to 18"):
        assign(0, 0, PAIRS, 3, 9)


@pytest.mark.parametrize("antithetic", [True, False])
def test_the_weights_estimate_is_as_good_as_without_skills(antithetic: bool) -> None:
    """Unbiased, and as exact as if nobody carried anything; without the cells it would be far noisier."""
    rng = np.random.default_rng(0)
    errors: dict[str, list[np.ndarray]] = {"with": [], "without": [], "uncorrected": []}
    for seed in range(400):
        rewards, design, odd = draw(rng, seed, skill=3.0, bend=0.0)
        plain = rewards - 3.0 * by_member(design, True)
        if not antithetic:  # members of their own, of which only the positive signs are used here
            rewards, plain = rewards[0::2], plain[0::2]
        cells = by_cell(rewards, design, 2, antithetic)
        for name, given in (("with", cells), ("without", plain), ("uncorrected", rewards)):
            found = estimate(given, antithetic=antithetic, shaping="none", baseline="task").weights
            errors[name].append(found - odd if antithetic else (found - (odd - odd.mean()) * PAIRS / (PAIRS - 1)))
    bias = {name: np.abs(np.mean(e, axis=0)).max() for name, e in errors.items()}
    spread = {name: np.std(e) for name, e in errors.items()}
    standard_error = spread["with"] / np.sqrt(len(errors["with"]))
    assert bias["with"] < 4 * standard_error
    if antithetic:  # both signs carry the same, so even the plain estimate is free of it
        assert spread["with"] == pytest.approx(spread["without"], rel=0.02)
    else:
        assert spread["with"] < 0.6 * spread["uncorrected"]


@pytest.mark.parametrize("skill", [0.0, 0.15, -0.4])
@pytest.mark.parametrize("antithetic", [True, False])
def test_the_skills_estimate_is_free_of_the_perturbations(skill: float, antithetic: bool) -> None:
    rng = np.random.default_rng(1)
    found = []
    for seed in range(300):
        rewards, design, _ = draw(rng, seed, skill)
        rewards = rewards if antithetic else rewards[0::2]
        names = [f"t{i}" for i in range(TASKS)]
        _, champion, challenger = paired([rewards], [design], [names], 1, antithetic)
        assert champion.shape == (TASKS, PAIRS // 2)
        found.append(np.mean(challenger - champion))
    assert abs(np.mean(found) - skill) < 4 * np.std(found) / np.sqrt(len(found))


def test_a_gate_at_five_percent_lets_useless_skills_pass_that_often() -> None:
    """With directions whose effects dwarf the luck of sampling: if they leaked into the comparison, it would show."""
    rng = np.random.default_rng(2)
    passed, each = 0, EXACT // 2
    for seed in range(200):
        generations = [[part[:, :each] for part in draw(rng, 2 * seed + g, skill=0.0)[:2]] for g in range(2)]
        names = [[f"t{g}-{i}" for i in range(each)] for g in range(2)]
        _, champion, challenger = paired([g[0] for g in generations], [g[1] for g in generations], names, 1, True)
        passed += compare(champion, challenger, alpha=0.05, seed=seed).accepted
    assert passed <= 200 * 0.05 + 3 * np.sqrt(200 * 0.05 * 0.95)


def test_a_task_that_comes_again_is_one_task_and_a_pair_with_a_missing_sign_is_missing() -> None:
    design = np.array([[0, 1], [1, 0]])
    first = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 6.0], [7.0, 6.0]])
    second = first + 10
    second[1, 0] = np.nan
    tasks, champion, challenger = paired([first, second], [design, design], [["a", "b"], ["b", "a"]], 1, True)
    assert tasks == ("a", "b")
    np.testing.assert_array_equal(champion, [[2.0, 16.0], [6.0, np.nan]])
    np.testing.assert_array_equal(challenger, [[6.0, 12.0], [2.0, 16.0]])


def test_cells_hold_each_reward_once() -> None:
    rewards, design, _ = draw(np.random.default_rng(3), 0, 1.0, arms=3)
    rewards[4, 2] = np.nan
    cells = by_cell(rewards, design, 3, True)
    assert cells.shape == (2 * PAIRS, 3 * TASKS)
    assert np.sort(cells[~np.isnan(cells)]).tolist() == np.sort(rewards[~np.isnan(rewards)]).tolist()
    assert by_cell(np.full_like(rewards, np.nan), design, 3, True).shape == (2 * PAIRS, 1)
