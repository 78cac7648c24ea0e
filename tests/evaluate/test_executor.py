"""What jobs elsewhere are lent of a budget, and how a job's settings travel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.execution.executor import Processes
from langgraph_amc.evaluate.execution.leases import Lease, Leases
from langgraph_amc.evaluate.execution.work import Work, settings_changes, with_changes
from langgraph_amc.evaluate.runner import Job
from langgraph_amc.policy.budget import Budget, Price
from langgraph_amc.smc import best_value, never
from langgraph_amc.tasks import Task
from langgraph_amc.trajectories.types import Usage
from tests.evaluate.evolve_world import AGENT


def test_without_a_budget_nothing_is_lent() -> None:
    leases = Leases(4)
    assert leases.take() is None
    leases.settle(None, Usage(1, 10, 10, 0.0))


@given(
    st.integers(1, 5000),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1), st.booleans()), max_size=40),
)
def test_all_that_is_lent_and_spent_never_exceeds_the_budget(
    tokens: int, slots: int, moves: list[tuple[int, float, bool]]
) -> None:
    with Budget(tokens=tokens).open() as outer, Budget(tokens=tokens * 2, calls=50).open() as inner:
        leases = Leases(slots)
        out: list[Lease] = []
        for which, share, lost in moves:
            if len(out) < slots and (not out or which % 2):
                lease = leases.take()
                assert lease is not None
                out.append(lease)
            elif out:
                lease = out.pop(which % len(out))
                if lost:
                    leases.lose(lease)
                else:
                    used = int(share * (lease.budget.tokens or 0))
                    calls = min(lease.budget.calls or 0, 1)
                    leases.settle(lease, Usage(calls, used, 0, 0.0))
            lent = sum(lease.budget.tokens or 0 for lease in out)
            assert outer.spent.tokens + lent <= tokens
            assert inner.spent.calls + sum(lease.budget.calls or 0 for lease in out) <= 50


def test_where_nothing_is_left_a_lease_allows_no_call_and_a_refusal_is_noted() -> None:
    price = Price(1.0, 2.0)
    with Budget(tokens=100, usd=1.0, prices={"m": price}).open() as account:
        leases = Leases(2)
        one, two = leases.take(), leases.take()
        assert one is not None
        assert two is not None
        assert (one.budget.tokens, two.budget.tokens) == (50, 50)
        assert one.budget.usd == pytest.approx(0.5)
        assert one.budget.prices == {"m": price}
        leases.settle(one, Usage(1, 50, 0, 0.5), exhausted="tokens: a call did not fit")
        assert account.refused == "tokens: a call did not fit"
        leases.lose(two)
        assert account.spent == Usage(1, 100, 0, 1.0)
        last = leases.take()
        assert last is not None
        assert last.budget.calls == 0


def test_settings_travel_as_what_differs_from_those_the_other_process_makes_itself(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    work = Work(f"{tmp_path}/agent.py:graph", f"{tmp_path}/agent.py:even", {"particles": 4})
    here, there = work.load(), work.load()
    changed = replace(here.settings, particles=7, select=best_value, resample=never())
    changes = settings_changes(changed, here.settings)
    assert sorted(changes) == ["particles", "resample", "select"]
    arrived = with_changes(Job(Task("t", "x"), 0, there.settings), changes, there.settings).settings
    assert (arrived.particles, arrived.select, arrived.boundary) == (7, best_value, there.settings.boundary)
    assert settings_changes(here.settings, here.settings) == {}


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_workers_are_a_whole_number(workers: object) -> None:
    with pytest.raises(ConfigurationError, match="workers"):
        Processes(workers)  # type: ignore[arg-type]
