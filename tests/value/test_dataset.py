"""What becomes training data: censoring, the split, targets, weights and batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value.errors import TrainingDataError
from langgraph_amc.value.heads import ReturnHead
from langgraph_amc.value.targets import known_from, task_of
from langgraph_amc.value.training.dataset import batches, build, split_by_task, targets, usable

from .world import slippery_runs, word_tokenizer


def run(*segments: str, outcome: float | None = 1.0, task: str = "t", **more: object) -> Trajectory:
    return Trajectory(run_id="r", particle="p", segments=segments, outcome=outcome, task_id=task, **more)


def test_failures_are_kept_and_censored_runs_are_counted() -> None:
    runs = [run("go", status=s) for s in ("finished", "failed", "pruned", "interrupted", "truncated")]
    kept, left_out = usable([*runs, run("go", outcome=None), run("go", outcome=None, status="failed")])
    assert [t.status for t in kept] == ["finished", "failed"]
    assert left_out == {"pruned": 1, "interrupted": 1, "truncated": 1, "missing outcome": 2}


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "no trajectory"),
        ([run("go", status="pruned")], "pruned"),
        ([run("go", outcome=float("nan"))], "finite"),
        ([run("go", fingerprint="a"), run("go", fingerprint="b")], "'a', 'b'"),
    ],
)
def test_data_that_cannot_train_is_refused(runs: list[Trajectory], message: str) -> None:
    with pytest.raises(TrainingDataError, match=message):
        usable(runs)


def test_no_task_is_on_both_sides_of_the_split() -> None:
    runs = slippery_runs(tasks=10)
    train, held_out = split_by_task(runs, 0.2, seed=3)
    assert len({*map(task_of, held_out)}) == 2
    assert not {*map(task_of, train)} & {*map(task_of, held_out)}
    assert len(train) + len(held_out) == len(runs)
    assert split_by_task(runs, 0.2, seed=3) == (train, held_out)
    assert split_by_task(runs, 0.0, seed=3)[1] == []
    assert split_by_task([r for r in runs if r.task_id == "task-0"], 0.2, seed=3)[1] == []


def test_runs_without_a_task_are_kept_together_by_run() -> None:
    runs = [replace(r, task_id=None) for r in slippery_runs(tasks=4)]
    train, held_out = split_by_task(runs, 0.5, seed=0)
    assert {r.run_id for r in train}.isdisjoint(r.run_id for r in held_out)


def test_targets_are_future_returns_and_siblings_share_the_mean() -> None:
    first = run("go ", "act ", "fine", outcome=0.0, rewards=(0.25, 0.5))
    second = run("go ", "act ", "slip", outcome=0.0, rewards=(0.25, 0.0))
    data = build([first, second], word_tokenizer(), 64)
    assert data.states.returns.tolist() == [0.75, 0.5, 0.0, 0.25, 0.0, 0.0]
    head = ReturnHead("mse", 0.0, 1.0, binary=False)
    assert targets(data.states, head, False)[:, 0].tolist() == data.states.returns.tolist()
    assert targets(data.states, head, True)[:, 0].tolist() == [0.5, 0.25, 0.0, 0.5, 0.25, 0.0]


def test_the_mean_target_of_a_distribution_is_the_mixture() -> None:
    data = build([run("go", outcome=0.0), run("go", outcome=1.0)], word_tokenizer(), 64)
    mixed = targets(data.states, ReturnHead("two_hot", 0.0, 1.0, binary=True, bins=11), True)
    assert mixed[:, [0, -1]].tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_segments_that_join_to_one_text_differently_are_different_states() -> None:
    data = build([run("go act", outcome=0.0), run("go", " act", outcome=1.0)], word_tokenizer(), 64)
    assert len(set(data.states.key.tolist())) == 3


def test_a_weight_depends_on_the_task_and_not_on_the_runs_own_length() -> None:
    short, long = run("go ", "fine"), run("go ", *["slip "] * 5, outcome=0.0)
    other = run("go ", *["act "] * 11, task="u")
    states = build([short, long, other], word_tokenizer(), 64).states
    per_task = [set(states.weights[states.task == task].round(12)) for task in (0, 1)]
    assert [len(weights) for weights in per_task] == [1, 1]
    assert per_task[0].pop() / per_task[1].pop() == pytest.approx(12 / 4)
    assert states.weights.mean() == pytest.approx(1)


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("limit", [256, 12])
def test_batches_read_every_state_once_at_its_own_last_token(seed: int | None, limit: int) -> None:
    data = build(slippery_runs(tasks=5), word_tokenizer(), limit)
    rng = None if seed is None else np.random.default_rng(seed)
    seen = []
    for batch in batches(data, 200, rng):
        assert batch.ids.numel() <= 200
        assert batch.ids[batch.rows, batch.columns].min() > 0  # never on padding
        seen.append(batch.states)
    assert torch.cat(seen).sort().values.tolist() == list(range(len(data.states)))


def test_shuffled_batches_differ_between_epochs() -> None:
    data = build(slippery_runs(tasks=5), word_tokenizer(), 64)
    rng = np.random.default_rng(0)
    first, second = ([b.states.tolist() for b in batches(data, 200, rng)] for _ in range(2))
    assert first != second


def test_a_window_longer_than_the_budget_is_a_batch_of_its_own() -> None:
    data = build([run("go " * 50), run("go " * 3), run("go " * 3)], word_tokenizer(), 64)
    assert sorted(b.ids.shape for b in batches(data, 10, None)) == [(1, 50), (2, 3)]


def branched() -> list[Trajectory]:
    """A run of two particles: at boundary 1 one was pruned, and the other, expected 1.6 times, went on twice."""
    record = {"metadata": {"resampled": [[1, float(np.log(1.6))]]}}
    common = {"run_id": "r", "task_id": "t"}
    return [
        Trajectory(particle="p0", segments=("go ", "act ", "fine"), outcome=1.0, **record, **common),
        Trajectory(particle="p1", segments=("go ", "obs "), status="pruned", **common),
        Trajectory(
            particle="p2", segments=("go ", "act ", "slip"), outcome=0.0, parent="p0", forked_at=1, **record, **common
        ),
    ]


def test_survivors_of_a_resampling_count_less_before_it_and_fully_after() -> None:
    runs = branched()
    kept, left_out = usable(runs)
    assert left_out == {"pruned": 1}
    states = build(kept, word_tokenizer(), 64, known_from(runs)).states
    assert states.importance.tolist() == pytest.approx([1 / 1.6, 1, 1] * 2)
    assert states.weights[1] / states.weights[0] == pytest.approx(1.6)
    mixed = targets(states, ReturnHead("mse", 0.0, 1.0, binary=False), True)
    assert mixed[:, 0].tolist() == [0.5, 0.5, 1.0, 0.5, 0.5, 0.0]


def test_siblings_mean_is_weighted() -> None:
    first, _, second = branched()
    first = replace(first, metadata={"resampled": [[1, float(np.log(0.5))]]})
    states = build([first, second], word_tokenizer(), 64).states
    mixed = targets(states, ReturnHead("mse", 0.0, 1.0, binary=False), True)
    assert mixed[0].item() == pytest.approx(2 / (2 + 1 / 1.6))


@pytest.mark.parametrize("limit", [64, 2])
def test_states_nobody_can_weigh_are_read_over(limit: int) -> None:
    runs = [replace(t, metadata={}) for t in branched()]
    kept, _ = usable(runs)
    data = build(kept, word_tokenizer(), limit, known_from(runs))
    assert data.states.step.tolist() == [1, 2, 1, 2]
    read = torch.cat([batch.states for batch in batches(data, 200, None)])
    assert read.sort().values.tolist() == [0, 1, 2, 3]
    assert sum(len(w.readouts) for w in data.windows) == 4


def test_runs_of_which_nothing_can_be_weighed_are_refused() -> None:
    pruned_late = run("go ", *["act "] * 5, outcome=None, status="pruned")
    with pytest.raises(TrainingDataError, match="recorded"):
        build([run("go ", "act ")], word_tokenizer(), 64, known_from([pruned_late]))


def test_td_targets_are_learnt_and_returns_are_kept() -> None:
    data = build([run("go ", "act ", outcome=1.0, values=(None, 0.5))], word_tokenizer(), 64, td_lambda=0.0)
    assert data.states.returns.tolist() == [1.0, 1.0]
    assert targets(data.states, ReturnHead("bce", 0.0, 1.0, binary=True), True)[:, 0].tolist() == [0.5, 1.0]
