"""Whole runs: the reward goes up, every trajectory is counted, and nothing outside the run's folder changes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from langgraph_amc_trl import GRPO, DivergedError, Measurement, StepRecord, train
from transformers import AutoModelForCausalLM

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.runner import NoRewardError
from langgraph_amc.policy.engines import get_engine, loaded_engine
from langgraph_amc.policy.generation import GenerationRequest
from langgraph_amc.tasks import FinishedRun, Task, TaskSet, available, load_integration

MakeApp = Callable[..., Any]
LETTERS = set("abcdefghijklmnopqrstuvwxyz")


def lower_case(run: FinishedRun) -> float:
    """The part of both answers that is lower-case letters."""
    text = run.messages[1].text + run.messages[3].text
    return sum(letter in LETTERS for letter in text) / max(len(text), 1)


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.mark.parametrize(
    "more", [{}, {"epochs": 2, "minibatches": 2, "accumulation": 2, "beta": 0.001}], ids=["on policy", "several passes"]
)
def test_the_reward_goes_up(
    more: dict[str, Any], folder: Path, make_app: MakeApp, tasks: TaskSet, tmp_path: Path
) -> None:
    files = digests(folder)
    method = GRPO(steps=6, tasks=4, group=8, learning_rate=3e-2, **more)
    seen: list[StepRecord | Measurement] = []
    trained = train(
        make_app(),
        tasks,
        lower_case,
        model=folder,
        out=tmp_path / "run",
        method=method,
        held_out=[Task(f"h{i}", f"{i} now") for i in range(6)],
        repeats=4,
        every=3,
        progress=seen.append,
    )
    assert trained.gain is not None
    assert trained.gain.low > 0.1
    assert [m.step for m in trained.measurements] == [0, 3, 6]
    assert [m.trajectories for m in trained.measurements] == [0, 96, 192]
    assert trained.trajectories == method.trajectories == 192
    assert [s.trajectories for s in trained.steps] == [32 * (i + 1) for i in range(6)]
    assert sorted(seen, key=seen.index) == seen
    assert len(seen) == 9

    lines = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    assert [line["record"] for line in lines[:3]] == ["start", "measurement", "step"]
    assert lines[0]["method"]["learning_rate"] == 3e-2
    assert lines[0]["weights"] != lines[-1]["weights"] == trained.weights
    steps = [line for line in lines if line["record"] == "step"]
    assert [line["reward"] for line in steps] == [s.reward for s in trained.steps]
    assert all(s.loss is not None and s.gradient_norm is not None for s in trained.steps)
    assert all((s.kl is not None) == ("beta" in more) for s in trained.steps)

    assert digests(folder) == files  # the tuned model is elsewhere
    assert loaded_engine(folder) is None
    engine = get_engine(trained.model)
    prompt = [{"role": "user", "content": "0 now"}]
    [answer] = engine.generate(GenerationRequest(messages=prompt, max_tokens=20, seed=1))
    engine.close()
    assert sum(letter in LETTERS for letter in answer.text) > 10


def test_trajectories_are_counted_exactly_with_failures_among_them(
    folder: Path, make_app: MakeApp, tasks: TaskSet, tmp_path: Path
) -> None:
    judged: list[str] = []

    def reward(run: FinishedRun) -> float | None:
        assert run.task is not None
        judged.append(run.task.id)
        return None if run.task.id == "t1" else lower_case(run)

    method = GRPO(steps=2, tasks=8, group=3)
    trained = train(make_app(spoilt="a"), tasks, reward, model=folder, out=tmp_path / "run", method=method)
    assert trained.trajectories == 48
    assert [(s.judged, s.failed, s.unjudged) for s in trained.steps] == [(18, 3, 3)] * 2
    assert len(judged) == 48 - 6
    assert sorted(set(judged)) == [f"t{i}" for i in range(1, 8)]
    assert "this task breaks the app" in str(trained.first_failure)
    assert trained.measurements == ()
    assert trained.gain is None


def test_one_seed_gives_one_run(folder: Path, make_app: MakeApp, tasks: TaskSet, tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> str:
        method = GRPO(steps=2, tasks=2, group=4, learning_rate=1e-2, seed=seed)
        out = tmp_path / name
        return train(make_app(), tasks, lower_case, model=folder, out=out, method=method, concurrency=1).weights

    assert weights("one", 0) == weights("same", 0) != weights("other", 1)


def test_a_bfloat16_model_is_trained_on_float32_masters(
    folder: Path, make_app: MakeApp, tasks: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = AutoModelForCausalLM.from_pretrained

    def in_bfloat16(*args: Any, **options: Any) -> Any:  # what the engine does on an accelerator
        return load(*args, **{**options, "dtype": torch.bfloat16})

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", in_bfloat16)
    method = GRPO(steps=8, tasks=4, group=8, learning_rate=3e-2)
    trained = train(make_app(), tasks, lower_case, model=folder, out=tmp_path / "run", method=method)
    assert trained.steps[-1].reward > trained.steps[0].reward + 0.1
    saved = load(trained.model)
    assert {p.dtype for p in saved.parameters()} == {torch.bfloat16}


def test_what_cannot_work_is_said_before_anything_runs(
    folder: Path, make_app: MakeApp, tasks: TaskSet, tmp_path: Path
) -> None:
    app, out = make_app(), tmp_path / "run"

    def run(**changes: Any) -> None:
        given = {"app": app, "tasks": tasks, "reward": lower_case, "model": folder, "out": out} | changes
        train(given.pop("app"), given.pop("tasks"), given.pop("reward"), **given)

    for changes, message in (
        ({"tasks": tasks[:3]}, "do not fill a batch"),
        ({"held_out": tasks[:1]}, "trained on and held out"),
        ({"repeats": 0}, "repeats"),
        ({"every": True}, "every"),
        ({"concurrency": 0}, "concurrency"),
        ({"method": {"steps": 1}}, "method is GRPO"),
        ({"options": {"particles": 4}}, "leave particles out"),
        ({"model": ""}, "model is empty"),
        ({"model": tmp_path / "none"}, "can be loaded"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            run(**changes)
    assert not out.exists()


async def test_in_an_event_loop_it_says_how_to_be_called(
    folder: Path, make_app: MakeApp, tasks: TaskSet, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="to_thread"):
        train(make_app(), tasks, lower_case, model=folder, out=tmp_path / "run")
    method = GRPO(steps=1, tasks=2, group=2)
    given = {"model": folder, "out": tmp_path / "run", "method": method}
    trained = await asyncio.to_thread(train, make_app(), tasks, lower_case, **given)
    assert trained.trajectories == 4


def test_a_training_that_diverges_writes_no_model(
    folder: Path, make_app: MakeApp, tasks: TaskSet, tmp_path: Path
) -> None:
    method = GRPO(steps=1, tasks=2, group=4, epochs=2, learning_rate=1e30)
    with pytest.raises(DivergedError, match="not finite"):
        train(make_app(), tasks, lower_case, model=folder, out=tmp_path / "run", method=method)
    assert not (tmp_path / "run" / "model").exists()


def test_a_folder_with_a_run_is_left_alone(folder: Path, make_app: MakeApp, tasks: TaskSet, tmp_path: Path) -> None:
    method, out = GRPO(steps=1, tasks=2, group=2), tmp_path / "run"
    train(make_app(), tasks, lower_case, model=folder, out=out, method=method)
    before = (out / "steps.jsonl").read_text()
    with pytest.raises(ConfigurationError, match="another folder"):
        train(make_app(), tasks, lower_case, model=folder, out=out, method=method)
    assert (out / "steps.jsonl").read_text() == before


def test_a_run_that_breaks_ends_its_engine(folder: Path, make_app: MakeApp, tasks: TaskSet, tmp_path: Path) -> None:
    with pytest.raises(NoRewardError):
        train(make_app(), tasks, lambda run: None, model=folder, out=tmp_path / "run", method=GRPO(tasks=2, group=2))
    assert loaded_engine(folder) is None


def test_it_is_found_as_an_integration() -> None:
    assert "trl" in available()
    assert load_integration("trl").GRPO is GRPO
