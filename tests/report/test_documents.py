"""Reports of comparisons, trainings and evolutions: the figures are those that were stored."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.compare import AMC, BEST_OF_N, SINGLE, Comparison, compare
from langgraph_amc.evaluate.evolving.report import Evolution, GenerationReport, HeldOut, ValidationReport
from langgraph_amc.evaluate.per_task import Pool, best_of, expected_best
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.report.comparison import comparison_report
from langgraph_amc.report.evolution import evolution_report
from langgraph_amc.report.page import to_html
from langgraph_amc.report.sections import Curves, Forest, Report, Section, Table
from langgraph_amc.report.sources import of_folder
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks import Task, TaskSet, as_reward
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value.features import load_features
from langgraph_amc.value.training.text_features import train_features
from tests.report import world
from tests.runtime.support import agent

TASKS = TaskSet([Task(f"t{i}", {"messages": [("user", f"dig at {i}")]}) for i in range(6)])


def section(report: Report, title: str) -> Any:
    (found,) = [s for s in report.sections if s.title == title]
    return found


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    app = agent(world.digging(3, mails=False), [world.dig])
    settings = read_settings(
        app, particles=4, value=world.promising, resample=amc.every(1), tau=0.1, effects={"dig": "pure"}
    )
    return asyncio.run(compare(app, TASKS, as_reward(world.rich), settings, seeds=(0, 1)))


def test_a_comparison(comparison: Comparison, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"comparisons": [comparison.to_json()]}))
    report = of_folder(tmp_path)
    arms = {arm.name: arm for arm in comparison.arms}
    text = {fact.label: fact.text for fact in report.answer}
    assert f"With AMC the answer earns {arms[AMC].selected.mean:.3f}" in text["What was found"]
    assert f"AMC took {arms[AMC].tokens:,.0f} tokens per task" in text["What it cost"]
    gains = section(report, "What AMC gains")
    assert isinstance(gains, Forest)
    assert gains.zero == 0.0
    first = gains.rows[0]
    assert (first.mean, first.low, first.high) == tuple(asdict(comparison.difference_selected).values())
    tasks = section(report, "Task by task")
    assert isinstance(tasks, Table)
    assert {row[0] for row in tasks.rows} == {t.id for t in TASKS}
    assert [row[-1] for row in tasks.rows] == sorted((row[-1] for row in tasks.rows), reverse=True)
    curve = section(report, "Gain against cost")
    assert isinstance(curve, Curves)
    assert curve.series[0].y[0] == pytest.approx(arms[SINGLE].selected.mean)
    assert curve.series[0].y[-1] == pytest.approx(arms[BEST_OF_N].selected.mean, abs=0.01)
    assert curve.series[0].x[-1] == pytest.approx(arms[BEST_OF_N].tokens)
    assert len(to_html(report)) < 200_000


def test_scores_by_task_are_the_means_of_the_arms(comparison: Comparison) -> None:
    for arm in comparison.arms:
        for key in ("observable", "selected", "tokens"):
            known = [v for t in comparison.by_task if (v := getattr(t, key)[arm.name]) is not None]
            whole = getattr(arm, key)
            assert np.mean(known) == pytest.approx(whole if key == "tokens" else whole.mean)


def test_a_comparison_of_an_older_version_has_a_report(comparison: Comparison, tmp_path: Path) -> None:
    old = replace(comparison, by_task=(), best_of=()).to_json()
    (tmp_path / "old.json").write_text(json.dumps(old))
    curve = section(of_folder(tmp_path / "old.json"), "Gain against cost")
    assert len(curve.series[0].x) == 3


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_best_of_k_is_the_mean_over_all_subsets(k: int) -> None:
    rewards, values = np.array([0.0, 1.0, 0.25, 1.0]), np.array([0.1, 0.4, 0.4, 0.2])

    def picked(subset: tuple[int, ...], scores: Any) -> float:
        best = max(scores[i] for i in subset)
        return float(np.mean([rewards[i] for i in subset if scores[i] == best]))

    for scores in (rewards, values):
        every = [picked(s, scores) for s in itertools.combinations(range(4), k)]
        assert expected_best(rewards, scores, k) == pytest.approx(np.mean(every))
    assert np.isnan(expected_best(np.array([np.nan, 1.0]), np.array([0.5, 0.5]), 2))


def test_the_best_of_k_costs_k_runs() -> None:
    pool = Pool(np.array([0.0, 1.0]), np.array([0.1, 0.9]), np.array([10.0, 30.0]))
    one, two = best_of([[pool], [pool]])
    assert (one.tokens, two.tokens) == (20.0, 40.0)
    assert (one.observable.mean, two.observable.mean, two.selected.mean) == (0.5, 1.0, 1.0)
    assert best_of([]) == ()


def test_a_training(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    runs = []
    for task, run in itertools.product(range(12), range(6)):
        good = float(rng.random() < 0.5)
        words = ["good" if good else "bad" for _ in range(3)]
        runs.append(Trajectory(f"r{task}-{run}", "p0", ("begin", *words), outcome=good, task_id=f"t{task}"))
    made = train_features(runs, out=tmp_path / "value")
    assert load_features(tmp_path / "value").spec.loss == made.loss
    report = of_folder(tmp_path / "value")
    assert report.title == "The value function tells better runs from worse"
    assert f"in {made.quality.ranking.value:.0%} of cases" in report.answer[0].text
    ranks = section(report, "Ranking within a task, step by step")
    assert isinstance(ranks, Forest)
    assert (ranks.rows[0].mean, ranks.zero) == (made.quality.ranking.value, 0.5)
    bins = section(report, "Were the values right?")
    assert isinstance(bins, Curves)
    assert bins.series[1].y == tuple(b.observed for b in made.quality.calibration)


def test_the_demo_has_its_value_function_in_its_report(comparison: Comparison, tmp_path: Path) -> None:
    runs = [
        Trajectory(f"r{k}", "p0", ("begin", f"step {k % 2}"), outcome=float(k % 2), task_id=f"t{k % 5}")
        for k in range(20)
    ]
    value = train_features(runs, out=tmp_path / "value").to_dict()
    (tmp_path / "result.json").write_text(json.dumps({"comparisons": [comparison.to_json()], "value": value}))
    titles = [s.title for s in of_folder(tmp_path).sections]
    assert "Gain against cost" in titles
    assert "Value function: Were the values right?" in titles


def evolution(**changes: Any) -> Evolution:
    def level(mean: float) -> Estimate:
        return Estimate(mean, mean - 0.1, mean + 0.1)

    course = tuple(
        GenerationReport(k, level(0.2 + 0.05 * k), 0.6, 0.01, 0.001, None if k == 0 else 0.3 * k, 1.0, f"w{k}")
        for k in range(4)
    )
    whole = Evolution(
        model="evolved/model",
        weights="w3",
        generations=course,
        validations=(ValidationReport(0, level(0.2)), ValidationReport(4, level(0.4))),
        best=4,
        stopped="all generations are done",
        held_out=HeldOut(8, 2, level(0.2), level(0.5), Estimate(0.3, 0.2, 0.4)),
        moved=True,
        remarks=(),
        rollouts=64,
        found=0,
        failed=1,
        unjudged=0,
        broken_off=0,
        first_failure=None,
        first_unjudged=None,
        tokens=12_345,
        seconds=80.0,
    )
    return replace(whole, **changes)


def test_an_evolution(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(evolution().to_json()))
    report = of_folder(tmp_path)
    assert report.title == "The tuned model is clearly better than the base"
    text = {fact.label: fact.text for fact in report.answer}
    assert "+0.300 (95 % interval +0.200 to +0.400)" in text["What was gained"]
    assert "12,345 tokens" in text["What it cost"]
    curve = section(report, "Reward, generation by generation")
    assert isinstance(curve, Curves)
    assert curve.series[0].x == (0.0, 4.0)
    assert curve.series[1].y == pytest.approx((0.2, 0.25, 0.3, 0.35))
    noise = section(report, "How sure each update was")
    assert isinstance(noise, Curves)
    assert noise.series[0].x == (2.0, 3.0, 4.0), "where it is not known there is no point"
    assert len(section(report, "All generations").rows) == 4


@pytest.mark.parametrize(
    ("difference", "title"),
    [
        (Estimate(0.1, -0.1, 0.3), "The tuned model is not clearly different from the base"),
        (Estimate(-0.2, -0.3, -0.1), "The tuned model is clearly worse than the base"),
    ],
)
def test_no_gain_is_called_none(tmp_path: Path, difference: Estimate, title: str) -> None:
    found = evolution().held_out
    assert found is not None
    (tmp_path / "result.json").write_text(
        json.dumps(evolution(held_out=replace(found, difference=difference), remarks=("nothing moved",)).to_json())
    )
    report = of_folder(tmp_path)
    assert report.title == title
    assert report.warnings == ("nothing moved",)
    (tmp_path / "result.json").write_text(json.dumps(evolution(held_out=None, validations=()).to_json()))
    assert of_folder(tmp_path).title == "4 generations, not measured on held-out tasks"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no JSON that can be read"),
        ("[1]", "no result that has a report"),
        ("[" * 100_000, "no JSON that can be read"),
        ('{"comparisons": [{}]}', "written by another version, or changed"),
        ('{"comparisons": 3}', "written by another version, or changed"),
        ('{"comparisons": [{"arms": [], "difference_selected": 1}]}', "written by another version, or changed"),
        ('{"quality": {"auc": 1}, "measured_on": []}', "written by another version, or changed"),
    ],
)
def test_what_has_no_report_says_so(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        of_folder(tmp_path)


def test_numbers_that_are_none_are_unknown(tmp_path: Path) -> None:
    found = json.dumps(evolution().to_json())
    (tmp_path / "result.json").write_text(found.replace('"signal_to_noise": ', '"signal_to_noise": 1e999, "was": ', 1))
    assert "1e999" in (tmp_path / "result.json").read_text()
    amc.write_report(of_folder(tmp_path), tmp_path / "report.json")


def test_an_empty_folder_says_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"neither result\.json nor amc_value_report\.json"):
        of_folder(tmp_path)


def test_every_section_has_something_to_say(comparison: Comparison) -> None:
    plain = json.loads(json.dumps(comparison.to_json()))
    reports = [comparison_report([plain, plain | {"label": "b"}]), evolution_report(evolution().to_json())]
    sections: list[Section] = [s for report in reports for s in report.sections]
    assert all(s.title and s.lead for s in sections)
