"""Comparisons on a walk whose optimum is known: honest columns, token budgets, failures."""

from __future__ import annotations

import operator
import random
from typing import Annotated, Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from rich.console import Console

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.collect import NothingCollectedError, collect
from langgraph_amc.evaluate.compare import AMC, BEST_OF_N, SAME_TOKENS, SINGLE, ArmResult, Comparison, compare
from langgraph_amc.evaluate.report import print_comparisons
from langgraph_amc.evaluate.runner import NoRewardError
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks import FinishedRun, Task, TaskSet, as_reward
from langgraph_amc.trajectories.store import TrajectoryStore

STEPS = 6


class Coin(BaseChatModel):
    """Says ok with probability 0.75, else slip; seeded by the particle, so that a study repeats."""

    @property
    def _llm_type(self) -> str:
        return "coin"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        particle = amc.current_particle.get()
        assert particle is not None
        rng = random.Random(f"{particle.seed}-{len(messages)}-{messages[0].content}")
        message = AIMessage("ok" if rng.random() < 0.75 else "slip")
        message.usage_metadata = {"input_tokens": len(messages), "output_tokens": 1, "total_tokens": len(messages) + 1}
        return ChatResult(generations=[ChatGeneration(message=message)])


class State(MessagesState):
    turns: Annotated[int, operator.add]


def build(model: BaseChatModel | None = None) -> Any:
    coin = model or Coin()
    g = StateGraph(State)
    g.add_node("think", lambda s: {"messages": [coin.invoke(s["messages"])], "turns": 1})
    g.add_node("look", lambda s: {"messages": [HumanMessage("noted")]})
    g.add_edge(START, "think")
    g.add_edge("think", "look")
    g.add_conditional_edges("look", lambda s: END if s["turns"] >= STEPS else "think", ["think", END])
    return g.compile()


def unbroken(run: FinishedRun) -> float:
    return float(all(m.content != "slip" for m in run.messages))


def sees_slips(transcript: str) -> float:
    return 0.01 if "slip" in transcript else 0.9


TASKS = TaskSet([Task(f"t{i}", f"walk {i}") for i in range(40)])


async def test_amc_beats_best_of_n_where_mistakes_are_final() -> None:
    app = build()
    settings = read_settings(app, particles=4, value=sees_slips, resample=amc.every(1))
    done: list[tuple[int, int]] = []
    found = await compare(
        app, TASKS, as_reward(unbroken), settings, seeds=(0, 1), progress=lambda a, b: done.append((a, b))
    )
    arms = {arm.name: arm for arm in found.arms}
    assert set(arms) == {SINGLE, BEST_OF_N, SAME_TOKENS, AMC}
    single = 0.75**STEPS
    assert arms[SINGLE].observable.low <= single <= arms[SINGLE].observable.high
    assert arms[BEST_OF_N].observable.mean == pytest.approx(1 - (1 - single) ** 4, abs=0.12)
    assert found.difference_observable.low > 0.1
    assert found.difference_selected.low > 0.1
    # a perfect judge of final states loses nothing by not seeing the reward
    assert arms[AMC].selected.mean == arms[AMC].observable.mean
    assert arms[SAME_TOKENS].tokens == pytest.approx(arms[AMC].tokens, rel=0.1)
    assert found.resamplings > 1
    assert done[-1][0] == done[-1][1]


async def test_a_blind_value_function_gains_nothing_and_selects_no_oracle() -> None:
    app = build()
    settings = read_settings(app, particles=4, value=lambda t: [0.5] * len(t), resample=amc.every(1))
    found = await compare(app, TASKS, as_reward(unbroken), settings, same_tokens=False)
    arms = {arm.name: arm for arm in found.arms}
    assert arms[BEST_OF_N].selected.mean < arms[BEST_OF_N].observable.mean
    assert abs(found.difference_observable.mean) < 0.25
    assert SAME_TOKENS not in arms


async def test_one_seed_one_result() -> None:
    app = build()
    settings = read_settings(app, particles=3, value=sees_slips, resample=amc.every(2))
    runs = [(await compare(app, TASKS[:5], as_reward(unbroken), settings, concurrency=c)).to_json() for c in (1, 4)]
    for run in runs:
        for arm in run["arms"]:
            del arm["seconds"]
    assert runs[0] == runs[1]


async def test_failed_runs_earn_nothing_and_are_kept(tmp_path: Any) -> None:
    class Fragile(Coin):
        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
            result = super()._generate(messages, *args, **kwargs)
            if result.generations[0].text == "slip":
                raise RuntimeError("broken")
            return result

    app = build(Fragile())
    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        collected = await collect(app, TASKS[:6], as_reward(unbroken), store, read_settings(app, particles=4))
        stored = list(store.trajectories())
    failures = [t for t in stored if t.status == "failed"]
    assert collected.runs == len(stored) == 24
    assert collected.failed == len(failures) > 0
    assert all(t.outcome == 0.0 and "broken" in (t.error or "") for t in failures)


async def test_total_failure_is_no_result(tmp_path: Any) -> None:
    class Broken(Coin):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            raise RuntimeError("no key")

    app = build(Broken())
    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        with pytest.raises(NothingCollectedError, match="no key"):
            await collect(app, TASKS[:2], as_reward(unbroken), store, read_settings(app, particles=2))
        with pytest.raises(ConfigurationError, match="no task"):
            await collect(app, TaskSet(), as_reward(unbroken), store, read_settings(app, particles=2))
        assert store.counts().by_status == {"failed": 4}
    guided = read_settings(app, particles=2, value=sees_slips)
    with pytest.raises(NoRewardError, match="no key"):
        await compare(app, TASKS[:2], as_reward(unbroken), guided)


async def test_what_a_model_that_judges_takes_is_counted() -> None:
    class Judging(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "judging"

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            usage = {"input_tokens": 1000, "output_tokens": 1, "total_tokens": 1001}
            message = AIMessage(str(sees_slips(messages[0].content)), usage_metadata=usage)
            return ChatResult(generations=[ChatGeneration(message=message)])

    asked: list[int] = []

    def judged(transcripts: Any) -> list[float]:
        asked.append(len(transcripts))
        return [float(Judging().invoke(text).content) for text in transcripts]

    async def run(value: Any) -> dict[str, ArmResult]:
        settings = read_settings(build(), particles=3, value=value, resample=amc.every(2))
        found = await compare(build(), TASKS[:2], as_reward(unbroken), settings, same_tokens=False)
        return {arm.name: arm for arm in found.arms}

    plain, dear = await run(sees_slips), await run(judged)
    more = sum(dear[name].tokens - plain[name].tokens for name in (BEST_OF_N, AMC))
    assert more == pytest.approx(1001 * sum(asked) / 2), "per task"


async def test_without_usage_there_is_no_arm_of_equal_tokens() -> None:
    class Silent(Coin):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            result = super()._generate(*args, **kwargs)
            result.generations[0].message.usage_metadata = None
            return result

    app = build(Silent())
    found = await compare(app, TASKS[:3], as_reward(unbroken), read_settings(app, particles=2, value=sees_slips))
    assert SAME_TOKENS not in {arm.name for arm in found.arms}
    assert any("no usage" in warning for warning in found.warnings)


async def test_what_cannot_be_compared_is_refused() -> None:
    app = build()
    with pytest.raises(ConfigurationError, match="needs a value function"):
        await compare(app, TASKS, as_reward(unbroken), read_settings(app))
    guided = read_settings(app, particles=2, value=sees_slips)
    with pytest.raises(ConfigurationError, match="no task"):
        await compare(app, TaskSet(), as_reward(unbroken), guided)
    with pytest.raises(NoRewardError, match="rewards are missing"):
        await compare(app, TASKS[:2], as_reward(lambda run: None), guided, same_tokens=False)


def test_the_table_fits_and_says_what_its_seconds_are(capsys: pytest.CaptureFixture[str]) -> None:
    wide = Estimate(0.512, 0.45, 0.57)
    arms = tuple(ArmResult(n, wide, wide, 15.3, 123_456.0, 100.0, 12.34) for n in (SINGLE, BEST_OF_N, SAME_TOKENS, AMC))
    comparison = Comparison("agent", 10, (0,), 16, arms, wide, wide, wide, wide, 2.5, 0.1, 0, {}, ())
    print_comparisons([comparison], Console(width=80))
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert "12.3" in printed
    rows = {line.split("  ")[0].strip(): line for line in printed.splitlines()}
    assert rows["one run"].rstrip().endswith("~12")
    assert "not how long an answer takes" in " ".join(printed.split())
