"""The loop in a world whose truth is known: what it learns, what it keeps, and that a killed run is as if it had not
been killed."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from langgraph_amc.coevolve.loop import Coevolved, coevolve, standings
from langgraph_amc.coevolve.standing import (
    NOTE,
    library_from_json,
    library_to_json,
    proposal_from_json,
    proposal_to_json,
    replay_skills,
)
from langgraph_amc.coevolve.trials import Trials
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evolution.errors import HistoryError, WeightsError
from langgraph_amc.evolution.history import Header, History, read
from langgraph_amc.evolution.loop import Course, Stopped
from langgraph_amc.evolution.racing import Racing
from langgraph_amc.evolution.schedules import Cosine
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.skills.library import SkillLibrary
from langgraph_amc.skills.types import Citation, Edit, Proposal, Skill
from tests.coevolve.worlds import EFFECT, Killed, Pool, World, effect_of, rules_of

TASKS = tuple(f"task-{i}" for i in range(16))
COURSE = Course(TASKS, generations=20, batch=8, validate_every=0)
STRATEGY = Strategy(population=8, sigma=0.1, alpha_ratio=1.0, seed=3)
TRIALS = Trials(generations=2)


def run(
    file: Path,
    world: World,
    *,
    strategy: Strategy = STRATEGY,
    course: Course = COURSE,
    trials: Trials = TRIALS,
    pool: Pool | None = None,
    start: SkillLibrary | None = None,
    references: tuple[Any, ...] = (),
) -> list[Any]:
    """Start, or go on; the events of this call."""
    if not world.weighty:
        strategy = Strategy(population=strategy.population, antithetic=False, seed=strategy.seed)
    header = Header(
        strategy, "all", "world", World(weighty=world.weighty).hash(), {NOTE: library_to_json(start or SkillLibrary())}
    )

    async def going() -> list[Any]:
        with History(file, header) as history:
            looping = coevolve(course, trials, world, pool or Pool(), history, references)
            async with aclosing(looping) as events:
                return [event async for event in events]

    return asyncio.run(going())


def test_weights_and_skills_are_learnt_from_the_same_rollouts(tmp_path: Path) -> None:
    world = World()
    before = np.sum((world.theta - world.goal) ** 2)
    events = run(tmp_path / "h.jsonl", world)
    assert np.sum((world.theta - world.goal) ** 2) < 0.1 * before
    skills = replay_skills(read(tmp_path / "h.jsonl"))
    assert set(rules_of(skills.champion)) == {"helpful", "useful"}
    assert len(world.ran) == 20 * 8 * 8  # not one rollout more than evolution alone
    assert isinstance(events[-1], Stopped)
    tried = [e for e in events if isinstance(e, Coevolved) and e.verdicts]
    assert len(tried) == len(EFFECT)
    assert all(len(e.record.notes[NOTE]["libraries"]) == 2 for e in tried)


def test_without_weights_it_is_the_same_loop(tmp_path: Path) -> None:
    world = World(weighty=False)
    run(tmp_path / "h.jsonl", world)
    log = read(tmp_path / "h.jsonl")
    assert len(log.records) == 1 + 2 * len(EFFECT) + 1  # evidence, the trials, and one to see that nothing is left
    assert all(record.update.is_zero for record in log.records)
    assert {record.weights for record in log.records} == {"none"}
    assert set(rules_of(replay_skills(log).champion)) == {"helpful", "useful"}


def test_a_harmful_rule_is_never_kept_over_twenty_seeds(tmp_path: Path) -> None:
    kept: list[str] = []
    gained = []
    for seed in range(20):
        world = World(weighty=seed % 2 == 0, noise=0.3)
        strategy = Strategy(population=8, sigma=0.1, alpha_ratio=1.0, seed=seed)
        run(
            tmp_path / f"{seed}.jsonl",
            world,
            strategy=strategy,
            pool=Pool(seed),
            course=replace(COURSE, generations=13),
        )
        champion = replay_skills(read(tmp_path / f"{seed}.jsonl")).champion
        kept += rules_of(champion)
        gained.append(effect_of(champion))
    assert not {"harmful", "wrong"} & set(kept)
    assert np.mean(gained) > 0.9 * (EFFECT["helpful"] + EFFECT["useful"])


def test_several_challengers_at_a_time(tmp_path: Path) -> None:
    world = World()
    trials = Trials(generations=2, challengers=3, alpha=0.1)
    run(tmp_path / "h.jsonl", world, trials=trials)
    log = read(tmp_path / "h.jsonl")
    assert {len(record.notes[NOTE]["libraries"]) for record in log.records} >= {1, 4}
    assert set(rules_of(replay_skills(log).champion)) <= {"helpful", "useful", "idle", "vain"}
    assert effect_of(replay_skills(log).champion) > 0.3


def test_a_rule_that_repeats_an_answer_is_never_tried_and_the_proposer_is_told(tmp_path: Path) -> None:
    world = World(weighty=False)
    events = run(tmp_path / "h.jsonl", world, references=(None, {"answer": ["Do what is helpful."]}))
    log = read(tmp_path / "h.jsonl")
    skills = replay_skills(log)
    assert rules_of(skills.champion) == ["useful"]
    [refused] = [old for old in skills.rejected if old.reason.startswith("it repeats the reference of a task")]
    assert refused.proposal.edits[0].section == "helpful"
    assert "do what is helpful" in refused.reason
    told = [e for e in events if isinstance(e, Coevolved)]
    assert [e.refused for e in told if e.refused] == [(refused,)]
    # it was asked again: neither is the rule tried, nor does the run end with it
    assert len([e for e in told if e.verdicts]) == len(EFFECT) - 1
    again = run(tmp_path / "h.jsonl", World(weighty=False))
    assert [e.skills for e in again[0].known] == [e.skills for e in told]


def test_killed_anywhere_it_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    course = Course(TASKS, generations=7, batch=8, validate_every=0)
    whole = World()
    run(tmp_path / "whole.jsonl", whole, course=course)
    truth = (tmp_path / "whole.jsonl").read_bytes()
    rng = np.random.default_rng(0)
    for turn, lives in enumerate(sorted(rng.integers(1, len(whole.ran), 20).tolist())):
        file, world = tmp_path / f"{turn}.jsonl", World(lives=lives)
        with pytest.raises(Killed):
            run(file, world, course=course)
        if turn % 3 == 0:  # and it died while it wrote
            with file.open("ab") as torn:
                torn.write(truth.splitlines()[-1][: 100 + turn])
        run(file, World(), course=course)
        assert file.read_bytes() == truth


def test_a_history_tells_both_at_every_generation(tmp_path: Path) -> None:
    world = World()
    events = [e for e in run(tmp_path / "h.jsonl", world) if isinstance(e, Coevolved)]
    strategy = STRATEGY
    header = read(tmp_path / "h.jsonl").header
    with History(tmp_path / "h.jsonl", header) as history:
        found = standings(history)
    assert strategy == header.strategy
    assert [weights for weights, _ in found[1:]] == [e.record.weights for e in events]
    assert [library for _, library in found[1:]] == [e.skills.champion for e in events]
    again = run(tmp_path / "h.jsonl", World())
    assert [e.skills for e in again[0].known] == [e.skills for e in events]


def test_a_history_that_was_meddled_with_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    run(file, World(), course=Course(TASKS, generations=4, batch=8, validate_every=0))
    lines = file.read_text().splitlines()
    for change, error in (
        (lambda note: note.update(champion="0" * 24), HistoryError),
        (lambda note: note.update(libraries=["0" * 24]), HistoryError),
        (lambda note: note.pop("verdicts"), HistoryError),
    ):
        told = json.loads(lines[2])
        change(told["notes"][NOTE])
        file.write_text("\n".join([*lines[:2], json.dumps(told), *lines[3:]]) + "\n")
        with pytest.raises(error):
            run(file, World())
    told = json.loads(lines[-1])
    told["weights"] = "0" * 32
    file.write_text("\n".join([*lines[:-1], json.dumps(told)]) + "\n")
    with pytest.raises(WeightsError, match="the model's files or the history have changed"):
        run(file, World())


def test_libraries_and_proposals_survive_being_written() -> None:
    library = SkillLibrary(
        (Skill("rules", "What to do.", "Do: it.\n\n## More\nÄ", {"license": "MIT"}, {"a/b.bin": b"\0\xff"}),)
    )
    assert library_from_json(json.loads(json.dumps(library_to_json(library)))) == library
    cited = Citation("task", "run", "p0", "words")
    proposal = Proposal((Edit("add section", "rules", "More", "x", reason="why", supports=(cited,)),), "someone")
    assert proposal_from_json(json.loads(json.dumps(proposal_to_json(proposal)))) == proposal


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"course": Course(TASKS, racing=Racing(0.2))}, "racing"),
        ({"course": Course(TASKS[:2], generations=9, batch=2)}, "give more tasks"),
        ({"strategy": Strategy(population=2)}, "raise the population to 4"),
        ({"strategy": Strategy(population=8, antithetic=False, baseline="none")}, "baseline 'task'"),
        ({"strategy": Strategy(population=8, sigma=Cosine(0.1, 0.0, 20))}, "end above it"),
        ({"trials": Trials(challengers=4)}, "fewer challengers"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    world = World()
    with pytest.raises(ConfigurationError, match=said):
        run(tmp_path / "h.jsonl", world, **changes)
    assert not world.ran


@pytest.mark.parametrize("wrong", [{"generations": 0}, {"challengers": 0}, {"alpha": 0.0}, {"alpha": 1.0}])
def test_trials_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Trials(**wrong)
