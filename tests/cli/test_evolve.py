"""``amc evolve`` in real processes: killed and interrupted runs go on to the same weights; every clear error."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import langgraph_amc as amc
from langgraph_amc.cli.app import app
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.run import Evolution, evolve
from langgraph_amc.evolution.history import Log, read
from langgraph_amc.trajectories.store import TrajectoryStore
from tests.evaluate.evolve_world import made, tasks

WORDS = (
    *("evolve", "agent.py:graph", "--tasks", "tasks.jsonl", "--reward", "agent.py:even", "--model", "model"),
    *("--split", "train", "--validation", "validation", "--held-out", "held-out", "--population", "4"),
    *("--sigma", "0.02", "--generations", "3", "--batch", "3", "--measured", "2", "--validate-every", "2"),
    *("--concurrency", "4", "--seed", "5"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def whole(folder: Path) -> Evolution:
    """The same run without an interruption."""
    every = tasks()
    return evolve(
        f"{folder}/agent.py:graph",
        every.split("train"),
        f"{folder}/agent.py:even",
        model=folder / "model",
        out=folder / "whole",
        validation=every.split("validation"),
        held_out=every.split("held-out"),
        strategy=amc.Strategy(population=4, sigma=0.02, seed=5),
        generations=3,
        batch=3,
        measured=2,
        validate_every=2,
        concurrency=4,
    )


def start(folder: Path, out: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "langgraph_amc", *WORDS, "--out", out],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_a_part_of_the_second_generation(out: Path, process: subprocess.Popen[str]) -> Log:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        history = out / "history.jsonl"
        if history.exists() and history.stat().st_size and (log := read(history)).records:
            with TrajectoryStore(out / "trajectories.sqlite") as store:
                if any(r.metadata["generation"] == len(log.records) for r in store.runs()):
                    return log
        time.sleep(0.02)
    raise AssertionError("the run did not get there")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_ended_goes_on_by_the_same_command(folder: Path, whole: Evolution, how: signal.Signals) -> None:
    out = folder / how.name
    process = start(folder, how.name, NAP="0.25")
    wait_for_a_part_of_the_second_generation(out, process)
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted; what has ended is kept in SIGINT" in said
        assert "Traceback" not in said
    done = len(read(out / "history.jsonl").records)
    assert 1 <= done < 3

    again = start(folder, how.name)
    printed, said = again.communicate(timeout=200)
    assert again.returncode == 0, said
    assert "Traceback" not in said
    log = read(out / "history.jsonl")
    assert [r.weights for r in log.records] == [g.weights for g in whole.generations]
    assert f"generation {done + 1}/3: reward " in said
    found = json.loads((out / "result.json").read_text())
    assert found["found"] > 0
    assert found["rollouts"] + found["found"] < 3 * 12 + 3 * 6 + 2 * 8 + 12 * done + 1
    expected = whole.to_json()
    assert {k: found[k] for k in ("held_out", "best", "weights", "validations")} == {
        k: expected[k] for k in ("held_out", "best", "weights", "validations")
    }
    for part in ("3 generations", "held out, 4 tasks × 2", "tuned − base", f"the tuned model is in {how.name}/model"):
        assert part in printed


def run(*words: str) -> tuple[str, BaseException | None]:
    result = CliRunner().invoke(app, list(words))
    return result.output, result.exception


def test_json_and_splits_made_from_all_tasks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    lines = [json.loads(line) | {"split": None} for line in Path("tasks.jsonl").read_text().splitlines()]
    Path("plain.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines * 1))
    words = ["evolve", "agent.py:graph", "--tasks", "plain.jsonl", *WORDS[4:8], "--population", "2", "--json"]
    words += ["--generations", "1", "--batch", "2", "--measured", "1", "--out", "plain", "--schedule", "cosine"]
    printed, error = run(*words, "--sigma-end", "0.0005")
    assert error is None, printed
    found = json.loads(printed)
    assert found["stopped"] == "all 1 generations are done"
    assert found["held_out"]["tasks"] >= 1
    assert len(found["generations"]) == 1


def test_show_tells_of_a_run_and_of_one_that_goes_on(folder: Path, whole: Evolution, tmp_path: Path) -> None:
    printed, error = run("show", str(folder / "whole"))
    assert error is None, printed
    for part in ("LangGraph", "even", "6 tasks, 3 validation tasks, 4 held-out tasks", "population 4"):
        assert part in printed
    for generation in whole.generations:
        assert f"{generation.reward}" in printed
        assert generation.weights[:12] in printed
    assert f"{whole.validations[0].reward}" in printed
    assert "all 3 generations are done" in printed
    assert f"model: {whole.model}" in printed
    found = json.loads(run("show", str(folder / "whole"), "--json")[0])
    assert found["result"] == whole.to_json()
    assert [g["weights"] for g in found["generations"]] == [g.weights for g in whole.generations]
    assert found["about"]["reward"]["name"] == "even"

    lines = (folder / "whole" / "history.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "history.jsonl").write_text("".join(lines[:2]))
    (tmp_path / "result.json").write_bytes((folder / "whole" / "result.json").read_bytes())
    printed, _ = run("show", str(tmp_path))
    assert "it has not ended here" in printed
    assert json.loads(run("show", str(tmp_path), "--json")[0])["result"] is None
    (tmp_path / "history.jsonl").write_text("".join([lines[0], "[]\n", lines[1]]))
    _, error = run("show", str(tmp_path))
    assert isinstance(error, amc.AMCError)
    assert "damaged in line 2" in str(error)


def test_another_reward_is_refused_until_it_is_accepted(
    folder: Path, whole: Evolution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    shutil.copytree("whole", "judged")
    words = [*WORDS[:5], "agent.py:odd", *WORDS[6:], "--out", "judged", "--quiet"]
    _, error = run(*words)
    assert isinstance(error, ConfigurationError)
    assert "--accept-changes" in str(error)
    printed, error = run(*words, "--accept-changes")
    assert error is None, error
    assert "3 generations" in printed
    assert "amc: warning: judged holds a run of another reward" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--split", "nothing"), "train, validation, held-out"),
        (("--validation", "validation"), "--split"),
        ((), "--split"),
        (("--split", "train", "--held-out", "train"), "train on and to hold out"),
        (("--split", "train", "--schedule", "cosine"), "--sigma-end"),
        (("--split", "train", "--schedule", "sometimes"), "automatic"),
        (("--split", "train", "--sigma-end", "1e-4"), "linear or cosine"),
        (("--split", "train", "--sigma", "-1"), "sigma"),
        (("--split", "train", "--population", "3"), "even population"),
        (("--split", "train", "--shaping", "fair"), "shaping"),
        (("--split", "train", "--effects", "send"), "NAME=POLICY"),
        (("--split", "train", "--executor", "nobody"), "langgraph-amc-nobody"),
    ],
)
def test_mistakes_get_a_clear_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    _, error = run("evolve", "agent.py:graph", *WORDS[2:8], "--out", "mistakes", "--quiet", *words)
    assert isinstance(error, amc.AMCError), error
    assert message in str(error)
    assert not (folder / "mistakes" / "history.jsonl").exists()


def test_too_few_tasks_to_split_say_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("one.jsonl").write_text('{"input": "only one"}\n')
    _, error = run("evolve", "agent.py:graph", "--tasks", "one.jsonl", *WORDS[4:8], "--out", "few")
    assert isinstance(error, ConfigurationError)
    assert "too few to set a part aside" in str(error)
