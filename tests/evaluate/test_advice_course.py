"""The hidden course of runs: posteriors against enumeration, and what is decided when."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.evaluate.advice.course import CLASSES, LEVELS, Course, _expected, fit, read_log
from langgraph_amc.evaluate.logged import read_runs
from tests.evaluate.advice_worlds import Reader, World

LONGEST = 4


def chances(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    on, end = rng.random((CLASSES, LONGEST + 1, 2)), rng.uniform(0.05, 0.6, (CLASSES, LONGEST + 1, 2))
    end[:, 0], end[:, -1] = 0.0, 1.0
    return on, end, rng.dirichlet(np.ones(LEVELS), (LONGEST + 1, 2))


@given(st.integers(0, 10**6), st.integers(1, LONGEST), st.sampled_from([0.0, 0.3, 1.0]))
def test_posteriors_are_those_of_enumerated_histories(seed: int, steps: int, well: float) -> None:
    on, end, shows = chances(seed)
    rng = np.random.default_rng(seed)
    level = rng.integers(-1, LEVELS, (1, LONGEST + 1))
    single, pairs, likelihood = _expected(level, np.array([steps]), np.array([well]), on, end, shows)
    for c in range(CLASSES):
        total, expected = 0.0, np.zeros((LONGEST + 1, 2))
        for history in itertools.product((0, 1), repeat=steps):
            chance, before = 1.0, 1
            for t, now in enumerate(history, start=1):
                chance *= on[c, t, before] if now else 1 - on[c, t, before]
                if t < steps:
                    seen = 1.0 if level[0, t] < 0 else shows[t, now, level[0, t]]
                    chance *= (1 - end[c, t, now]) * seen
                else:
                    chance *= end[c, t, now] * (well if now else 1 - well)
                before = now
            total += chance
            for t, now in enumerate(history, start=1):
                expected[t, now] += chance
        assert likelihood[c, 0] == pytest.approx(np.log(total))
        assert single[c, 0] == pytest.approx(expected / total)
        assert pairs[c, 0].sum(axis=1) == pytest.approx(single[c, 0])


@given(st.integers(0, 10**6))
def test_ever_more_is_decided_and_in_the_end_everything(seed: int) -> None:
    on, end, shows = chances(seed)
    share = np.random.default_rng(seed).dirichlet(np.ones(CLASSES), 5)
    decided = Course(share, on, end, shows, np.zeros((1, LONGEST + 1, 2))).decided()
    assert decided[0] == 0.0
    assert (np.diff(decided) >= -1e-9).all()
    assert decided[-1] == pytest.approx(1.0)


def test_a_fit_finds_the_rate_of_mistakes_and_tells_easy_tasks_from_hard_ones() -> None:
    world = World(spread=1.2)
    log = read_log(read_runs(world.runs(30, 8), Reader()))
    course = fit(log)
    assert course.share.sum(axis=1) == pytest.approx(1.0)
    ease = np.array([log.well[log.task == i].mean() for i in range(log.tasks)])
    keep = course.on[:, 2:-1, 1].mean(axis=1)
    assert keep.min() < 0.87 < keep.max()
    assert np.corrcoef(course.share @ keep, ease)[0, 1] > 0.7
    assert course.on[:, 2:-1, 0].mean() < 0.15
    assert course.decided()[6] > 0.2
    recoverable = fit(read_log(read_runs(World(keep=0.6, back=0.4, spread=0.0).runs(30, 8), Reader())))
    assert recoverable.decided()[6] < 0.1
