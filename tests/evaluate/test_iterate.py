"""Iterating on a walk whose value is known, and the record of resampling in runs of a real app."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from langgraph.graph import END, START, StateGraph
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import langgraph_amc as amc
from langgraph_amc.cli.iterate import iterate as command
from langgraph_amc.demo import agent_file, policy_folder
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.iterate import Iteration, TaskOverlapError, iterate
from langgraph_amc.evaluate.runner import Job, NoRewardError, run_jobs
from langgraph_amc.policy.budget import Budget
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks import Task, TaskSet, as_reward
from langgraph_amc.tasks.loading import load_tasks
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.value import load_value
from langgraph_amc.value.targets import importance, known_from, with_resamplings
from tests.value.world import saved_base, tiny_config

from .test_compare import Coin, State, unbroken

STEPS = 4
TRAIN = TaskSet([Task(f"t{i}", f"walk {i}") for i in range(24)])
TEST = TaskSet([Task(f"h{i}", f"walk {100 + i}") for i in range(24)])
OPTIONS: dict[str, Any] = {"particles": 4, "resample": "every(1)"}


def build() -> Any:
    """A walk of four steps; one that slips has failed."""
    coin = Coin()
    g = StateGraph(State)
    g.add_node("think", lambda s: {"messages": [coin.invoke(s["messages"])], "turns": 1})
    g.add_edge(START, "think")
    g.add_conditional_edges("think", lambda s: END if s["turns"] >= STEPS else "think", ["think", END])
    return g.compile()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that reads the words of the walk."""
    folder = saved_base(tmp_path_factory.mktemp("base"), tiny_config())
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<unk>", "<eos>", "walk", "ok", "slip"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>"
    ).save_pretrained(folder)
    return folder


async def run(base: Path, out: Path, reward: Any = unbroken, **changes: Any) -> Iteration:
    given = {"held_out": TEST, "rounds": 3, "options": OPTIONS, "train": {"epochs": 6, "lr": 3e-3}, **changes}
    return await iterate(build(), TRAIN, as_reward(reward), base, out=out, **given)


async def test_it_collects_trains_and_measures_until_a_round_no_longer_helps(base: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    found = await run(base, tmp_path / "out", progress=lambda done, total: told.append((done, total)))
    first, *later = found.rounds
    assert first.gain is None
    assert first.reward.mean > 0.75**STEPS  # better than one run: 0.18
    assert first.ranking is not None
    assert first.ranking > 0.6
    for r in later:
        assert r.gain is not None
        assert r.tokens > 0
    if later and later[-1].gain.low <= 0:
        assert "not clearly better" in found.stopped
        assert found.best != later[-1].value
    else:
        assert len(found.rounds) == 3
    assert load_value(found.best).score([("walk",)]).shape == (1,)
    with TrajectoryStore(tmp_path / "out" / "trajectories.sqlite") as store:
        seeds = {run.metadata["seed"] for run in store.runs()}
        stored = list(store.trajectories())
    assert seeds == set(range(len(found.rounds)))
    assert any(t.parent is not None for t in stored) == (len(found.rounds) > 1)
    assert not {t.task_id for t in stored} & set(TEST.ids)
    assert told
    assert json.loads(json.dumps(found.to_json())) == json.loads(json.dumps(asdict(found)))
    assert f"use {found.best}" in found.to_text()


async def test_a_budget_ends_it_with_what_there_is(base: Path, tmp_path: Path) -> None:
    found = await run(base, tmp_path / "b", budget=Budget(calls=24 * 4 * STEPS * 3 + 50))
    assert len(found.rounds) == 1
    assert "budget" in found.stopped
    with pytest.raises(Exception, match="budget"):
        await run(base, tmp_path / "c", budget=Budget(calls=3))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"held_out": TRAIN[:3]}, TaskOverlapError, "3 task"),
        ({"held_out": TaskSet([])}, ConfigurationError, "held-out"),
        ({"rounds": 0}, ConfigurationError, "rounds"),
        ({"options": {"value": "v", "seed": 1}}, ConfigurationError, "seed, value"),
    ],
)
async def test_what_cannot_work_is_refused_before_anything_runs(
    base: Path, tmp_path: Path, changes: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        await run(base, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


async def test_an_earlier_iteration_is_not_mixed_in(base: Path, tmp_path: Path) -> None:
    (tmp_path / "trajectories.sqlite").touch()
    with pytest.raises(ConfigurationError, match="earlier"):
        await run(base, tmp_path)


async def test_answers_that_nobody_can_judge_stop_it(base: Path, tmp_path: Path) -> None:
    def judged(run: Any) -> float | None:
        return unbroken(run) if run.task.id.startswith("t") else None

    with pytest.raises(NoRewardError, match="held-out"):
        await run(base, tmp_path, reward=judged, rounds=1)


async def test_runs_of_an_app_carry_what_resampling_made_of_them() -> None:
    """A V that prefers runs that have slipped: survivors are mostly failures, their weights say how many are not."""
    app = build()
    wrong = read_settings(app, particles=6, resample=amc.every(1), value=prefers_slips, tau=0.4)
    sums, weighted, plain = [], [], []
    jobs = [Job(task, seed, wrong) for seed in range(10, 13) for task in TRAIN]
    async for outcome in run_jobs(app, jobs, as_reward(unbroken), concurrency=8):
        runs = with_resamplings(outcome.trajectories, outcome.result.checks)
        assert known_from(runs) == {}
        ended = [t for t in runs if t.outcome is not None]
        start = [importance(t)[0] for t in ended]
        sums.append(sum(start) / 6)
        weighted.append(sum(w * t.outcome for w, t in zip(start, ended, strict=True)) / 6)
        plain.append(np.mean([t.outcome for t in ended]))
    true = 0.75**STEPS
    for found, expected in ((sums, 1.0), (weighted, true)):
        assert abs(np.mean(found) - expected) < 1.96 * np.std(found) / len(found) ** 0.5
    assert np.mean(plain) < true - 1.96 * np.std(plain) / len(plain) ** 0.5


def prefers_slips(transcript: str) -> float:
    return 0.3 if "slip" in transcript else 0.0


def test_the_command_on_the_crafting_demo(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command)
    agent = agent_file()
    tasks = tmp_path / "tasks.jsonl"
    load_tasks(f"{agent}:tasks", train=3, test=2).to_jsonl(tasks)
    options = ["--tasks", str(tasks), "--reward", f"{agent}:solved", "--base", str(policy_folder()), "--json"]
    options += ["--split", "train", "--held-out", "test", "--out", str(tmp_path / "out")]
    found = CliRunner().invoke(app, [f"{agent}:graph", *options, "-n", "2", "--rounds", "2", "--epochs", "1"])
    assert found.exit_code == 0, found.output + repr(found.exception)
    result = json.loads(found.stdout)
    assert 1 <= len(result["rounds"]) <= 2
    assert result["rounds"][0]["tokens"] > 0
    assert Path(result["best"]).is_dir()
