"""What the advisor measures and how it judges, piece by piece."""

from __future__ import annotations

import io
import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import tool
from rich.console import Console

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.advice.advise import advise
from langgraph_amc.evaluate.advice.measure import best_of, cost, diversity, tools
from langgraph_amc.evaluate.advice.pilot import PilotError, first_calls, read_pilot, state_keys
from langgraph_amc.evaluate.advice.report import bar, print_advice
from langgraph_amc.evaluate.advice.verdict import tasks_needed
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.runtime.effects.policy import EffectRules
from langgraph_amc.smc import ess_below, every
from langgraph_amc.trajectories.types import Trajectory, Usage
from tests.evaluate.advice_worlds import Reader, World

FAST: dict[str, int] = {"replicates": 6, "bootstrap": 3}


def run(task: str, particle: int, *segments: str, outcome: float | None = 1.0, **options: Any) -> Trajectory:
    return Trajectory(options.pop("run_id", task), f"p{particle}", segments, outcome=outcome, task_id=task, **options)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=7),
    st.integers(1, 7),
)
def test_best_of_is_the_mean_over_all_subsets(runs: list[tuple[int, float]], n: int) -> None:
    scores, rewards = zip(*runs, strict=True)
    if n > len(runs):
        with pytest.raises(ValueError, match="cannot be estimated"):
            best_of(scores, rewards, n)
        return
    expected = []
    for subset in itertools.combinations(range(len(runs)), n):
        top = max(scores[i] for i in subset)
        expected.append(np.mean([rewards[i] for i in subset if scores[i] == top]))
    assert best_of(scores, rewards, n) == pytest.approx(np.mean(expected))
    solved = sum(r == 1.0 for r in rewards)
    ones = [float(r == 1.0) for r in rewards]
    missed = math.comb(len(runs) - solved, n) / math.comb(len(runs), n)
    assert best_of(ones, ones, n) == pytest.approx(1 - missed)


def test_only_independent_judged_runs_of_one_app_count() -> None:
    found = read_pilot(
        [
            run("a", 0, "s", "t"),
            run("a", 1, "s", "u", outcome=0.0, status="failed", error="broken"),
            run("a", 2, "s", "t", outcome=None),
            run("a", 3, "s", "t", status="truncated"),
            run("a", 4, "s"),
            run("b", 0, "s", "t", run_id="steered"),
            run("b", 1, "s", "t", run_id="steered", parent="p0", forked_at=1),
        ]
    )
    assert [t.particle for t in found.trajectories] == ["p0", "p1"]
    assert found.left_out == {
        "without a reward": 1,
        "truncated": 1,
        "without a step, or without a transcript": 1,
        "of resampled populations": 2,
    }
    with pytest.raises(PilotError, match="collect"):
        read_pilot([run("a", 0, "s", "t", outcome=None)])
    with pytest.raises(PilotError, match="different options"):
        read_pilot([run("a", 0, "s", "t", fingerprint="x"), run("a", 1, "s", "t", fingerprint="y")])


def test_diversity_counts_pairs_of_one_task() -> None:
    found = read_pilot(
        [
            run("a", 0, "s", "x", "end"),
            run("a", 1, "s", "x", "end"),
            run("a", 2, "s", "y", "end"),
            run("b", 0, "s", "x", "one"),
        ]
    )
    told = diversity(found)
    assert told is not None
    assert told.same_run == pytest.approx(1 / 3)
    assert told.same_answer == 1.0
    assert told.parted == pytest.approx(2 / 3)  # two steps for the equal pair, none for the others
    keys = state_keys(found)
    assert keys[0, 1] == keys[1, 1] != keys[2, 1]
    assert keys[0, 0] != keys[3, 0]  # another task is another state
    assert diversity(read_pilot([run("a", 0, "s", "t")])) is None


@tool
def send(text: str) -> str:
    """Send a message."""
    return text


@tool
def look(text: str) -> str:
    """Look something up."""
    return text


def test_tools_that_act_and_when_they_are_first_called() -> None:
    call = '<|im_start|>assistant\nsend {"text":"hi"}<|im_end|>\n'
    found = read_pilot([run("a", 0, "s", "t", call), run("a", 1, "s", call, call), run("a", 2, "s", "send nothing")])
    assert first_calls(found, ["send"])["send"].tolist() == [2, 1, 0]
    rules = EffectRules(named={"send": "commit"}, tools={"send": send, "look": look})
    used = {use.name: use for use in tools(found, rules)}
    assert (used["send"].policy, used["send"].first_step) == ("commit", 1.5)
    assert used["send"].runs == pytest.approx(2 / 3)
    assert (used["look"].policy, used["look"].runs, used["look"].first_step) == ("unknown", 0.0, None)
    assert tools(found, None) == ()
    assert not tools(found, EffectRules(everything="pure", tools={"send": send}))


def test_an_irreversible_tool_before_the_first_check_leaves_nothing_to_steer() -> None:
    def committed(t: Trajectory) -> Trajectory:
        first, second, *rest = t.segments
        return replace(t, segments=(first, f'<|im_start|>assistant\nsend {{"text":"hi"}}\n{second}', *rest))

    runs = World(keep=0.82, sight=2.5).runs(12, 8)
    rules = EffectRules(named={"send": "commit"}, tools={"send": send})
    assert advise(runs, Reader(), **FAST, effects=rules).verdict.reason == "gain"
    verdict = advise([committed(t) for t in runs], Reader(), **FAST, effects=rules).verdict
    assert (verdict.answer, verdict.reason) == ("will not help", "irreversible early")
    assert "send" in verdict.because


def test_too_little_is_said_to_be_too_little() -> None:
    world = World(keep=0.82, sight=2.5)
    few = advise(world.runs(4, 8), Reader(), **FAST).verdict
    assert (few.answer, few.reason) == ("cannot tell", "few tasks")
    alone = advise(world.runs(20, 1), Reader())
    assert (alone.verdict.reason, alone.gain, alone.rewards) == ("few runs", None, None)
    blind = advise(world.runs(12, 8))
    assert (blind.verdict.reason, blind.gain, blind.ranking) == ("no value function", None, None)
    assert blind.rewards is not None
    with pytest.raises(ConfigurationError, match="at least 2"):
        advise(world.runs(8, 8), particles=1)


def test_fewer_runs_than_particles_make_an_advice_about_fewer() -> None:
    runs = World(keep=0.82, sight=2.5).runs(10, 4)
    found = advise([t for t in runs if not (t.task_id == "t3" and t.particle == "p0")], Reader(), **FAST)
    assert found.particles == 4
    assert found.gain is not None
    assert found.gain.tasks == found.tasks == 9
    assert len(found.notes) == 2


def test_graded_rewards_and_failures_are_advised_on() -> None:
    graded = [replace(t, outcome=0.3 + 0.7 * (t.outcome or 0.0)) for t in World(keep=0.82, sight=2.5).runs(12, 8)]
    graded = [replace(t, outcome=0.0, status="failed") if i % 7 == 0 else t for i, t in enumerate(graded)]
    found = advise(graded, Reader(), **FAST)
    assert found.ranking is not None
    assert found.ranking.metric == "kendall"
    assert found.gain is not None
    assert any("graded" in note for note in found.notes)


@given(st.integers(5, 50), st.floats(-0.3, 0.3), st.floats(0.01, 0.4))
def test_more_tasks_are_asked_for_the_less_clear_it_is(tasks: int, mean: float, half: float) -> None:
    needed = tasks_needed(tasks, Estimate(mean, mean - half, mean + half), 0.02)
    assert needed > tasks
    assert needed <= tasks_needed(tasks, Estimate(mean, mean - 2 * half, mean + 2 * half), 0.02)


def test_cost_is_missing_where_it_is_unknown() -> None:
    runs = [run("a", i, "s", "t", usage=Usage(1, 90, 10, None if i else 0.5)) for i in range(4)]
    assert cost(read_pilot(runs)).tokens == 100
    assert cost(read_pilot(runs)).usd is None
    assert cost(read_pilot(runs[:1])).usd == 0.5
    assert cost(read_pilot([run("a", 0, "s", "t")])).tokens is None


def test_the_report_is_text_of_eighty_columns_and_strict_json() -> None:
    runs = World(keep=0.82, sight=2.5).runs(16, 8)
    rules = EffectRules(tools={"send": send})
    found = advise(runs, Reader(), **FAST, schedule=every(3) | ess_below(0.5), effects=rules)
    console = Console(width=80, record=True, file=io.StringIO())
    print_advice(found, console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "AMC will help" in text
    assert "send" in text
    assert "tokens" in text
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["verdict"]["answer"] == "will help"
    assert len(plain["gain"]["decided"]) == 13


def test_bars_show_mean_interval_and_zero() -> None:
    assert bar(Estimate(0.5, 0.25, 0.75), 0.0, 1.0, 5) == "┊─●─ "
    assert bar(Estimate(-0.5, -1.0, 0.0), -1.0, 1.0, 5) == "─●─  "
    assert bar(Estimate(9.0, 9.0, 9.0), 0.0, 1.0, 5) == "┊   ●"
    assert bar(Estimate(math.nan, math.nan, math.nan), 0.0, 1.0, 5) == "     "
