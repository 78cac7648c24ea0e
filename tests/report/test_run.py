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
from langgraph_amc.runtime.result import ParticleReport
from langgraph_amc.trajectories.types import Status
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
    facts = {fact.label: fact.text for fact in report.answer}
    assert f"amc resume {left.id[:12]}" in facts["How it can go on"] or left.status == "running"
    assert "so far." in facts["What it cost"], "how long it ran is not known"
    assert "seconds" not in facts["What it cost"]


def test_the_rule_that_chose_is_named() -> None:
    text = account(of_result(world.run(select=amc.vote(key=amc.last_number), effects="pure").amc))[1]
    why = next(fact.text for fact in text if fact.label == "Why this one")
    assert "vote" in why
    assert "most weight behind it" in why


def test_a_check_at_which_nobody_was_stopped_is_not_told_as_one(told: Told) -> None:
    first = next(c for c in told.result.checks if c.resampled)
    calm = replace(first, boundary=first.boundary - 1, ancestors=tuple(range(len(first.particles))))
    record = of_result(replace(told.result, checks=(calm, *told.result.checks)))
    how = next(fact.text for fact in account(record)[1] if fact.label == "How it was found")
    assert f"After step {calm.boundary} they were compared too, and nobody was replaced" in how
    assert f"({len(told.result.pruned)} in all)" in how
    report = run_report(replace(told.result, checks=(calm, *told.result.checks)))
    for title in ("Values on the way", "How many runs still counted"):
        chart = titled(report, title)
        assert isinstance(chart, Curves)
        assert calm.boundary not in [at for at, _ in chart.marks]
        assert first.boundary in [at for at, _ in chart.marks]
    only = account(of_result(replace(told.result, checks=(calm,))))[1]
    assert "compared at 1 check, and nobody was replaced" in next(f.text for f in only if f.label == "How it was found")


def test_the_weight_at_an_end_is_the_one_in_the_table() -> None:
    result = world.run(effects="pure", select="best_value", reward=None, seed=2).amc
    weighed = tuple(
        replace(p, trajectory=replace(p.trajectory, log_weight=float(k))) for k, p in enumerate(result.particles)
    )
    tree = tree_of(run_report(replace(result, particles=weighed)))
    ends = {s.particle: s for s in tree.states if s.fate in ("selected", "finished")}
    shares = {b.name: b.share for b in tree.branches if b.share is not None}
    assert {name: s.share for name, s in ends.items() if not s.weighed} == {
        name: share for name, share in shares.items() if not ends[name].weighed
    }
    assert len(set(shares.values())) == len(weighed)
    assert not any(ends[name].weighed for name in shares)
    assert sum(shares.values()) == pytest.approx(1)


def test_the_marked_blocks_are_the_line_and_not_what_its_ancestors_became(told: Told) -> None:
    record, stack = of_result(told.result), titled(told.report, "Weights at each check")
    assert isinstance(stack, Stack)
    for at, main, shares in zip(stack.x, stack.main, stack.shares, strict=True):
        assert main is None or (main, at) in record.path
        assert main is None or shares[stack.names.index(main)] is not None
    assert sum(main is not None for main in stack.main) >= 2


def test_a_run_in_which_all_failed_does_not_say_that_one_came_to_an_end(told: Told) -> None:
    def ended(status: Status) -> amc.AMCResult:
        def changed(p: ParticleReport) -> ParticleReport:
            return replace(p, reward=None, trajectory=replace(p.trajectory, status=status, error="Oh: no"))

        found = {p.name: changed(p) for p in told.result.particles}
        return replace(told.result, particles=tuple(found.values()), winner=found[told.result.winner.name])

    name, among = told.result.winner.name, len(told.result.particles)
    for status, why, end in (
        ("failed", f"Nobody came to an end: {among} runs failed, and {name} stands for all.", "It failed: Oh: no."),
        ("truncated", f"Of {among} runs that were cut off before their end, {name}", "It was stopped before its end"),
        ("interrupted", f"Of {among} runs that paused, {name}", "It paused before an effect or a question."),
    ):
        report = run_report(ended(status))  # type: ignore[arg-type]
        facts = {fact.label: fact.text for fact in report.answer}
        assert facts["Why this one"].startswith(why)
        state = next(s for s in tree_of(report).states if s.fate == "selected")
        assert end in state.why
        assert "came to its end" not in state.why


def test_it_is_said_when_nobody_knows_whether_the_answer_is_right(told: Told) -> None:
    guessed = world.run(effects="pure", reward=None, select="best_value").amc
    why = {f.label: f.text for f in run_report(guessed).answer}["Why this one"]
    assert why.endswith("Whether the answer is right was not observed; the rating is a prediction.")
    assert "observed;" not in {f.label: f.text for f in told.report.answer}["Why this one"]


def test_equals_are_told_apart_by_weight_only_where_it_does() -> None:
    flat = world.run(effects="pure", reward=None, value=lambda t: [0.5] * len(t), select="best_value", resample=None)
    why = {f.label: f.text for f in run_report(flat.amc).answer}["Why this one"]
    assert "as have 7 others; the first of those with the most weight was taken." in why
    first, *rest = flat.amc.particles
    assert flat.amc.winner.name == first.name
    heavy = replace(first, trajectory=replace(first.trajectory, log_weight=(first.trajectory.log_weight or 0) + 1))
    why = {f.label: f.text for f in run_report(replace(flat.amc, particles=(heavy, *rest))).answer}["Why this one"]
    assert "; of those, it has the most weight." in why


def test_rows_are_free_again_when_their_chain_has_ended() -> None:
    # a root that goes on, with a child that ends, and another that begins after that
    parents = [None, 0, 0, 1, 3, 3]
    steps = [0, 1, 1, 2, 3, 3]
    selected = [True, True, False, True, True, False]
    assert rows(parents, steps, selected) == [0, 0, 1, 0, 0, 1]
    assert rows(parents, steps, [False] * 6) == [0, 0, 1, 0, 0, 1]
