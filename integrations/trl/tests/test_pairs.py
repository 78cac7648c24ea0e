"""Pairs from trees of runs, by hand: who is compared with whom, and what nobody knows is not held against anyone."""

from __future__ import annotations

import math
from typing import Any

import pytest
from langgraph_amc_trl import labelled_runs, selected_runs, sibling_pairs

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.trajectories import Trajectory
from langgraph_amc.value.targets import RESAMPLED


def said(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def run(
    name: str, answers: str, outcome: float | None, /, run_id: str = "r", task: str = "t", **more: Any
) -> Trajectory:
    """A run that answered these letters one by one, each followed by the same word of the world."""
    segments = (said("user", "go"), *(said("assistant", letter) + said("user", "next") for letter in answers))
    return Trajectory(run_id, name, segments, outcome=outcome, task_id=task, **more)


def letters(messages: Any) -> str:
    return "".join(m["content"] for m in messages if m["role"] == "assistant")


def shown(trajectories: list[Trajectory], **options: Any) -> set[tuple[str, str, str, float, float]]:
    return {
        (letters(p.prompt), letters(p.chosen), letters(p.rejected), p.chosen_return, p.rejected_return)
        for p in sibling_pairs(trajectories, **options).pairs
    }


TREE = [run("p0", "abc", 1.0), run("p1", "abd", 0.0), run("p2", "axe", 0.5), run("p3", "fgh", 0.0)]


def test_each_fork_gives_its_best_and_its_worst() -> None:
    assert shown(TREE) == {("", "a", "f", 0.5, 0.0), ("ab", "c", "d", 1.0, 0.0)}
    assert shown(TREE, completion="rest") == {
        ("", "abc", "fgh", 1.0, 0.0),
        ("a", "bc", "xe", 1.0, 0.5),
        ("ab", "c", "d", 1.0, 0.0),
    }
    assert shown(TREE, margin=0.6) == {("ab", "c", "d", 1.0, 0.0)}


def test_pairs_say_where_they_are_from_and_end_with_what_the_policy_said() -> None:
    [pair] = (p for p in sibling_pairs(TREE, completion="rest").pairs if p.step == 1)
    assert (pair.task, pair.run, pair.margin) == ("t", "r", 0.5)
    assert [m["role"] for m in pair.prompt] == ["user", "assistant", "user"]
    assert [m["role"] for m in pair.chosen] == ["assistant", "user", "assistant"]


@pytest.mark.parametrize("status", ["pruned", "truncated", "interrupted", "finished"])
def test_an_unknown_return_is_no_failure(status: Any) -> None:
    fair = {RESAMPLED: [[2, 0.0]]}  # of the boundary at which one was pruned: all had the same chance
    runs = [run("p0", "ab", 1.0, metadata=fair), run("p1", "cd", None, status=status)]
    found = sibling_pairs(runs)
    assert not found.pairs
    assert sum(found.left_out.values()) == 1
    assert shown([*runs, run("p2", "ef", 0.0, metadata=fair)]) == {("", "a", "e", 1.0, 0.0)}


def test_a_run_that_broke_has_what_it_had_earned() -> None:
    broken = run("p1", "cd", None, status="failed", rewards=(0.25, 0.0))
    assert shown([run("p0", "ab", 1.0), broken]) == {("", "a", "c", 1.0, 0.25)}


def test_descendants_of_a_resampling_count_as_often_as_the_policy_would_have_come_there() -> None:
    """Two particles at boundary 1: V gave `a` three of four places, so each of its three runs counts a third."""
    better, worse = ([[1, math.log(3.0)]], [[1, 0.0]])
    runs = [
        run("p0", "ab", 1.0, metadata={RESAMPLED: better}),
        run("p2", "ac", 0.0, metadata={RESAMPLED: better}, parent="p0", forked_at=1),
        run("p3", "ad", 0.0, metadata={RESAMPLED: better}, parent="p0", forked_at=1),
        run("p1", "ae", 0.0, metadata={RESAMPLED: worse}),  # another founder that said the same
        run("p4", "zy", 0.1),
    ]
    [root] = [p for p in sibling_pairs(runs).pairs if p.step == 0]
    # at the root: before the boundary, so a third each, and all of p1
    assert (letters(root.chosen), letters(root.rejected)) == ("a", "z")
    assert root.chosen_return == pytest.approx((1 / 3) / (1 / 3 + 1 / 3 + 1 / 3 + 1))
    # states before a fork that was not put on record are not compared; those after it are
    bare = [run("p0", "ab", 1.0), run("p2", "ac", 0.0, parent="p0", forked_at=1), run("p1", "xy", 0.0)]
    assert shown(bare) == {("a", "b", "c", 1.0, 0.0)}


def test_what_the_world_did_is_not_the_policys() -> None:
    start = (said("user", "go"),)
    lucky = Trajectory(
        "r", "p0", (*start, said("assistant", "a") + said("user", "6"), said("assistant", "b")), outcome=1.0
    )
    unlucky = Trajectory(
        "r", "p1", (*start, said("assistant", "a") + said("user", "1"), said("assistant", "b")), outcome=0.0
    )
    assert not sibling_pairs([lucky, unlucky]).pairs


def test_equals_make_no_pair() -> None:
    found = sibling_pairs([run("p0", "ab", 1.0), run("p1", "cd", 1.0)])
    assert not found.pairs
    assert found.left_out == {"forks whose ways on are alike": 1}


def test_runs_of_one_task_are_compared_on_request_and_a_prompt_has_one_pair() -> None:
    runs = [run("p0", "ab", 1.0, run_id="r"), run("p0", "cd", 0.0, run_id="s")]
    assert not shown(runs)
    assert shown(runs, across_runs=True) == {("", "a", "c", 1.0, 0.0)}
    twice = [run(name, answers, r, run_id=i) for i in "rs" for name, answers, r in (("p0", "a", 1.0), ("p1", "b", 0.0))]
    assert len(sibling_pairs(twice).pairs) == 1
    other = [run(f"p{k}", "ab"[k], 1.0 - k, task=task) for k in range(2) for task in "tu"]
    assert not sibling_pairs([t for t in other if t.particle == "p0"]).pairs


def test_transcripts_of_another_kind_are_counted() -> None:
    odd = [Trajectory("r", f"p{k}", ("Goal", f"{k}"), outcome=float(k), task_id="t") for k in range(2)]
    assert sibling_pairs(odd).left_out == {"no conversation, or a rewritten one": 2}
    assert selected_runs(odd).left_out == {"no conversation, or a rewritten one": 2}


@pytest.mark.parametrize("options", [{"completion": "whole"}, {"margin": -1}, {"margin": math.nan}])
def test_a_setting_that_cannot_work_is_named(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        sibling_pairs(TREE, **options)


@pytest.mark.parametrize("choose", [selected_runs, labelled_runs])
@pytest.mark.parametrize("success", [math.nan, "1"])
def test_a_success_is_a_number(choose: Any, success: Any) -> None:
    with pytest.raises(ConfigurationError, match="success"):
        choose(TREE, success=success)


def test_selected_and_labelled_runs() -> None:
    runs = [
        *TREE,
        run("p4", "abc", 1.0),
        run("p5", "q", 1.0, task="u"),
        run("p6", "qqq", 1.0, task="u"),
        run("p7", "z", None, status="pruned", task="u"),
    ]
    chosen = selected_runs(runs)
    assert [(e.task, letters(e.completion)) for e in chosen.examples] == [("t", "abc"), ("u", "q")]
    assert chosen.left_out == {"pruned": 1, "not a success": 3}
    assert len(selected_runs(runs, per_task=5).examples) == 3  # equal ones count once
    assert len(selected_runs(runs, success=0.5, per_task=5).examples) == 4
    labelled = labelled_runs(runs)
    assert [e.desirable for e in labelled.examples] == [True, False, False, False, True, True, True]
    assert labelled.left_out == {"pruned": 1}
