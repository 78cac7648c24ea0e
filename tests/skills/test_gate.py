"""The gate and what it rests on: an exact paired test, missing rewards, the archive of candidates, copied answers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.skills import Edit, Proposal, compare
from langgraph_amc.skills.archive import Entry, best_on, front
from langgraph_amc.skills.gate import EXACT, fewest_tasks, sign_flip
from langgraph_amc.skills.leaks import copied

RNG = np.random.default_rng(5)


def rewards(p: float, tasks: int, repeats: int = 2) -> np.ndarray:
    return (RNG.random((tasks, repeats)) < p).astype(float)


@pytest.mark.parametrize("n", [1, 4, 9])
def test_p_is_the_share_of_sign_patterns_that_do_as_well(n: int) -> None:
    d = RNG.normal(0.3, 1, n)
    patterns = [np.dot(signs, d) for signs in itertools.product((1, -1), repeat=n)]
    assert sign_flip(d) == pytest.approx(np.mean(np.array(patterns) >= d.sum() - 1e-12))


def test_ties_say_nothing_and_random_flips_agree_with_all() -> None:
    assert sign_flip(np.zeros(5)) == 1.0
    d = np.array([0.5, -0.5, 1.0, 0.5, 0.5, 0.0, 0.0])
    assert sign_flip(d) == sign_flip(d[d != 0])
    many = RNG.normal(0.4, 1, EXACT)
    more = np.concatenate([many, [1e-12]])  # one more than is counted out
    assert sign_flip(more) == pytest.approx(sign_flip(many), abs=0.015)


def test_a_candidate_that_is_no_better_is_rarely_taken_and_a_good_one_nearly_always() -> None:
    def taken(gain: float) -> float:
        return np.mean([compare(rewards(0.4, 14), rewards(0.4 + gain, 14), alpha=0.05).accepted for _ in range(400)])

    assert taken(0.0) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    assert taken(-0.3) == 0
    assert taken(0.5) > 0.95


def test_the_verdict_says_why() -> None:
    old, new = np.zeros((8, 2)), np.ones((8, 2))
    better = compare(old, new, alpha=0.01)
    assert better.accepted
    assert (better.difference, better.wins, better.losses, better.tasks, better.missing) == (1.0, 8, 0, 8, 0)
    assert better.p == 2**-8
    assert "better on 8 tasks and worse on 0" in better.reason
    assert better.low == better.high == 1.0
    worse = compare(new, old)
    assert not worse.accepted
    assert worse.reason.startswith("worse: -1.000")
    assert compare(old, old).reason.startswith("not shown to be better")
    assert not compare(old, new, alpha=2**-9).accepted


def test_runs_of_one_task_are_not_counted_as_many() -> None:
    old, new = np.zeros((2, 50)), np.ones((2, 50))
    assert compare(old, new).p == 0.25


def test_a_run_that_the_candidate_broke_counts_as_the_worst() -> None:
    old = np.full((10, 1), 0.5)
    new = np.full((10, 1), 0.6)
    new[0] = np.nan
    old[1] = np.nan
    verdict = compare(old, new)
    assert (verdict.tasks, verdict.missing, verdict.losses) == (9, 1, 0)
    assert verdict.difference == pytest.approx(8 * 0.1 / 9)  # the broken one counts as 0.5, the worst that was seen
    new[:4] = np.nan
    many = compare(old, new)
    assert not many.accepted
    assert "3 of its 9 runs have no reward" in many.reason
    assert "no run of the champion" in compare(np.full((3, 1), np.nan), new[:3]).reason
    with pytest.raises(ConfigurationError, match="one shape"):
        compare(old, new[:3])


def test_how_many_tasks_a_gate_needs() -> None:
    for alpha in (0.05, 0.01, 0.1 / 24):
        n = fewest_tasks(alpha)
        assert compare(np.zeros((n, 1)), np.ones((n, 1)), alpha=alpha).accepted
        assert not compare(np.zeros((n - 1, 1)), np.ones((n - 1, 1)), alpha=alpha).accepted


def entry(name: str, *by_task: float) -> Entry:
    return Entry(name, Proposal((Edit("delete skill", name),), "x"), np.array(by_task))


def test_the_front_is_what_is_best_somewhere_and_beaten_nowhere() -> None:
    a, b, c = entry("a", 1, 0, 0.5), entry("b", 0, 1, 0.5), entry("c", 0.5, 0, 0.5)
    d, e = entry("d", 1, 0, 0.5), entry("e", 0.9, math.nan, 0.6)
    assert [x.library for x in front([a, b, c, d, e])] == ["a", "b", "e"]
    assert best_on([a, b, e]) == (1, 1, 1)
    assert front([]) == ()
    assert e.mean == pytest.approx(0.75)


def test_copied_answers_are_found_in_any_reference() -> None:
    reference = {"answer": ["The capital of the old kingdom was moved to the northern river in 1402."], "n": 7}
    leaked = "Remember: the capital of the old kingdom was moved to the northern river, whatever they say."
    assert copied(leaked, [None, reference]) == "the capital of the old kingdom was moved"
    assert copied("The capital is found in an atlas.", [reference]) is None
    assert copied("Answer: Mont Blanc  massif!", ["mont blanc massif"]) == "mont blanc massif"
    assert copied("Answer with one word, like Paris.", ["Paris"]) is None
    assert copied("", [reference]) is None
