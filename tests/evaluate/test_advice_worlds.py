"""The advisor in worlds whose truth is known: right verdicts over seeds, and gains that are what AMC really gains."""

from __future__ import annotations

import numpy as np
import pytest

from langgraph_amc.evaluate.advice.advise import Advice, advise
from langgraph_amc.value import as_value
from tests.evaluate.advice_worlds import Reader, World

SEEDS = range(3)
FAST: dict[str, int] = {"replicates": 10, "bootstrap": 6}
GOOD = World(keep=0.82, sight=2.5)
RECOVERABLE = World(keep=0.3, back=0.15)


def advices(world: World, tasks: int = 16, **options: object) -> list[Advice]:
    return [advise(world.runs(tasks, 8, seed=s), Reader(), **FAST, **options) for s in SEEDS]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("world", "answer", "reason"),
    [
        pytest.param(World(keep=0.985), "will not help", "saturated", id="saturated"),
        pytest.param(World(keep=0.4), "will not help", "hopeless", id="hopeless"),
        pytest.param(World(sight=0.0), "will not help", "blind value", id="constant V"),
        pytest.param(World(alike=True), "will not help", "no diversity", id="no diversity"),
        pytest.param(RECOVERABLE, "will not help", "recoverable", id="recoverable"),
        pytest.param(World(steps=3, keep=0.5), "will not help", "few boundaries", id="few boundaries"),
        pytest.param(GOOD, "will help", "gain", id="irreversible, V good"),
    ],
)
def test_the_verdict_is_right(world: World, answer: str, reason: str) -> None:
    for advice in advices(world):
        assert (advice.verdict.answer, advice.verdict.reason) == (answer, reason), advice.verdict.because
        assert advice.verdict.attempt


def test_a_constant_is_no_value_function() -> None:
    """Nothing is expected of it, however much there would be to gain."""
    constant = as_value(lambda states: [0.5] * len(states))
    advice = advise(GOOD.runs(16, 8, seed=0), constant, particles=4, **FAST)
    assert (advice.verdict.answer, advice.verdict.reason, advice.gain) == ("will not help", "blind value", None)


def test_a_value_function_that_guesses_is_never_said_to_help() -> None:
    reasons = [a.verdict.reason for a in advices(World(guess=True), tasks=24)]
    assert set(reasons) <= {"blind value", "uncertain"}
    assert "blind value" in reasons


def test_the_expected_gain_is_the_true_one() -> None:
    for world in (GOOD, RECOVERABLE):
        _, truth, error = world.gain(8, tasks=150)
        gains = [a.gain.selected.gain for a in advices(world) if a.gain is not None]
        assert len(gains) == len(SEEDS)
        assert np.mean([g.mean for g in gains]) == pytest.approx(truth, abs=0.1 + 2 * error)
        assert sum(g.low - 2 * error <= truth <= g.high + 2 * error for g in gains) >= 2


def test_with_a_verifier_best_of_n_is_enough() -> None:
    for advice in advices(World(keep=0.6, back=0.12), observable=True):
        assert advice.verdict.answer != "will help"
        assert advice.gain is not None
        assert advice.gain.observable.best_of_n.mean >= advice.gain.selected.best_of_n.mean


def test_half_way_more_is_decided_where_mistakes_are_final() -> None:
    final, undone = advices(GOOD)[0].gain, advices(RECOVERABLE)[0].gain
    assert final is not None
    assert undone is not None
    assert final.decided[6] > undone.decided[6] + 0.05
    assert final.decided[0] == undone.decided[0] == 0.0
    assert final.decided[12] == pytest.approx(1.0)
