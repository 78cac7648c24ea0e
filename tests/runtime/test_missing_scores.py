"""A score that is missing says nothing: its particle is not compared, not pruned for it, and the run goes on."""

from __future__ import annotations

import math
from typing import Any

import pytest

import langgraph_amc as amc
from langgraph_amc.runtime.population import ScoreError
from tests.runtime.support import ASK, agent, by_digits, seeded


class Flaky:
    """Scores like `by_digits`, but not every time: `gives(call, i)` says whether state i of a call gets a score."""

    def __init__(self, gives: Any) -> None:
        self.gives, self.calls, self.missing = gives, 0, 0

    def score(self, transcripts: Any) -> list[float | None]:
        self.calls += 1
        given = [v if self.gives(self.calls, i) else None for i, v in enumerate(by_digits(transcripts))]
        self.missing += given.count(None)
        return given


def run(value: Any, **settings: Any) -> Any:
    how = {"particles": 6, "resample": amc.every(1), "seed": 3, **settings}
    return amc.wrap(agent(seeded()), value=value, **how).invoke(ASK).amc


def test_the_run_goes_on_and_says_how_many_are_missing() -> None:
    value = Flaky(lambda call, i: i % 3 != 0)
    result = run(value)
    assert value.missing > 0
    assert result.winner.trajectory.status == "finished"
    (warning,) = [w for w in result.warnings if "missing" in w]
    assert warning.startswith(f"{value.missing} score(s)")
    for check in result.checks:
        assert any(math.isnan(v) for v in check.values)
        assert all(math.isfinite(w) for w in check.log_weights)


async def test_also_on_an_event_loop() -> None:
    value = Flaky(lambda call, i: i % 3 != 0)
    app = amc.wrap(agent(seeded()), value=value, particles=6, resample=amc.every(1), seed=3)
    result = (await app.ainvoke(ASK)).amc
    assert [c.ancestors for c in result.checks] == [c.ancestors for c in run(Flaky(lambda _, i: i % 3 != 0)).checks]


def test_where_all_are_missing_nothing_is_resampled() -> None:
    result = run(Flaky(lambda call, i: call != 1))
    assert not result.checks[0].resampled
    assert result.checks[0].withheld == "all 6 scores are missing"
    assert any(check.resampled for check in result.checks[1:])


def test_a_missing_estimate_of_the_end_is_passed_over() -> None:
    result = run(Flaky(lambda call, i: call != 4 or i == 5), resample=amc.every(1))
    known = [p for p in result.particles if p.value is not None]
    assert len(known) == 1
    assert result.winner == known[0]
    assert all(math.isfinite(p.log_weight) for p in result.particles)


def test_the_last_known_scores_stand_in_where_all_estimates_of_the_end_are_missing() -> None:
    result = run(Flaky(lambda call, i: call < 4))
    assert all(p.value is None for p in result.particles)
    known = {p.name: [v for v in p.trajectory.values if v is not None][-1] for p in result.particles}
    assert known[result.winner.name] == max(known.values())


def test_a_value_function_that_never_gives_a_score_is_an_error() -> None:
    with pytest.raises(ScoreError, match="no score at all"):
        run(Flaky(lambda call, i: False))


def test_also_where_the_reward_is_observed() -> None:
    with pytest.raises(ScoreError, match="no score at all"):
        run(Flaky(lambda call, i: False), reward=lambda run: 1.0)


@pytest.mark.parametrize("gives", [lambda call, i: i != 0, lambda call, i: False])
def test_a_run_with_a_journal_comes_back_with_scores_missing(tmp_path: Any, gives: Any) -> None:
    """Broken off at the second check, where V fails altogether, it ends as if it had not been."""

    class Breaks(Flaky):
        def score(self, transcripts: Any) -> list[float | None]:
            if self.calls == 1:
                raise OSError("the judge is away")
            return super().score(transcripts)

    settings = {
        "particles": 4,
        "resample": amc.every(1),
        "seed": 3,
        "reward": lambda run: float(run.output["messages"][-1].content[-1]),
    }

    def app(value: Any, journal: Any) -> Any:
        return amc.wrap(agent(seeded()), value=value, journal=journal, **settings)

    def later(call: int, i: int) -> bool:
        return gives(call, i) if call == 1 else i != 1

    whole = app(Flaky(later), None).invoke(ASK)
    with pytest.raises(OSError, match="away"):
        app(Breaks(later), tmp_path / "runs").invoke(ASK)
    again = app(Flaky(lambda call, i: later(call + 1, i)), tmp_path / "runs").invoke(ASK)
    assert [m.content for m in again["messages"]] == [m.content for m in whole["messages"]]
    assert [c.log_weights for c in again.amc.checks] == [c.log_weights for c in whole.amc.checks]
    assert [p.trajectory.values for p in again.amc.particles] == [p.trajectory.values for p in whole.amc.particles]


class Unsure:
    """A value function that knows its own error."""

    def __init__(self, error: float) -> None:
        self.error, self.steps = error, list[int]()

    def score(self, transcripts: Any) -> list[float]:
        return by_digits(transcripts)

    def uncertainty(self, step: int) -> float:
        self.steps.append(step)
        return self.error


def test_nothing_is_resampled_by_differences_below_the_error_of_the_value_function() -> None:
    unsure, sure, unknown = Unsure(100.0), Unsure(0.0), Unsure(math.nan)
    result = run(unsure)
    assert unsure.steps == [1, 2, 3]
    assert not any(check.resampled for check in result.checks)
    assert all("uncertainty" in check.withheld for check in result.checks)
    for value in (sure, unknown):
        result = run(value)
        assert all(check.resampled and not check.withheld for check in result.checks)
    assert [c.ancestors for c in run(by_digits).checks] == [c.ancestors for c in result.checks]
