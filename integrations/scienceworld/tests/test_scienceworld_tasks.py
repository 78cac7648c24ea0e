"""The tasks without Java: their ids, splits and order, the AMC paper's, and what is refused."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from pathlib import Path
from typing import Any

import langgraph_amc_scienceworld as scienceworld
import pytest
from langgraph_amc_scienceworld import (
    AMC_KINDS,
    KINDS,
    JavaError,
    ScienceWorld,
    ScienceWorldError,
    ScienceWorldTask,
    agentgym,
    score,
    signed_score,
    solved,
    tasks,
)
from langgraph_amc_scienceworld.__main__ import ids as print_ids
from langgraph_amc_scienceworld.__main__ import main

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.tasks import FinishedRun, TaskFamily, available, load_app, load_integration, load_reward, load_tasks


def test_it_is_found_by_its_entry_point() -> None:
    assert available()["scienceworld"].value == "langgraph_amc_scienceworld"
    assert load_integration("scienceworld") is scienceworld
    assert isinstance(scienceworld, TaskFamily)


def test_its_name_stands_for_it_in_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_tasks("scienceworld:tasks", variations=2) == tasks(variations=2)
    assert load_reward("scienceworld:score").function is score
    monkeypatch.delenv("SCIENCEWORLD_MODEL", raising=False)
    with pytest.raises(ConfigurationError, match="SCIENCEWORLD_MODEL"):
        load_app("scienceworld:graph")


def test_a_pool_has_as_many_worlds_as_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCIENCEWORLD_WORLDS", "3")
    assert scienceworld.make_pool().size == 3
    monkeypatch.setenv("SCIENCEWORLD_WORLDS", "0")
    with pytest.raises(ConfigurationError, match="SCIENCEWORLD_WORLDS"):
        scienceworld.make_pool()


def test_there_is_a_task_for_every_variation_with_scienceworlds_splits() -> None:
    everything = tasks()
    assert len(everything) == sum(KINDS[name].variations for name in AMC_KINDS) == 4639
    assert len(AMC_KINDS) == 23
    assert len(tasks(names=KINDS)) == 7207
    # splits have whole blocks of variations, as ScienceWorld cuts them
    boil = {task.metadata["variation"]: task.split for task in tasks(names="boil")}
    assert [boil[v] for v in range(30)] == ["train"] * 14 + ["tune"] * 7 + ["test"] * 9
    assert all(task.split == task.metadata["own_split"] for task in everything)


def test_the_first_tasks_of_a_split_are_of_all_kinds() -> None:
    for split in ("train", "tune", "test"):
        first = tasks().split(split)[: len(AMC_KINDS)]
        assert {task.input["task"]["name"] for task in first} == set(AMC_KINDS)
        assert tasks(variations=1).split(split) == first
    few = tasks(variations=3)
    counts = Counter((task.input["task"]["name"], task.split) for task in few)
    assert max(counts.values()) == 3
    assert counts["identify-life-stages-2", "tune"] == 2  # it has no more
    assert [task.id for task in tasks() if task.id in few.ids] == list(few.ids)


def test_what_an_episode_is_shows_in_the_id() -> None:
    easy = tasks(names="boil", variations=1, simplifications="openDoors,easy", step_limit=50)
    plain = tasks(names="boil", variations=1)
    assert [task.id for task in easy] == [f"{task.id}-easy+openDoors-50-steps" for task in plain]
    assert plain[0].id.startswith("scienceworld-boil-")
    assert easy[0].input["task"] == {
        "name": "boil",
        "variation": easy[0].metadata["variation"],
        "simplifications": "openDoors,easy",
        "step_limit": 50,
    }
    assert ScienceWorldTask.of(easy[0].input["task"]).step_limit == 50


def test_agentgyms_numbers_are_variations_one_after_the_other(tmp_path: Path, capsys: Any) -> None:
    numbers = agentgym()
    assert (numbers[0], numbers[120], numbers[-1]) == (
        ("boil", 0),
        ("use-thermometer", 0),
        ("identify-life-stages-2", 9),
    )
    file = tmp_path / "test.json"
    file.write_text(json.dumps([120, 536, 4638]))
    chosen = tasks(train_ids=[121, 4629], test_ids=file)
    assert {task.metadata["index"]: task.metadata["own_split"] for task in chosen.split("test")} == {
        120: "train",  # the paper has tasks to test on that ScienceWorld has in train
        536: "test",
        4638: "test",
    }
    assert {task.metadata["index"] for task in chosen.split("train")} == {121, 4629}
    assert all(task.metadata["own_split"] == "tune" for task in chosen.split("tune"))
    everything = tasks()
    assert all(task == everything.get(task.id) for task in chosen.split("tune"))
    print_ids(file)
    assert "3 tasks of 2 kinds; ScienceWorld has 1 of them in train, 0 in dev, 2 in test" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"names": "brew"},
        {"simplifications": "hard"},
        {"simplifications": None},
        {"step_limit": 0},
        {"step_limit": "20"},
        {"names": None},
        {"variations": 0},
        {"variations": 1.5},
        {"train_ids": [1]},
        {"train_ids": 1, "test_ids": [2]},
        {"train_ids": [1], "test_ids": [1, 2]},
        {"train_ids": [1], "test_ids": [4639]},
        {"train_ids": [1], "test_ids": ["2"]},
        {"names": "test-conductivity", "simplifications": "noElectricalAction"},
    ],
)
def test_what_scienceworld_has_not_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ScienceWorldError):
        tasks(**options)


@pytest.mark.parametrize("content", [None, b"{", b"\xff\xfe"])
def test_a_file_of_numbers_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "idx.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ScienceWorldError, match=r"idx\.json cannot be read"):
        tasks(train_ids=file, test_ids=[])


def test_a_command_that_fails_says_so_on_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["scienceworld", "ids", "none.json"])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err
    assert said.startswith("langgraph_amc_scienceworld: none.json cannot be read")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "task",
    [
        {},
        {"name": "boil", "variation": 30},
        {"name": "boil", "variation": True},
        {"name": "boil", "variation": "3"},
        {"name": "boil", "goal": "steam"},
    ],
)
def test_what_is_no_task_is_refused(task: dict[str, Any]) -> None:
    with pytest.raises(ScienceWorldError):
        ScienceWorldTask.of(task)


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"score": 100, "solved": True, "failed": False}, (1.0, 1.0, 1.0)),
        ({"score": 37, "solved": False, "failed": False}, (0.37, 0.37, 0.0)),
        ({"score": -100, "solved": False, "failed": True}, (0.0, -1.0, 0.0)),
    ],
)
def test_rewards_are_the_score_at_the_end(info: dict[str, Any], expected: tuple[float, float, float]) -> None:
    run = FinishedRun(None, {"info": info})
    assert (score(run), signed_score(run), solved(run)) == expected


def test_without_java_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match=r"none on the PATH\. Install one, .*apt-get install default-jre-headless"):
        ScienceWorld()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match="JAVA_HOME"):
        ScienceWorld()
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    with pytest.raises(JavaError, match=r"java.* does not start"):
        ScienceWorld()


def test_every_error_is_one_of_the_librarys() -> None:
    errors = [value for _, value in inspect.getmembers(scienceworld, inspect.isclass) if issubclass(value, Exception)]
    assert len(errors) == 3
    assert all(issubclass(error, AMCError) for error in errors)
