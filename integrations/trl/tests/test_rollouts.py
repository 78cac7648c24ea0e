"""Rollouts of an unchanged app: the tokens that are kept, and the probabilities they were sampled with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from langgraph_amc_trl import GRPO
from langgraph_amc_trl.batches import lesson_of, micro_batches, tensors_of
from langgraph_amc_trl.recording import Recorder
from langgraph_amc_trl.rollouts import Groups, Rollouts, held_out_jobs
from langgraph_amc_trl.sequences import sequences_of
from langgraph_amc_trl.trainer import trainer_for

import langgraph_amc.policy.batch as engine_batch
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.rollouts import HELD_OUT, Measured, Rollout, StoredRollouts
from langgraph_amc.evaluate.runner import NoRewardError
from langgraph_amc.evolution.loop import Column
from langgraph_amc.policy.engine import BatchEngine
from langgraph_amc.policy.generation import GenerationRequest
from langgraph_amc.policy.sampling import Sampler
from langgraph_amc.runtime.settings import read_settings
from langgraph_amc.tasks import FinishedRun, TaskSet

MakeApp = Callable[..., Any]
MakeRollouts = Callable[..., Rollouts]


def length(run: FinishedRun) -> float:
    return float(len(run.messages[-1].text))


def rolled(rollouts: Rollouts, tasks: TaskSet, size: int = 3) -> Groups:
    return asyncio.run(rollouts.groups(0, tasks, size))


def test_calls_are_kept_by_trajectory_and_a_conversation_is_one_sequence(
    make_app: MakeApp, make_rollouts: MakeRollouts, tasks: TaskSet, engine: BatchEngine
) -> None:
    groups = rolled(make_rollouts(make_app(), length), tasks, size=20)  # many, as few of them are text
    assert len(groups.calls) == 160
    counts = set()
    for i, (first, second) in enumerate(groups.calls):
        messages = tasks[i // 20].input["messages"]
        assert first.prompt == tuple(engine.codec.prompt(messages, None))
        assert 1 <= len(first.answer) <= 5
        said = [t for t in first.answer if t not in engine.codec.end_ids]
        readable = "\ufffd" not in engine.codec.decode(said) and not set(engine.codec.special.values()) & set(said)
        sequences = sequences_of((first, second))
        # Bytes that are no text come back to the model as other bytes: another conversation.
        assert len(sequences) == (1 if readable else 2)
        assert sum(s.trained for s in sequences) == len(first.answer) + len(second.answer)
        counts.add(len(sequences))
    assert counts == {1, 2}
    assert len({calls[0].answer for calls in groups.calls}) > 1


def test_equal_seeds_give_equal_trajectories(make_app: MakeApp, make_rollouts: MakeRollouts, tasks: TaskSet) -> None:
    one, other = (rolled(make_rollouts(make_app(), length), tasks) for _ in range(2))
    assert one.calls == other.calls
    assert np.array_equal(one.rewards, other.rewards)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("forgetful", [False, True])
def test_the_trainer_finds_the_probabilities_that_the_engine_sampled_with(
    temperature: float,
    forgetful: bool,
    make_app: MakeApp,
    make_rollouts: MakeRollouts,
    tasks: TaskSet,
    engine: BatchEngine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    sampled: list[float] = []

    class Listening(Sampler):
        def __call__(self, logits: torch.Tensor, uniform: Any) -> list[int]:
            tokens = super().__call__(logits, uniform)
            log_probabilities = torch.log_softmax(logits / temperature, -1)
            sampled.extend(log_probabilities[range(len(tokens)), tokens].tolist())
            return tokens

    monkeypatch.setattr(engine_batch, "Sampler", Listening)
    method = GRPO(steps=1, tasks=8, group=3, accumulation=4, beta=0.1, temperature=temperature)
    app = make_app(forgetful, temperature)
    lesson = lesson_of(rolled(make_rollouts(app, length, temperature), tasks), method)
    found: list[float] = []
    with trainer_for(engine, method, 8, lambda *_: lesson, lambda _: None, str(tmp_path)) as trainer:
        for rows in micro_batches(lesson, method, 0):
            batch = tensors_of(rows, lesson.sampled_tokens, torch.device("cpu"))
            there = (batch["completion_mask"] * batch["tool_mask"]).bool()
            found.extend(trainer._log_probabilities(trainer.model, batch)[there].tolist())
    assert len(found) == lesson.sampled_tokens == len(sampled)
    assert np.ptp(sampled) > 0.5
    assert np.array(sorted(found)) == pytest.approx(np.array(sorted(sampled)), abs=2e-4)


def test_a_measurement_is_that_of_evolution(make_app: MakeApp, tasks: TaskSet) -> None:
    settings = read_settings(make_app(), particles=1)
    nothing, measured = Measured(TaskSet(), 1), Measured(tasks, 2)
    evolution = StoredRollouts(
        None,  # type: ignore[arg-type]  # only its jobs are looked at
        None,  # type: ignore[arg-type]
        settings,
        tasks=TaskSet(),
        validation=nothing,
        held_out=measured,
        seed=7,
        common=True,
        concurrency=1,
        progress=lambda *_: None,
    )
    wanted = [Rollout(HELD_OUT, -1, None, Column(task, repeat)) for task in tasks.ids for repeat in range(2)]
    assert held_out_jobs(tasks, 2, settings, 7) == [evolution._job(rollout) for rollout in wanted]


def test_failed_and_unjudged_runs_are_left_out_and_not_zero(
    make_app: MakeApp, make_rollouts: MakeRollouts, tasks: TaskSet
) -> None:
    def picky(run: FinishedRun) -> float | None:
        return None if run.task is not None and run.task.id == "t1" else length(run)

    rollouts = make_rollouts(make_app(spoilt="a"), picky)
    groups = rolled(rollouts, tasks)
    assert (groups.failed, groups.unjudged, rollouts.trajectories) == (3, 3, 24)
    assert np.isnan(groups.rewards[:2]).all()
    assert not np.isnan(groups.rewards[2:]).any()
    assert "this task breaks the app" in str(rollouts.first_failure)
    lesson = lesson_of(groups, GRPO(tasks=8, group=3))
    kept = [call for calls in groups.calls[6:] for call in calls]
    assert lesson.sampled_tokens == sum(len(call.answer) for call in kept)


def test_a_judge_that_asks_the_same_model_is_not_recorded(
    make_app: MakeApp, make_rollouts: MakeRollouts, tasks: TaskSet, engine: BatchEngine
) -> None:
    asked: list[int] = []

    def judge(run: FinishedRun) -> float:
        [answer] = engine.generate(GenerationRequest(messages=[{"role": "user", "content": "good?"}], max_tokens=2))
        asked.append(len(answer.token_ids))
        return float(len(answer.text))

    groups = rolled(make_rollouts(make_app(), judge), tasks, 2)
    assert len(asked) == 16
    assert all(len(calls) == 2 for calls in groups.calls)


def test_the_engine_is_as_before_when_recording_ends(engine: BatchEngine) -> None:
    from langgraph_amc_trl.recording import recording

    with recording(engine) as recorder:
        assert "submit" in vars(engine)
        engine.generate(GenerationRequest(prompt_ids=[5, 6], max_tokens=2))
    assert "submit" not in vars(engine)
    assert recorder == Recorder(_lock=recorder._lock)  # no rollout's call: nothing kept


@pytest.mark.parametrize(
    ("app", "temperature", "message"),
    [
        ({"temperature": 0.5}, 1.0, "temperature 0.5"),
        ({"top_p": 0.9}, 1.0, "top_p 0.9"),
        ({"temperature": 0}, 1.0, "above 0"),
    ],
)
def test_a_policy_that_is_not_the_one_trained_is_refused(
    app: dict[str, Any],
    temperature: float,
    message: str,
    make_app: MakeApp,
    make_rollouts: MakeRollouts,
    tasks: TaskSet,
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        rolled(make_rollouts(make_app(**app), length, temperature), tasks)


def test_runs_that_all_fail_say_why(make_app: MakeApp, make_rollouts: MakeRollouts, tasks: TaskSet) -> None:
    with pytest.raises(NoRewardError, match="this task breaks the app"):
        rolled(make_rollouts(make_app(spoilt="a"), length), tasks[:1])


def test_an_app_that_does_not_ask_the_model_is_refused(make_rollouts: MakeRollouts, tasks: TaskSet) -> None:
    from langgraph.graph import END, START, MessagesState, StateGraph

    graph = StateGraph(MessagesState)
    graph.add_node("think", lambda state: {"messages": [("ai", "by rote")]})
    graph.add_edge(START, "think")
    graph.add_edge("think", END)
    with pytest.raises(ConfigurationError, match="amc-local/<path>"):
        rolled(make_rollouts(graph.compile(), length), tasks)
