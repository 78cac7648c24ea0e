"""Reports of optimize and coevolve: what was tried, its evidence, the gate's word, and what it brought held out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from langgraph_amc.evaluate.coevolving.report import Coevolution
from langgraph_amc.evaluate.coevolving.report import Trial as Tried
from langgraph_amc.evaluate.coevolving.sharing import Sharing
from langgraph_amc.evaluate.evolving.report import HeldOut as Compared
from langgraph_amc.evaluate.optimizing.history import Trial
from langgraph_amc.evaluate.optimizing.report import HeldOut, Optimization, changes
from langgraph_amc.evaluate.statistics import Estimate
from langgraph_amc.report.page import to_html
from langgraph_amc.report.sections import Changes, Forest, Report
from langgraph_amc.report.sources import of_folder
from langgraph_amc.skills.edits import apply
from langgraph_amc.skills.gate import Verdict
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Citation, Edit, Proposal
from tests.report.test_documents import evolution

GAIN = Estimate(0.2, 0.05, 0.35)
YES = Verdict(True, 0.25, 0.1, 0.4, 0.01, 0.05, 12, 6, 1, 0, "better on 6 of 12 tasks")
NO = Verdict(False, -0.1, -0.3, 0.1, 0.8, 0.05, 12, 1, 3, 0, "no better than the champion")
EDIT = Edit(
    "create skill",
    "digging",
    "Where to dig",
    "Dig where the ground is soft.\nNever dig twice.",
    "When to dig and where",
    "runs that dug twice failed",
    (Citation("t1", "r1", "p0", "found nothing <b>twice</b>"),),
    (Citation("t2", "r2", "p1"),),
)


def optimization() -> Optimization:
    base, held_out = SkillLibrary(), HeldOut(10, 2, Estimate(0.4, 0.3, 0.5), Estimate(0.6, 0.5, 0.7), GAIN, 1)
    taken = Trial(0, 0, Proposal((EDIT,), "llm"), "accepted", YES.reason, "d", YES)
    other = Trial(1, 0, Proposal((replace(EDIT, skill="resting"),), "llm"), "rejected", NO.reason, "d", NO)
    trials = (other, taken)
    return Optimization(
        skills="optimized/skills",
        changes=changes(base, apply(base, [EDIT]), trials, held_out),
        changed=True,
        trials=trials,
        rounds=2,
        stopped="all rounds are done",
        validation_old=Estimate(0.4, 0.3, 0.5),
        validation_new=Estimate(0.7, 0.6, 0.8),
        held_out=held_out,
        archive=(),
        rollouts=120,
        found=10,
        failed=2,
        unjudged=0,
        answers=0,
        tokens=54_321,
        seconds=30.0,
    )


def told(tmp_path: Path, found: Optimization | Coevolution) -> Report:
    (tmp_path / "result.json").write_text(json.dumps(found.to_json()))
    report = of_folder(tmp_path)
    page = to_html(report)
    assert "<b>twice" not in page
    return report


def test_an_optimization(tmp_path: Path) -> None:
    report = told(tmp_path, optimization())
    assert report.title == "The new skills are clearly better"
    text = {fact.label: fact.text for fact in report.answer}
    assert "earns 0.600 with the new skills, and 0.400 before: +0.200" in text["What was gained"]
    assert "1 accepted, 1 rejected" in text["How it went"]
    assert "54,321 tokens" in text["What it cost"]
    library, proposals = [s for s in report.sections if isinstance(s, Changes)]
    assert ("+", "Never dig twice.") in library.changes[0].lines
    first, second = proposals.changes
    assert (first.accepted, second.accepted) == (True, False), "what was taken comes first"
    evidence = {fact.label: fact.text for fact in first.evidence}
    assert evidence["runs for it"] == "t1 (p0) “found nothing <b>twice</b>”"
    assert evidence["runs against it"] == "t2 (p1)"
    assert evidence["gate"].startswith("+0.250, p = 0.01; better on 6, worse on 1 of 12 tasks")
    held_out = next(s for s in report.sections if isinstance(s, Forest))
    assert [row.mean for row in held_out.rows] == [0.4, 0.6, 0.2]


def test_nothing_taken_and_looked_at_twice(tmp_path: Path) -> None:
    whole = optimization()
    assert whole.held_out is not None
    nothing = replace(whole, changed=False, trials=(), held_out=None, changes="", validation_new=None)
    report = told(tmp_path, nothing)
    assert report.title == "No change of the skills was good enough to be taken"
    assert not report.sections
    again = told(tmp_path, replace(whole, held_out=replace(whole.held_out, looks=3)))
    assert "looked at for 3 libraries" in again.warnings[0]


def coevolution() -> Coevolution:
    course = evolution()
    return Coevolution(
        skills="coevolved/skills",
        model=None,
        library="abc",
        weights="w",
        generations=course.generations,
        trials=(
            Tried(0, 1, ("create skill digging",), ("why",), YES, True),
            Tried(0, 1, ("create skill resting",), ("why",), NO, False),
        ),
        refused=("create skill knowing: it repeats the reference of a task: “under the oak”",),
        validations=course.validations,
        best=4,
        stopped="all generations are done",
        held_out=Compared(10, 2, Estimate(0.4, 0.3, 0.5), Estimate(0.6, 0.5, 0.7), GAIN),
        sharing=Sharing(train=100, weights=90, gate=80, both=75, proposer=20),
        rollouts=120,
        found=0,
        failed=0,
        tokens=99,
        seconds=9.0,
    )


def test_a_coevolution(tmp_path: Path) -> None:
    report = told(tmp_path, coevolution())
    assert report.title == "Clearly better after co-evolution"
    text = {fact.label: fact.text for fact in report.answer}
    assert "2 changes of the skills that were tried 1 were kept" in text["How it went"]
    assert "1 proposal repeated the reference of a task" in text["How it went"]
    assert "90 told the weights, 80 the gate and 75 both" in text["Shared rollouts"]
    tried = next(s for s in report.sections if s.title == "Changes of the skills that were tried")
    assert isinstance(tried, Forest)
    assert [(row.label[:4], row.mean) for row in tried.rows] == [("kept", 0.25), ("drop", -0.1)]
    assert any(s.title == "Reward, generation by generation" for s in report.sections)
