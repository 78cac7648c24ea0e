"""The report of a run says what the run's record says: states, weights, fates, costs, in numbers and in words."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import langgraph_amc as amc
from langgraph_amc.report.answer import account, plain_run
from langgraph_amc.report.layout import rows
from langgraph_amc.report.record import of_journal, of_result
from langgraph_amc.report.run import run_report
from langgraph_amc.report.sections import Bars, Curves, Genealogy, Report, Stack, Table
from langgraph_amc.runtime.journal import Journal
from tests.report import world
from tests.report.conftest import Told


def tree_of(report: Report) -> Genealogy:
    (tree,) = [s for s in report.sections if isinstance(s, Genealogy)]
    return tree


def titled(report: Report, title: str) -> object:
    (found,) = [s for s in report.sections if s.title == title]
    return found


def test_the_journal_tells_the_same_as_the_result(told: Told) -> None:
    mine, stored = of_result(told.result, "digger"), of_journal(told.info)
    assert len(mine.particles) == len(stored.particles) > 8
    for a, b in zip(mine.particles, stored.particles, strict=True):
        assert replace(a, usage=b.usage) == b
        assert a.usage.tokens == b.usage.tokens
    assert mine.checks == stored.checks
    assert {(e.key, e.state) for e in mine.effects} == {(e.key, e.state) for e in stored.effects}
    for name in ("seed", "status", "winner", "usage", "warnings", "started", "stopped", "abstained", "selected_by"):
        assert getattr(mine, name) == getattr(stored, name), name
    assert run_report(told.info).title == told.report.title
    assert tree_of(run_report(told.info)).states == tree_of(told.report).states


def test_every_step_of_every_particle_is_a_state(told: Told) -> None:
    tree = tree_of(told.report)
    by_id = {state.id: state for state in tree.states}
    assert len(by_id) == len(tree.states)
    for trajectory in told.result.trajectories:
        own = range(0 if trajectory.forked_at is None else trajectory.forked_at + 1, len(trajectory.segments))
        for step in own:
            state = by_id[f"{trajectory.particle}@{step}"]
            assert state.text == trajectory.segments[step]
            assert state.value == (trajectory.values[step] if trajectory.values else None)
            assert state.parent is None or by_id[state.parent].step == step - 1
        if own:
            path, at = [], by_id[f"{trajectory.particle}@{own[-1]}"]
            while at is not None:
                path.insert(0, at.text)
                at = by_id.get(at.parent or "")  # type: ignore[assignment]
            assert tuple(path) == trajectory.segments, "the tree leads back through what the agent saw"
    line = [s for s in tree.states if s.selected]
    assert tuple(s.text for s in line) == told.result.winner.trajectory.segments
    assert {s.lane for s in line} == {0}
    assert Counter((s.step, s.lane) for s in tree.states).most_common(1)[0][1] == 1, "no two are drawn in one place"


def test_weights_and_fates_are_those_of_the_checks(told: Told) -> None:
    tree = tree_of(told.report)
    at = {(s.particle, s.step): s for s in tree.states}
    assert len(tree.weighings) == len(told.result.checks) > 2
    for weighing, check in zip(tree.weighings, told.result.checks, strict=True):
        weights = np.exp(np.array(check.log_weights) - max(check.log_weights))
        assert weighing.shares == pytest.approx(tuple(weights / weights.sum()))
        assert weighing.ess == check.ess
        if check.resampled:
            assert weighing.offspring == tuple(check.ancestors.count(i) for i in range(len(check.particles)))
        for name, share, k in zip(check.particles, weighing.shares, range(len(check.particles)), strict=True):
            state = at[name, check.boundary]
            assert state.weighed
            assert state.share == share
            if check.resampled and weighing.offspring[k] == 0:
                assert state.fate == "pruned"
                assert "Resampling gave its place" in state.why
            elif check.resampled and weighing.offspring[k] > 1:
                assert f"{weighing.offspring[k] - 1} cop" in state.why
    fates = Counter(s.fate for s in tree.states)
    assert fates["selected"] == 1
    assert sum(b.status == "pruned" for b in tree.branches) == len(told.result.pruned)
    winner = at[told.result.winner.name, len(told.result.winner.trajectory.segments) - 1]
    assert winner.fate == "selected"
    assert "the one that was selected" in winner.why


def test_the_answer_names_the_winner_the_reason_and_the_price(told: Told) -> None:
    facts = {fact.label: fact.text for fact in told.report.answer}
    name = told.result.winner.name
    assert told.report.title == f"Particle {name} gave the answer"
    assert "The treasure is worth" in facts["Answer"]
    assert name in facts["Why this one"]
    assert "highest reward" in facts["Why this one"]
    assert f"{told.result.usage.tokens:,} tokens" in facts["What it cost"]
    assert f"{told.result.usage.calls:,} model calls" in facts["What it cost"]
    assert "One plain run takes about" in facts["What it cost"]
    assert "1 effect happened" in facts["What was done to the world"]
    table = titled(told.report, "Effects on the world")
    assert isinstance(table, Table)
    assert sorted(str(row[4]) for row in table.rows) == sorted(e.state for e in told.result.effects)


def test_charts_hold_the_numbers_of_the_record(told: Told) -> None:
    report = told.report
    values, stack = titled(report, "Values on the way"), titled(report, "Weights at each check")
    assert isinstance(values, Curves)
    bold = next(s for s in values.series if s.role == "main")
    known = [(t, v) for t, v in enumerate(told.result.winner.trajectory.values) if v is not None]
    assert list(zip(bold.x, bold.y, strict=True)) == known
    assert isinstance(stack, Stack)
    assert [sum(part or 0 for part in shares) for shares in stack.shares] == pytest.approx([1.0] * len(stack.x))
    bars = titled(report, "Tokens per branch")
    assert isinstance(bars, Bars)
    assert sum(sum(bar.parts) for bar in bars.bars) == told.result.usage.tokens


def test_values_are_held_against_what_came() -> None:
    result = world.run(effects="pure", select="best_value", particles=16, tau=3.0).amc
    report = run_report(result)
    quality = titled(report, "Were the values right?")
    assert isinstance(quality, Curves)
    ended = {p.name for p in result.particles if p.reward is not None}
    known = [
        (t, v, p.reward)
        for p in result.particles
        if p.name in ended
        for t, v in enumerate(p.trajectory.values)
        if v is not None and (p.trajectory.forked_at or -1) < t < len(p.trajectory.segments) - 1
    ]
    pairs = [(a, b) for a, b in itertools.combinations(known, 2) if a[0] == b[0] and a[2] != b[2] and a[1] != b[1]]
    right = np.mean([(a[1] > b[1]) == (a[2] > b[2]) for a, b in pairs])
    assert f"in {100 * right:.0f} % of {len(pairs)} pairs (AUC" in quality.lead
    assert len(quality.series[1].x) >= 2


def test_what_one_plain_run_takes(told: Told) -> None:
    record = of_result(told.result)
    plain = plain_run(record)
    assert plain is not None
    assert plain.tokens < record.usage.tokens
    whole = [p for p in record.particles if p.parent is None and p.status == "finished"]
    if whole:
        assert plain.tokens == pytest.approx(np.mean([p.usage.tokens for p in whole]))
    none_left = replace(record, particles=tuple(replace(p, parent=p.parent or "p0") for p in record.particles))
    estimate = plain_run(none_left)
    assert estimate is not None
    assert estimate.runs == 0
    assert estimate.tokens == pytest.approx(plain.tokens, rel=0.5)


def test_a_run_without_value_or_reward() -> None:
    result = world.run(value=None, reward=None, effects="pure", resample=None).amc
    report = run_report(result)
    facts = {fact.label: fact.text for fact in report.answer}
    assert "not compared on the way" in facts["How it was found"]
    assert "argmax" in facts["Why this one"]
    assert [s.title for s in report.sections] == ["The tree of the run", "Tokens per branch", "All particles"]
    json.dumps(report.to_json(), allow_nan=False)


def test_a_failed_particle_and_a_single_one() -> None:
    def breaks(transcripts: list[str]) -> list[float]:
        return [0.5] * len(transcripts)

    result = world.run(particles=1, value=breaks, effects="pure").amc
    report = run_report(result)
    assert report.title == "Particle p0 gave the answer"
    assert "plain run" not in {f.label: f.text for f in report.answer}["What it cost"]


def test_a_run_that_was_left_has_a_report_too(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def dies(transcripts: list[list[str]]) -> list[float]:
        if max(map(len, transcripts)) > 4:
            raise Killed
        return world.promising(transcripts)

    path = tmp_path / "runs.sqlite"
    with pytest.raises(Killed):
        world.run(path, value=dies)
    with Journal(path, create=False) as journal:
        (left,) = journal.runs()
        report = run_report(journal.show(left.id, transcripts=True))
    assert report.title.startswith("No answer yet: the run is ")
    tree = tree_of(report)
    assert {s.fate for s in tree.states} >= {"running"}
    assert not any(s.selected for s in tree.states)
    assert len(tree.weighings) >= 1


def test_the_rule_that_chose_is_named() -> None:
    text = account(of_result(world.run(select=amc.vote(key=amc.last_number), effects="pure").amc))[1]
    why = next(fact.text for fact in text if fact.label == "Why this one")
    assert "vote" in why
    assert "most weight behind it" in why


def test_rows_are_free_again_when_their_chain_has_ended() -> None:
    # a root that goes on, with a child that ends, and another that begins after that
    parents = [None, 0, 0, 1, 3, 3]
    steps = [0, 1, 1, 2, 3, 3]
    selected = [True, True, False, True, True, False]
    assert rows(parents, steps, selected) == [0, 0, 1, 0, 0, 1]
    assert rows(parents, steps, [False] * 6) == [0, 0, 1, 0, 0, 1]
