"""Going on with a run: another app or reward, another's folder, an earlier end, and what is said of the outcome."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.exporting import MARK, export_best
from langgraph_amc.evaluate.evolving.identity import ChangedError
from langgraph_amc.evaluate.evolving.report import columns_of
from langgraph_amc.evaluate.evolving.standing import collapsed
from langgraph_amc.evaluate.runner import NoRewardError
from langgraph_amc.evolution import Cosine, HistoryError
from langgraph_amc.evolution.history import Log, read
from langgraph_amc.evolution.replay import load, replay
from langgraph_amc.tasks.loading import load_object
from tests.evaluate.evolve_world import STRATEGY, run, tasks


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (to / path.name).write_bytes(path.read_bytes())
    return to


def edited(world: Path, to: Path, old: str, new: str) -> Path:
    """The same agent in another folder, around the same model, with one change."""
    text = (world / "agent.py").read_text().replace("HERE / 'model'", f"Path({str(world / 'model')!r})")
    assert old in text
    to.mkdir(exist_ok=True)
    (to / "agent.py").write_text(text.replace(old, new))
    return to / "agent.py"


def test_another_reward_or_app_is_refused_unless_it_is_accepted(world: Path, whole: Path, tmp_path: Path) -> None:
    out = copied(whole, tmp_path / "out")
    for changes, message in (
        ({"reward": f"{world}/agent.py:odd"}, r"another reward \('even', now 'odd'\)"),
        ({"reward": load_object(f"{world}/agent.py:odd")}, "another reward"),
        ({"app": f"{world}/agent.py:deaf"}, "another app"),
        ({"options": {"effects": "pure"}}, r"other effects \(None, now 'pure'\)"),
        ({"reward": f"{edited(world, tmp_path / 'r', '% 2 == 0', '% 2 == 1')}:even"}, "reward 'even' has been edited"),
        ({"app": f"{edited(world, tmp_path / 'a', 'go on', 'go back')}:graph"}, "app 'LangGraph' has been edited"),
    ):
        with pytest.raises(ChangedError, match=message) as refused:
            run(world, out, generations=2, **changes)
        assert "--accept-changes" in str(refused.value)
    assert len(read(out / "history.jsonl").records) == 1
    with pytest.warns(UserWarning, match="another reward"):
        found = run(world, out, generations=2, reward=f"{world}/agent.py:odd", accept_changes=True)
    assert len(found.generations) == 2


def test_the_same_app_and_reward_elsewhere_or_as_objects_are_the_same(world: Path, whole: Path, tmp_path: Path) -> None:
    out = copied(whole, tmp_path / "out")
    moved = edited(world, tmp_path / "moved", "I ask nobody", "I still ask nobody")  # in no node of this app
    again = run(world, out, generations=1, app=f"{moved}:graph", reward=load_object(f"{moved}:even"))
    assert again.rollouts == 0


def test_a_folder_of_something_else_is_neither_taken_nor_overwritten(world: Path, whole: Path, tmp_path: Path) -> None:
    for number, name in enumerate(("notes.txt", MARK, "model.safetensors")):
        out = copied(whole, tmp_path / f"out-{number}")
        (out / "model").mkdir()
        (out / "model" / name).write_text('{"weights": "of somebody else"}')
        with pytest.raises(ConfigurationError, match="did not write: move it away"):
            run(world, out, generations=2)
        assert len(read(out / "history.jsonl").records) == 1, "found before anything is run"
        assert (out / "model" / name).read_text() == '{"weights": "of somebody else"}'


def test_another_run_s_model_is_not_taken_for_ours(world: Path, whole: Path, tmp_path: Path) -> None:
    out = copied(whole, tmp_path / "out")
    other = run(world, tmp_path / "other", generations=1, strategy=replace(STRATEGY, seed=6))
    assert other.model is not None
    Path(other.model).rename(out / "model")
    with pytest.raises(ConfigurationError, match="move it away"):
        run(world, out, generations=1)


def test_a_tuned_model_that_was_changed_since_is_kept(world: Path, whole: Path, tmp_path: Path) -> None:
    log, model, folder = read(whole / "history.jsonl"), str(world / "model"), tmp_path / "model"
    export_best(log, 1, model, folder)
    assert export_best(log, 1, model, folder) == folder
    (folder / "README.md").write_text("mine")
    assert export_best(log, 1, model, folder) == folder
    with pytest.raises(ConfigurationError, match=r"README\.md in it is not ours"):
        export_best(log, 0, model, folder)
    (folder / "README.md").unlink()
    export_best(log, 0, model, folder)
    assert json.loads((folder / MARK).read_text())["generations"] == 0
    (folder / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="no longer as this run wrote it"):
        export_best(log, 0, model, folder)
    assert (folder / "config.json").read_text() == "{}"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_around_the_folder_s_appearance_blocks_nothing(
    world: Path, whole: Path, tmp_path: Path, when: str
) -> None:
    log, model, folder = read(whole / "history.jsonl"), str(world / "model"), tmp_path / "model"
    rename = Path.rename

    def crash(path: Path, target: Path) -> None:
        if when == "after":
            rename(path, target)
        os._exit(9)

    def write() -> None:
        Path.rename = crash  # type: ignore[assignment]
        export_best(log, 1, model, folder)

    process = multiprocessing.get_context("fork").Process(target=write)
    process.start()
    process.join(60)
    assert process.exitcode == 9
    assert folder.exists() == (when == "after")
    assert export_best(log, 1, model, folder) == folder
    assert json.loads((folder / MARK).read_text())["weights"] == log.weights
    assert replay(whole / "history.jsonl", model).hash() == log.weights


def test_what_an_earlier_end_has_measured_counts(world: Path, tmp_path: Path) -> None:
    given = {"validation": tasks().split("validation"), "validate_every": 3, "measured": 1}
    first = run(world, tmp_path / "out", generations=1, **given)
    again = run(world, tmp_path / "out", generations=2, **given)
    assert [v.done for v in first.validations] == [0, 1]
    assert [v.done for v in again.validations] == [0, 1, 2]
    assert again.validations[:2] == first.validations
    best = max(again.validations, key=lambda v: v.reward.mean)
    assert again.best == best.done


def test_that_nothing_moved_is_said(world: Path, tmp_path: Path) -> None:
    found = run(world, tmp_path / "out", generations=1, reward=f"{world}/agent.py:level")
    assert not found.moved
    assert "nothing moved: the tuned model is the base" in found.to_text()
    assert f"the base, unchanged, is in {tmp_path}/out/model" in found.to_text()
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["moved"], len(result["remarks"])) == (False, 1)


def test_members_that_have_lost_everything_are_said_at_once_and_at_the_end(world: Path, tmp_path: Path) -> None:
    given = {"reward": f"{world}/agent.py:lost", "validation": tasks().split("validation"), "generations": 1}
    with pytest.warns(UserWarning, match=r"sigma 0\.02 is far too large"):
        found = run(world, tmp_path / "out", **given)
    assert "earned 0.000 on average and 0.000 at best, the base 1.000: sigma 0.02 is far too large" in found.to_text()
    assert "too large for any to succeed" in found.to_text()


@pytest.mark.parametrize(
    ("members", "base", "lost"),
    [
        (np.zeros((8, 4)), np.ones((6, 2)), True),
        (np.full((8, 4), -3.0), np.zeros((6, 2)), True),
        (np.full((8, 4), 0.9), np.ones((6, 2)), False),
        (np.full((8, 4), np.nan), np.ones((6, 2)), False),
        (np.zeros((8, 4)), np.full((6, 2), np.nan), False),
        (np.zeros((2, 2)), np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]), False),  # chance
        (np.vstack([np.zeros((7, 4)), np.ones((1, 4))]), np.ones((6, 2)), False),  # one has not
    ],
)
def test_what_counts_as_collapse(members: np.ndarray, base: np.ndarray, lost: bool) -> None:
    assert collapsed(members, base) == lost


def test_rewards_that_would_overflow_are_missing_with_a_reason(world: Path, tmp_path: Path) -> None:
    with pytest.raises(NoRewardError, match=r"at most 1e\+100 in size, not 1e\+308: divide it"):
        run(world, tmp_path / "out", reward=f"{world}/agent.py:huge")


def test_notes_that_were_damaged_are_named(whole: Path, tmp_path: Path) -> None:
    [record] = read(whole / "history.jsonl").records
    for notes in (
        {},
        {"tasks": "abc", "repeats": [0]},
        {"tasks": ["a"], "repeats": [0]},
        {"tasks": [1], "repeats": [0]},
    ):
        with pytest.raises(HistoryError, match=r"notes of generation 0 \(line 2"):
            columns_of(replace(record, notes=notes))


def test_a_model_that_is_not_there_is_named(whole: Path, tmp_path: Path) -> None:
    for model in (tmp_path / "nowhere", tmp_path, "nobody/nothing"):
        with pytest.raises(ConfigurationError, match="no causal language model can be loaded"):
            replay(whole / "history.jsonl", model)
    with pytest.raises(ConfigurationError, match="the model is a path"):
        load(5)  # type: ignore[arg-type]


def test_a_class_in_place_of_a_schedule_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"not a class: give Cosine\(…\)"):
        amc.Strategy(sigma=Cosine)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="antithetic"):
        amc.Strategy(antithetic="no")  # type: ignore[arg-type]


def test_a_cut_history_exports_what_it_holds(world: Path, whole: Path, tmp_path: Path) -> None:
    log = read(whole / "history.jsonl")
    assert export_best(Log(log.header, ()), 0, str(world / "model"), tmp_path / "base").is_dir()
