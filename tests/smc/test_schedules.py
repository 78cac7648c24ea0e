"""Schedules: when they can fire, when they do, how they combine, and reading them from text."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc import Check, at, ess_below, every, never, parse_schedule

single = st.one_of(
    st.lists(st.integers(1, 30), min_size=1, max_size=4).map(lambda boundaries: at(*boundaries)),
    st.integers(1, 12).map(every),
    st.floats(0.01, 1.0).map(ess_below),
    st.just(never()),
)
schedules = st.recursive(
    single,
    lambda inner: st.tuples(inner, inner, st.booleans()).map(lambda t: t[0] | t[1] if t[2] else t[0] & t[1]),
    max_leaves=6,
)
checks = st.builds(Check, st.integers(1, 40), st.floats(0.001, 1.0))


def test_single_schedules():
    assert [b for b in range(1, 14) if at(12, 4).possible(b)] == [4, 12]
    assert [b for b in range(1, 14) if at(12, 4).fires(Check(b, 1.0))] == [4, 12]
    assert [b for b in range(1, 10) if every(3).possible(b)] == [3, 6, 9]
    assert [b for b in range(1, 10) if every(3).fires(Check(b, 1.0))] == [3, 6, 9]
    assert not any(never().possible(b) or never().fires(Check(b, 0.01)) for b in range(1, 10))
    assert ess_below(0.5).possible(1)
    assert ess_below(0.5).fires(Check(1, 0.49))
    assert ess_below(0.5).fires(Check(1, 0.5))  # half the population dead
    assert not ess_below(0.5).fires(Check(1, 0.51))


@given(schedules, schedules, checks)
def test_or_and_and(one, two, check):
    b = check.boundary
    assert (one | two).possible(b) == (one.possible(b) or two.possible(b))
    assert (one & two).possible(b) == (one.possible(b) and two.possible(b))
    assert (one | two).fires(check) == (one.fires(check) or two.fires(check))
    assert (one & two).fires(check) == (one.fires(check) and two.fires(check))


@given(schedules, checks)
def test_what_fires_was_possible(schedule, check):
    assert schedule.possible(check.boundary) or not schedule.fires(check)


@given(schedules)
def test_repr_can_be_read_back(schedule):
    assert parse_schedule(repr(schedule)) == schedule


def test_repr_is_what_one_would_write():
    assert repr(ess_below(0.5) | every(5)) == "ess_below(0.5) | every(5)"
    assert repr((at(4, 12) | never()) & every(2)) == "(at(4, 12) | never()) & every(2)"
    assert parse_schedule(" every(3)|ess_below(0.5) & at(1) ") == every(3) | (ess_below(0.5) & at(1))


@dataclass(frozen=True)
class Odd:
    """A user's own schedule, which knows nothing of ours."""

    def possible(self, boundary: int) -> bool:
        return boundary % 2 == 1

    def fires(self, check: Check) -> bool:
        return check.boundary % 2 == 1


def test_a_users_schedule_combines_on_either_side():
    for both in (Odd() & every(3), every(3) & Odd()):
        assert [b for b in range(1, 10) if both.fires(Check(b, 1.0))] == [3, 9]
    for either in (Odd() | every(2), every(2) | Odd()):
        assert all(either.possible(b) for b in range(1, 10))


def test_what_is_no_schedule_does_not_combine():
    for combine in (
        lambda: every(3) | 5,
        lambda: 0.5 | every(3),
        lambda: every(3) & None,
        lambda: at(1) & at,
    ):
        with pytest.raises(TypeError):
            combine()


@pytest.mark.parametrize(
    "make",
    [
        at,
        lambda: at(0),
        lambda: at(2.0),
        lambda: at(True),
        lambda: every(0),
        lambda: every("3"),
        lambda: ess_below(0.0),
        lambda: ess_below(1.5),
        lambda: ess_below(float("nan")),
        lambda: ess_below(True),
    ],
)
def test_impossible_arguments_are_refused(make):
    with pytest.raises(ConfigurationError):
        make()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "every",
        "every(3",
        "every(-3)",
        "every(k=3)",
        "every(3, 4)",
        "every(3) + at(1)",
        "every(3) or at(1)",
        "ess_below('0.5')",
        "ess_below(True)",
        "at(10**9)",
        "sometimes(3)",
        "__import__('os').getcwd()",
        "every(__import__('os').getpid())",
        "at(*[1, 2])",
        "(lambda: every(3))()",
        "every(3) if 1 else at(2)",
        "\0",
        "(" * 500 + "every(3)",
        "at(1)" + " | at(1)" * 20_000,
    ],
)
def test_unreadable_texts_are_refused_with_an_example(text):
    with pytest.raises(ConfigurationError, match=r"every|boundary|fraction"):
        parse_schedule(text)
