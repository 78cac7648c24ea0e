"""Abstention, its calibration, and what counts as the same answer."""

from __future__ import annotations

import math
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.smc import Candidate, SelectionError, argmax, best_reward, vote
from langgraph_amc.smc.abstention import AbstainedError, Abstention, abstain, fit_abstention, upper_bound
from langgraph_amc.smc.answers import final_text, last_number, message_text

RNG = np.random.default_rng(0)


def candidates(*values: float | None, outputs: str = "") -> list[Candidate]:
    return [Candidate(0.0, v, v, outputs[i : i + 1] or "x") for i, v in enumerate(values)]


def test_below_the_line_the_choice_says_so() -> None:
    choice = abstain(0.5)(RNG, candidates(0.2, 0.4, 0.1))
    assert choice == 1
    assert isinstance(choice, Abstention)
    assert (choice.confidence, choice.below) == (0.4, 0.5)
    assert not isinstance(abstain(0.5)(RNG, candidates(0.2, 0.5)), Abstention)
    with pytest.raises(AbstainedError, match=r"0\.4, below 0\.5") as refused:
        abstain(0.5, raises=True)(RNG, candidates(0.4, 0.1))
    assert (refused.value.confidence, refused.value.below) == (0.4, 0.5)


def test_confidence_is_that_of_the_selector() -> None:
    assert isinstance(abstain(0.7, vote())(RNG, candidates(1, 1, 1, outputs="aab")), Abstention)
    assert not isinstance(abstain(0.6, vote())(RNG, candidates(1, 1, 1, outputs="aab")), Abstention)
    assert isinstance(abstain(0.3, argmax)(RNG, candidates(1, 1, 1, 1)), Abstention)
    assert not isinstance(abstain(0.25, argmax)(RNG, candidates(1, 1, 1, 1)), Abstention)
    assert abstain(0.9, best_reward)(RNG, candidates(0.8)).confidence == 0.8  # type: ignore[attr-defined]
    unknown = abstain(0.1, vote(), confidence=lambda c, i: None)(RNG, candidates(1.0))
    assert isinstance(unknown, Abstention)  # nothing known is not enough
    assert unknown.confidence is None
    with pytest.raises(SelectionError, match="NaN"):
        abstain(0.1, vote(), confidence=lambda c, i: math.nan)(RNG, candidates(1.0))


@pytest.mark.parametrize("bad", [math.nan, True, "0.5"])
def test_a_line_is_a_number(bad: object) -> None:
    with pytest.raises(ConfigurationError, match="is a number"):
        abstain(bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="or a selector"):
        abstain(0.5, "best")


def test_who_gives_no_answer_has_no_vote() -> None:
    crowd = [Candidate(0.0, None, None, out) for out in (None, None, "a")]
    assert vote()(RNG, crowd) == 2
    assert vote().share(crowd, 2) == 1.0
    assert vote().share(crowd, 0) == 0.0
    assert vote()(RNG, crowd[:2]) == 0


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 400), part=st.floats(0, 1), confidence=st.floats(0.5, 0.999))
def test_the_bound_is_clopper_pearsons(n: int, part: float, confidence: float) -> None:
    wrong = round(part * n)
    exact = 1.0 if wrong == n else beta.ppf(confidence, wrong + 1, n - wrong)
    assert upper_bound(wrong, n, confidence) == pytest.approx(exact, abs=1e-6)


def world(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    scores = rng.random(n)
    return scores, (rng.random(n) < scores**0.3).astype(float)


def test_the_risk_is_kept_as_often_as_promised() -> None:
    rng = np.random.default_rng(1)
    grid = np.linspace(0, 1, 2001)
    broken = tried = 0
    for _ in range(150):
        try:
            fitted = fit_abstention(*world(rng, 150), risk=0.15, confidence=0.9)
        except SelectionError:
            continue
        tried += 1
        risk = float(np.mean(1 - grid[grid >= fitted.below] ** 0.3))
        broken += risk > 0.15
        assert fitted.bound <= 0.15
        assert 0 < fitted.coverage <= 1
    assert tried > 75
    assert broken <= binom.ppf(0.999, tried, 0.1)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_looser_risk_answers_no_less(seed: int) -> None:
    scores, right = world(np.random.default_rng(seed), 200)
    covered = []
    for risk in (0.15, 0.3, 0.6):
        try:
            covered.append(fit_abstention(scores, right, risk=risk).coverage)
        except SelectionError:
            covered.append(0.0)
    # the levels that are tried differ a little with the risk
    assert covered[0] <= covered[1] + 0.13
    assert covered[1] <= covered[2] + 0.13


def test_what_cannot_be_calibrated_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 49 held-out tasks, got 20"):
        fit_abstention([0.5] * 20, [1] * 20)
    with pytest.raises(SelectionError, match="no line keeps"):
        fit_abstention([0.5] * 60, [1, 0] * 30)
    with pytest.raises(ConfigurationError, match="0 or 1"):
        fit_abstention([0.5] * 60, [0.5] * 60)
    with pytest.raises(ConfigurationError, match="without NaN"):
        fit_abstention([math.nan] * 60, [1] * 60)
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        fit_abstention([0.5] * 60, [1] * 60, risk=1.5)
    assert fit_abstention([0.5] * 60, [1] * 60).coverage == 1  # ties are answered together


@pytest.mark.parametrize(
    ("output", "number"),
    [
        ("The answer is 1,234.50.", "1234.5"),
        ("12 apples, so 7", "7"),
        ("= −3.0", "-3"),
        ("about 5%", "0.05"),
        ("$1 000 000", "1000000"),
        ("2e3", "2000"),
        ("-0", "0"),
        (".5", "0.5"),
        ("x2 is no number", None),
        ("none", None),
        ("", None),
    ],
)
def test_last_number(output: str, number: str | None) -> None:
    found = last_number(output)
    assert found == (None if number is None else Decimal(number))


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=3))
def test_a_number_is_itself_however_it_is_written(number: Decimal) -> None:
    assert last_number(f"It is {number:,}") == last_number(f"{number:f}.") == number


def test_final_text_and_where_it_is_found() -> None:
    same = ["Paris", " paris. ", "**PARIS!**", "“Paris”", "ＰＡＲＩＳ"]
    assert {final_text(text) for text in same} == {"paris"}
    message = SimpleNamespace(content=[{"type": "text", "text": "Par"}, {"type": "image"}, "is"])
    assert message_text(message) == "Paris"
    asks = SimpleNamespace(content="")
    assert final_text({"messages": [{"role": "user", "content": "?"}, message, asks]}) == "paris"
    for nothing in (None, {}, {"messages": []}, 3, "  ", "…"):
        assert final_text(nothing) is None
    assert vote(final_text)(RNG, [Candidate(0.0, None, None, text) for text in ("Rome", *same)]) == 1


def test_real_messages() -> None:
    from langchain_core.messages import AIMessage, HumanMessage

    state = {"messages": [HumanMessage("2+2?"), AIMessage([{"type": "text", "text": "It is 4."}])]}
    assert last_number(state) == 4
    assert final_text(state) == "it is 4"


async def test_a_run_that_abstains_commits_nothing() -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    import langgraph_amc as amc
    from tests.evaluate.test_compare import build, sees_slips

    app = build()
    app.checkpointer = InMemorySaver()
    thread = {"configurable": {"thread_id": "1"}}
    given = {"messages": [("user", "walk")]}
    strict = amc.wrap(app, particles=3, value=sees_slips, select=abstain(0.95, raises=True), seed=1)
    with pytest.raises(AbstainedError, match=r"below 0\.95"):
        await strict.ainvoke(given, thread)
    assert (await app.aget_state(thread)).values == {}
    marked = amc.wrap(app, particles=3, value=sees_slips, select=abstain(0.95), seed=1)
    assert (await marked.ainvoke(given, thread))["turns"] == 6
    assert (await app.aget_state(thread)).values["turns"] == 6
