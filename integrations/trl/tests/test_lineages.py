"""From a run of AMC through the store to a tuned policy that serves: the tokens are those that the policy saw."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from langgraph_amc_trl import check_seen, sibling_pairs
from langgraph_amc_trl.__main__ import app as cli
from langgraph_amc_trl.conversations import conversation
from langgraph_amc_trl.recording import recording
from langgraph_amc_trl.rendering import UnseenTokensError, calls_of, codec_of
from typer.testing import CliRunner

from langgraph_amc.demo import agent_file, policy_folder
from langgraph_amc.evaluate.collect import collect
from langgraph_amc.evaluate.runner import Job, run_jobs
from langgraph_amc.policy.engines import get_engine
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks.loading import load_app, load_reward, load_tasks
from langgraph_amc.trajectories import Trajectory, TrajectoryStore

AGENT = str(agent_file())


def progress(text: str) -> float:
    """A cheap V: what was crafted, less what was refused."""
    return min(0.9, max(0.05, 0.2 + 0.15 * text.count("Crafted") - 0.1 * text.count("Missing")))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lineages") / "runs.sqlite"
    app = load_app(f"{AGENT}:graph")
    tasks = load_tasks(f"{AGENT}:tasks", train=3).split("train")
    with TrajectoryStore(path) as opened:
        asyncio.run(
            collect(app, tasks, load_reward(f"{AGENT}:solved"), opened, read_settings(app, particles=6, value=progress))
        )
    return path


@pytest.fixture(scope="module")
def runs(store: Path) -> list[Trajectory]:
    with TrajectoryStore(store) as opened:
        return list(opened.trajectories())


def test_pairs_of_a_real_run_share_their_prompts(runs: list[Trajectory]) -> None:
    assert any(t.status == "pruned" for t in runs)
    found = sibling_pairs(runs, completion="rest")
    assert len(found.pairs) >= 2
    known = [tuple(s.message for s in conversation(t)) for t in runs if t.outcome is not None]
    for pair in found.pairs:
        for half in (pair.chosen, pair.rejected):
            whole = (*pair.prompt, *half)
            assert any(messages[: len(whole)] == whole for messages in known)
        assert pair.chosen[0] != pair.rejected[0]
    assert len({(p.task, json.dumps(p.prompt)) for p in found.pairs}) == len(found.pairs)


def test_the_messages_are_what_the_policy_read(runs: list[Trajectory], folder: Path) -> None:
    assert check_seen(runs, policy_folder()) > len(runs) / 2
    with pytest.raises(UnseenTokensError, match="something else than its messages"):
        check_seen(runs, folder)
    told = [replace(t, usage=replace(t.usage, input_tokens=t.usage.input_tokens + 7)) for t in runs]
    with pytest.raises(UnseenTokensError):
        check_seen(told, policy_folder())


def test_the_tokens_are_those_that_the_engine_was_asked_and_sampled() -> None:
    app = load_app(f"{AGENT}:graph")
    [task] = load_tasks(f"{AGENT}:tasks", train=1).split("train")
    job = Job(task, 0, read_settings(app, particles=1), noise=("seen",))

    async def run() -> Trajectory:
        async with aclosing(run_jobs(app, [job], load_reward(f"{AGENT}:solved"), concurrency=1)) as outcomes:
            outcome = await anext(outcomes)
            return outcome.trajectories[0]

    with recording(get_engine(policy_folder())) as recorder:
        trajectory = asyncio.run(run())
        recorded = recorder.take(("seen",))
    messages = [s.message for s in conversation(trajectory)]
    rendered = calls_of(codec_of(policy_folder()), messages[:1], messages[1:])
    assert len(rendered) > 2
    assert [(c.prompt, c.answer) for c in rendered] == [(c.prompt, c.answer) for c in recorded]


def call(*arguments: Any, fails: bool = False) -> str:
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    assert (result.exit_code != 0) == fails, result.output
    return str(result.exception) if fails else result.output


def test_from_a_store_to_models_on_the_command_line(store: Path, tmp_path: Path) -> None:
    policy = policy_folder()
    said = call("pairs", store, "--out", tmp_path / "pairs.jsonl", "--policy", policy)
    assert "compared with what the model read" in said
    assert "pruned" in said
    call("runs", store, "--out", tmp_path / "runs.jsonl")
    call("labels", store, "--out", tmp_path / "labels.jsonl", "--success", 1)
    options = ("--model", policy, "--lr", 1e-5, "--batch", 8)
    for name, data in (("dpo", "pairs"), ("sft", "runs"), ("kto", "labels")):
        tuned = json.loads(call(name, tmp_path / f"{data}.jsonl", "--out", tmp_path / name, *options).splitlines()[-1])
        assert tuned["used"] > 0
        engine = get_engine(tuned["model"])
        assert engine.codec.tokenizer.chat_template
        engine.close()
    said = call("filter", tmp_path / "runs.jsonl", "--model", policy, "--out", tmp_path / "filtered.jsonl")
    assert "calls kept: 0" in said  # this agent's commands are text, not tool calls
    assert (tmp_path / "filtered.jsonl").read_text() == (tmp_path / "runs.jsonl").read_text()


def test_files_are_trls_conversational_format(store: Path, tmp_path: Path) -> None:
    from trl.data_utils import is_conversational

    for name, wanted in (("pairs", {"prompt", "chosen", "rejected"}), ("labels", {"prompt", "completion", "label"})):
        call(name, store, "--out", tmp_path / f"{name}.jsonl")
        data = load_dataset("json", data_files=str(tmp_path / f"{name}.jsonl"), split="train", cache_dir=str(tmp_path))
        assert wanted <= set(data.column_names)
        assert is_conversational(data[0])


def test_what_cannot_be_read_is_an_error_with_advice(tmp_path: Path) -> None:
    assert "make one with amc collect" in call("pairs", tmp_path / "none.sqlite", fails=True)
    with TrajectoryStore(tmp_path / "empty.sqlite"):
        pass
    assert "has no runs" in call("pairs", tmp_path / "empty.sqlite", fails=True)
    (tmp_path / "bad.jsonl").write_text('{"prompt": []}\n')
    assert "line 1" in call("dpo", tmp_path / "bad.jsonl", "--model", "m", "--out", tmp_path / "o", fails=True)


@pytest.mark.parametrize("schemas", ["{}", "[1]", '[{"function": {}}]', "["])
def test_tools_that_are_none_are_refused(schemas: str, store: Path, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(schemas)
    assert "holds no JSON list of tools" in call("runs", store, "--tools", tmp_path / "tools.json", fails=True)


def test_a_file_that_cannot_be_written_is_an_error_with_advice(store: Path, tmp_path: Path) -> None:
    assert "cannot be written" in call("runs", store, "--out", tmp_path, fails=True)
