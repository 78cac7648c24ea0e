"""Optimising the skills of an app that knows of none, against a real HTTP server: found, refused, gone on with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.identity import ChangedError
from langgraph_amc.evaluate.evolving.rollouts import OutOfBudgetError, SkillsNotReachedError
from langgraph_amc.evaluate.iterate import TaskOverlapError
from langgraph_amc.evaluate.optimizing import Optimization, Standing
from langgraph_amc.evaluate.optimizing.history import History, HistoryError, Trial
from langgraph_amc.evaluate.optimizing.report import changes
from langgraph_amc.evaluate.runner import NoRewardError
from langgraph_amc.skills import Edit, Evidence, Proposal, Rejected, Skill, SkillLibrary
from langgraph_amc.skills.validation import problems_in
from langgraph_amc.tasks import TaskSet
from langgraph_amc.trajectories.store import TrajectoryStore
from tests.evaluate.optimizing.worlds import SIZES, optimize
from tests.support import parcels
from tests.support.openai_server import OpenAIServer, ServerError

WEIGH = "Always weigh the parcel."
INSURE = "Always insure the parcel."
HURRY = "Always skip the checks to save time."


class Fixed:
    """Proposes the same texts in every round, each as a section; keeps what it was shown."""

    name = "fixed"

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.shown: list[tuple[SkillLibrary, Evidence, Sequence[Rejected]]] = []

    async def propose(
        self, library: SkillLibrary, evidence: Evidence, rejected: Sequence[Rejected], limit: int
    ) -> tuple[Proposal, ...]:
        self.shown.append((library, evidence, tuple(rejected)))
        return tuple(
            Proposal((Edit("create skill", "desk", f"Rule {text[7:13]}", text, "How to quote parcels."),), self.name)
            for text in self.texts
        )


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as running:
        running.reply = parcels.reply
        patch = pytest.MonkeyPatch()
        patch.setenv("OPENAI_API_BASE", running.base_url)
        patch.setenv("OPENAI_API_KEY", "none")
        yield running
        patch.undo()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parcels.made(tmp_path_factory.mktemp("desk"), **SIZES)


@pytest.fixture(scope="module")
def seen() -> list[Standing]:
    return []


@pytest.fixture(scope="module")
def found(server: OpenAIServer, world: Path, seen: list[Standing]) -> Optimization:
    """Three rules that are always proposed: one useful, one useless, one harmful."""
    proposer = Fixed(HURRY, WEIGH, "Always greet the customer by name.")
    return optimize(world, "found", proposer=proposer, progress=seen.append)


def test_the_useful_rule_is_taken_and_the_others_are_not(found: Optimization, world: Path) -> None:
    [taken] = found.accepted
    assert taken.proposal.edits[0].text == WEIGH
    assert {t.proposal.edits[0].text for t in found.trials if t.outcome == "rejected"} >= {HURRY}
    library = SkillLibrary.read(found.skills)
    assert [s.body for s in library] == [f"## Rule weigh \n\n{WEIGH}".replace(" \n", "\n")]
    assert problems_in(found.skills) == []
    assert found.held_out is not None
    assert found.held_out.new.mean > found.held_out.old.mean
    assert (found.held_out.tasks, found.held_out.repeats, found.held_out.looks) == (6, 2, 1)
    assert "new − old" in found.to_text()


def test_what_is_kept_says_what_was_done_and_why(found: Optimization, world: Path) -> None:
    text = (world / "found" / "changes.md").read_text()
    assert f"+{WEIGH}" in text
    assert "p = " in text
    assert "## Not taken" in text
    assert f"> {HURRY}" in text
    assert "| new − old |" in text
    told = json.loads((world / "found" / "result.json").read_text())
    assert told == found.to_json()
    with TrajectoryStore(world / "found" / "trajectories.sqlite") as store:
        assert store.counts().trajectories == found.rollouts
        phases = {run.metadata["optimizing"] for run in store.runs()}
        assert phases == {"train", "validation", "held-out"}


def test_champion_and_candidate_meet_the_same_seeds(server: OpenAIServer, found: Optimization) -> None:
    seeds: dict[str, set[tuple[str, int]]] = {}
    for body in server.requests:
        said = body["messages"]
        if "Quote parcel validation" in said[-1]["content"]:
            seeds.setdefault(said[0]["content"], set()).add((said[-1]["content"], body["seed"]))
    base = seeds["You are a clerk at a parcel desk."]
    assert len(base) == SIZES["validation"] * 2
    assert len(seeds) == 1 + 3 + sum(t.round == 1 and t.outcome == "rejected" for t in found.trials)
    assert all(asked <= base for asked in seeds.values())


def test_progress_says_what_it_may_take_before_it_takes_it(found: Optimization, seen: list[Standing]) -> None:
    planned = next(s for s in seen if s.plan is not None)
    assert planned.tokens <= 2 * 110
    assert planned.plan is not None
    assert planned.plan.rollouts == 32 + 2 * 16 + 8 * 32 + 2 * 12
    assert "at most 8 candidates and 344 rollouts, 32 per candidate" in str(planned.plan)
    assert seen[-1].tried == len(found.trials)
    assert seen[-1].tokens == found.tokens > 0
    assert found.rollouts <= planned.plan.rollouts


def test_the_same_call_finds_everything_done(server: OpenAIServer, found: Optimization, world: Path) -> None:
    before, proposer = len(server.requests), Fixed("never asked")
    again = optimize(world, "found", proposer=proposer)
    assert len(server.requests) == before
    assert proposer.shown == []
    assert (again.trials, again.held_out, again.rollouts) == (found.trials, found.held_out, 0)
    with pytest.raises(ConfigurationError, match="other repeats"):
        optimize(world, "found", repeats=3)
    with pytest.raises(HistoryError, match="another library"):
        optimize(world, "found", skills=SkillLibrary((Skill("a", "b."),)))


def test_a_run_goes_on_longer_and_says_that_held_out_tasks_are_no_longer_fresh(
    server: OpenAIServer, found: Optimization, world: Path
) -> None:
    proposer = Fixed(HURRY, WEIGH, INSURE)
    before = SkillLibrary.read(found.skills)
    longer = optimize(world, "found", rounds=3, proposer=proposer)
    assert longer.trials[: len(found.trials)] == found.trials
    [(library, _, rejected)] = proposer.shown
    assert library == before
    assert any(old.proposal.edits[0].text == HURRY for old in rejected)
    tried = {t.proposal.edits[0].text: t.outcome for t in longer.trials if t.round == 2}
    assert tried.keys() == {WEIGH, INSURE}  # the harmful one is not tried again
    assert tried[WEIGH] == "stale"
    assert longer.held_out is not None
    assert longer.held_out.looks == 1 + (tried[INSURE] == "accepted")
    again = replace(longer, held_out=replace(longer.held_out, looks=2))
    assert "looked at for 2 libraries: they are no longer fresh" in again.to_text()


def test_a_rule_that_repeats_a_held_out_answer_is_refused(server: OpenAIServer, world: Path) -> None:
    reference = "the number of the parcel is written below"
    every = parcels.tasks(**SIZES)
    held_out = TaskSet(replace(task, reference=reference) for task in every.split("held-out"))
    leaking = "Always weigh the parcel: the number of the parcel is written below."
    found = optimize(world, "leak", proposer=Fixed(leaking), held_out=held_out, rounds=1)
    [trial] = found.trials
    assert trial.outcome == "refused"
    assert reference in trial.reason
    assert not found.changed
    assert found.held_out is None


def test_a_saturated_app_is_said_so_before_anything_is_proposed(server: OpenAIServer, world: Path) -> None:
    best = SkillLibrary((Skill("desk", "d.", f"{WEIGH}\n{INSURE}"),))
    before, proposer = len(server.requests), Fixed(HURRY)
    found = optimize(world, "saturated", skills=best, proposer=proposer, measured=1)
    assert "saturated" in found.stopped
    assert proposer.shown == []
    assert len(server.requests) - before == 16
    assert SkillLibrary.read(found.skills) == best


def test_a_budget_that_buys_too_little_says_so_before_it_is_spent(server: OpenAIServer, world: Path) -> None:
    before = len(server.requests)
    with pytest.raises(ConfigurationError, match=r"a budget of 90 calls buys no candidate.* 104 rollouts"):
        optimize(world, "poor", budget=amc.Budget(calls=90))
    assert len(server.requests) == before
    seen: list[Standing] = []
    found = optimize(world, "poor", budget=amc.Budget(tokens=5000), progress=seen.append)
    assert "the budget pays for about" in found.stopped
    assert "the budget buys about 0 candidates: too few" in str(seen[-1].plan)
    assert len(server.requests) - before == 2


def test_a_budget_keeps_what_the_comparison_takes_and_a_larger_one_goes_on(server: OpenAIServer, world: Path) -> None:
    proposer = Fixed(HURRY, "Always greet the customer by name.", WEIGH)
    found = optimize(world, "short", proposer=proposer, budget=amc.Budget(tokens=110 * 160))
    assert "24 of them for the comparison at the end" in found.stopped
    assert 1 <= len(found.trials) < 3
    assert found.tokens <= 110 * 160
    more = optimize(world, "short", proposer=proposer)
    assert more.trials[: len(found.trials)] == found.trials
    assert len(more.trials) > len(found.trials)


def test_seconds_that_run_out_in_the_middle_leave_a_library_and_a_run_to_go_on_with(
    server: OpenAIServer, world: Path
) -> None:
    server.delay = 0.3
    try:
        with pytest.raises(OutOfBudgetError, match="the best library so far is in"):
            optimize(world, "slow", budget=amc.Budget(seconds=1.5), concurrency=4, measured=1)
    finally:
        server.delay = 0.0
    assert problems_in(world / "slow" / "skills") == []
    with TrajectoryStore(world / "slow" / "trajectories.sqlite") as store:
        ended = store.counts().trajectories
    found = optimize(world, "slow", proposer=Fixed(), measured=1)
    assert 0 < found.found == ended


def test_an_app_that_takes_no_skills_is_found_out_at_once(server: OpenAIServer, world: Path) -> None:
    (world / "deaf.py").write_text(
        "from langgraph.graph import END, START, MessagesState, StateGraph\n"
        "g = StateGraph(MessagesState)\n"
        "g.add_node('speak', lambda state: {'messages': [('ai', 'hello')]})\n"
        "g.add_edge(START, 'speak')\ng.add_edge('speak', END)\ngraph = g.compile()\n"
    )
    every = parcels.tasks(**SIZES)
    with pytest.raises(SkillsNotReachedError, match="SkillsMiddleware"):
        amc.optimize(
            f"{world}/deaf.py:graph",
            every.split("train"),
            f"{world}/agent.py:accepted",
            validation=every.split("validation"),
            out=world / "deaf",
        )


def test_errors_of_the_provider_are_missing_and_never_zero(server: OpenAIServer, world: Path) -> None:
    def failing(body: dict[str, Any], number: int) -> Any:
        if "skip the checks" in body["messages"][0]["content"] and body["seed"] % 2:
            raise ServerError(400, "no")
        return parcels.reply(body, number)

    server.reply = failing
    try:
        found = optimize(world, "failing", proposer=Fixed(HURRY), rounds=1)
    finally:
        server.reply = parcels.reply
    [trial] = found.trials
    assert trial.outcome == "rejected"
    assert "have no reward" in trial.reason
    assert found.failed > 0

    def broken(body: dict[str, Any], number: int) -> Any:
        raise ServerError(400, "no")

    server.reply = broken
    try:
        with pytest.raises(NoRewardError, match="all 2 rollouts failed"):
            optimize(world, "broken")
    finally:
        server.reply = parcels.reply


def test_runs_from_elsewhere_are_evidence_but_not_those_of_other_tasks(
    server: OpenAIServer, world: Path, found: Optimization
) -> None:
    with TrajectoryStore(world / "found" / "trajectories.sqlite") as store:
        more = list(store.trajectories())
    proposer = Fixed(WEIGH)
    optimize(world, "more", proposer=proposer, evidence=more, rounds=1, seed=9)
    [(_, evidence, _)] = proposer.shown
    shown = [t for c in evidence.contrasts for t in (c.better, c.worse)] + [*evidence.failures, *evidence.successes]
    assert {t.task_id for t in shown} <= set(parcels.tasks(**SIZES).split("train").ids)
    assert {t.run_id for t in shown} & {t.run_id for t in more}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"validation": TaskSet()}, ConfigurationError, "0 validation tasks"),
        ({"validation": parcels.tasks(validation=4).split("validation")}, ConfigurationError, "it takes 5 at least"),
        ({"held_out": parcels.tasks(**SIZES).split("train")}, TaskOverlapError, "hold out"),
        ({"validation": [1]}, ConfigurationError, "TaskSet"),
        ({"rounds": 0}, ConfigurationError, "rounds"),
        ({"alpha": 0}, ConfigurationError, "alpha"),
        ({"screen": 2}, ConfigurationError, "screen"),
        ({"success": "all"}, ConfigurationError, "success"),
        ({"concurrency": 0}, ConfigurationError, "concurrency"),
        ({"options": {"particles": 4}}, ConfigurationError, "particles"),
        ({"skills": "./nowhere"}, ConfigurationError, "leave it out"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(
    server: OpenAIServer, world: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    before = len(server.requests)
    with pytest.raises(error, match=said):
        optimize(world, "wrong", **changes)
    assert len(server.requests) == before
    assert not (world / "wrong" / "history.jsonl").exists()


def test_the_reviewer_reads_why_nothing_was_taken() -> None:
    library = SkillLibrary((Skill("desk", "How to quote.", "Weigh."),))
    edit = Edit("delete skill", "gone", reason="Nobody reads it.")
    stale = Trial(0, 0, Proposal((edit,), "fixed"), "stale", "it does not fit the champion", library.digest)
    text = changes(library, library, [stale], None, "saturated: 1 of 8 tasks leave something to gain")
    assert "Nothing was taken: saturated: 1 of 8 tasks leave something to gain." in text
    assert "- delete skill gone: stale, it does not fit the champion" in text


def test_rollouts_that_never_had_a_reward_are_told_as_such_when_it_is_gone_on_with(
    server: OpenAIServer, world: Path
) -> None:
    with pytest.raises(NoRewardError, match="could be judged"):
        optimize(world, "unjudged", reward=unjudged)
    with pytest.raises(NoRewardError, match=r"earlier call has a reward.*another folder"):
        optimize(world, "unjudged", reward=unjudged)


def unjudged(run: amc.FinishedRun) -> None:
    """No reward of any run."""


def test_the_folder_that_is_written_is_not_the_one_to_start_from(server: OpenAIServer, world: Path) -> None:
    (world / "same" / "skills").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="copy it elsewhere"):
        optimize(world, "same", skills=world / "same" / "skills")


async def test_inside_an_event_loop_it_names_the_function_to_await(world: Path) -> None:
    with pytest.raises(ConfigurationError, match="aoptimize"):
        optimize(world, "loop")


def test_a_history_that_is_damaged_or_of_another_app_is_not_gone_on_with(
    server: OpenAIServer, world: Path, found: Optimization, tmp_path: Path
) -> None:
    shutil.copytree(world / "found", world / "copy")
    path = world / "copy" / "history.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    about, base = json.loads(lines[0])["about"], json.loads(lines[0])["base"]
    path.write_bytes(b"".join(lines) + b'{"record":"tri')  # torn by a kill
    with History(path, about, base) as history:
        assert len(history.lines) == len(lines) - 1
        with pytest.raises(HistoryError, match="another process"):
            History(path, about, base)
    assert path.read_bytes() == b"".join(lines)
    path.write_bytes(lines[0] + b"garbage\n" + lines[1])
    with pytest.raises(HistoryError, match="damaged in line 2"):
        History(path, about, base)
    path.write_bytes(b"my notes\n")
    with pytest.raises(HistoryError):
        History(path, about, base)
    assert path.read_bytes() == b"my notes\n"
    other = parcels.made(tmp_path / "other", **SIZES)
    text = (other / "agent.py").read_text().replace('m.content == "accepted"', 'm.content != "refused"')
    (other / "agent.py").write_text(text)
    shutil.copytree(world / "found", other / "found")
    with pytest.raises(ChangedError, match="accept_changes"):
        optimize(other, "found")
