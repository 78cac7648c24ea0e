"""Evolution of a tiny model through an app that knows nothing of it: whole runs, resuming, and what is refused."""

from __future__ import annotations

import hashlib
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import langgraph_amc as amc
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.evolving.rollouts import ModelNotReachedError, OutOfBudgetError
from langgraph_amc.evaluate.evolving.run import Standing
from langgraph_amc.evaluate.iterate import TaskOverlapError
from langgraph_amc.evaluate.runner import NoRewardError
from langgraph_amc.evolution.history import read
from langgraph_amc.evolution.replay import replay
from langgraph_amc.evolution.schedules import Automatic
from langgraph_amc.policy.budget import Budget
from langgraph_amc.policy.engines import loaded_engine
from langgraph_amc.tasks import TaskSet
from langgraph_amc.trajectories.store import TrajectoryStore
from tests.cli.test_cli import APP, TOOLED
from tests.evaluate.evolve_world import run, tasks


def digest(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def test_from_an_unchanged_app_to_a_tuned_model(world: Path, tmp_path: Path) -> None:
    before = digest(world / "model")
    every, seen = tasks(), list[Standing]()
    measured = {"validation": every.split("validation"), "held_out": every.split("held-out"), "validate_every": 1}
    found = run(world, tmp_path / "out", progress=seen.append, **measured)
    assert digest(world / "model") == before
    assert loaded_engine(world / "model") is None  # whoever calls the model next gets the files' weights
    assert [g.number for g in found.generations] == [0, 1]
    assert [v.done for v in found.validations] == [0, 1, 2]
    assert found.rollouts + found.found >= 2 * 4 * 3 + 3 * 3 * 2 + 2 * 4 * 2
    assert found.held_out is not None
    assert found.held_out.tasks == 4
    best = max(found.validations, key=lambda v: v.reward.mean)
    assert found.best == best.done

    log = read(tmp_path / "out" / "history.jsonl")
    assert len({log.header.weights, *(r.weights for r in log.records)}) == 3
    assert replay(tmp_path / "out" / "history.jsonl", world / "model").hash() == log.weights
    assert found.weights == [log.header.weights, *(r.weights for r in log.records)][found.best]
    tuned = digest(tmp_path / "out" / "model")
    assert (tuned["model.safetensors"] != before["model.safetensors"]) == (found.best > 0)
    assert tuned["tokenizer.json"] == before["tokenizer.json"]
    with TrajectoryStore(tmp_path / "out" / "trajectories.sqlite") as store:
        assert store.counts().trajectories == found.rollouts
        assert {r.metadata["evolution"] for r in store.runs()} == {"train", "validation", "held-out"}
    assert seen[-1].tokens == found.tokens > 0
    assert any(s.seconds_left is not None for s in seen)

    again = run(world, tmp_path / "out", **measured)
    assert again.rollouts == 0
    assert (again.held_out, again.generations, again.weights) == (found.held_out, found.generations, found.weights)
    longer = run(world, tmp_path / "out", **measured, generations=3, patience=None)
    assert longer.generations[:2] == found.generations
    assert len(longer.generations) == 3


def test_a_rollout_that_failed_or_was_not_judged_is_missing_and_not_zero(world: Path, tmp_path: Path) -> None:
    some = TaskSet.from_iterable(
        [{"id": "a", "input": "fine"}, {"id": "b", "input": "broken"}, {"id": "unjudged", "input": "fine too"}]
    )
    found = run(world, tmp_path / "out", tasks=some, generations=1)
    [record] = read(tmp_path / "out" / "history.jsonl").records
    by_task = dict(zip(record.notes["tasks"], record.rewards.T, strict=True))
    assert np.isfinite(by_task["a"]).all()
    assert np.isnan(by_task["b"]).all()
    assert np.isnan(by_task["unjudged"]).all()
    assert (found.failed, found.unjudged) == (4, 4)
    for line in (
        "4 failed, 4 without a reward",
        "first failure: ValueError: the tool broke",
        "first missing reward: even",
    ):
        assert line in found.to_text()
    assert found.generations[0].known == pytest.approx(1 / 3)


def test_members_meet_the_same_random_numbers_unless_told_otherwise(world: Path, tmp_path: Path) -> None:
    tiny = amc.Strategy(population=6, sigma=1e-9, seed=1)
    run(world, tmp_path / "common", strategy=tiny, generations=1)
    run(world, tmp_path / "own", strategy=tiny, generations=1, common_noise=False)
    common, own = (read(tmp_path / n / "history.jsonl").records[0] for n in ("common", "own"))
    assert (common.rewards == common.rewards[0]).all()
    assert common.update.is_zero
    assert (own.rewards != own.rewards[0]).any()


def test_a_straggler_holds_nobody_up(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = tmp_path / "ends"
    monkeypatch.setenv("ENDS", str(ends))
    some = TaskSet.from_iterable([{"id": "s", "input": "slow"}, *({"id": f"f{i}", "input": "fast"} for i in range(5))])
    strategy = amc.Strategy(population=2, sigma=0.02)
    run(world, tmp_path / "out", tasks=some, strategy=strategy, generations=1, batch=6, concurrency=4)
    said = ends.read_text().split()
    assert said.count("fast") == 10
    assert said[:8] == ["fast"] * 8


def test_a_rollout_that_takes_too_long_is_missing(world: Path, tmp_path: Path) -> None:
    some = TaskSet.from_iterable([{"id": "s", "input": "slow"}, {"id": "f", "input": "fast"}])
    limits = {"budget": Budget(seconds=2.0)}
    found = run(world, tmp_path / "out", tasks=some, generations=1, concurrency=4, options=limits)
    [record] = read(tmp_path / "out" / "history.jsonl").records
    slow = record.notes["tasks"].index("s")
    assert np.isnan(record.rewards[:, slow]).all()
    assert np.isfinite(record.rewards[:, 1 - slow]).any()
    assert found.failed == 0
    assert found.broken_off == np.isnan(record.rewards).sum() >= 4
    assert f"{found.broken_off} broken off" in found.to_text()


def test_a_measurement_that_was_broken_off_does_not_keep_a_run_from_going_on(world: Path, tmp_path: Path) -> None:
    some = TaskSet.from_iterable([{"id": "s", "input": "slow"}, {"id": "f", "input": "fast"}])
    given = {"validation": some, "validate_every": 1, "measured": 1, "options": {"budget": Budget(seconds=2.0)}}
    first = run(world, tmp_path / "out", generations=1, **given)
    again = run(world, tmp_path / "out", generations=2, **given)
    assert [v.done for v in first.validations] == [0, 1]
    assert [v.done for v in again.validations] == [0, 1, 2]


def test_a_budget_ends_it_and_the_next_call_goes_on(world: Path, tmp_path: Path) -> None:
    whole = run(world, tmp_path / "whole")
    with pytest.raises(OutOfBudgetError, match="tokens"):
        run(world, tmp_path / "out", budget=Budget(tokens=whole.tokens // 2), concurrency=2)
    found = run(world, tmp_path / "out")
    assert found.found + found.rollouts == whole.rollouts
    assert found.found > 0
    assert f"{found.found} further rollouts are kept from earlier calls" in found.to_text()
    assert whole.found == 0
    assert [g.weights for g in found.generations] == [g.weights for g in whole.generations]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tasks": TaskSet()}, ConfigurationError, "no task to train on"),
        ({"tasks": [1]}, ConfigurationError, "TaskSet"),
        ({"held_out": tasks().split("train")}, TaskOverlapError, "train on and to hold out"),
        ({"model": "./nowhere"}, ConfigurationError, "config.json"),
        ({"model": 5}, ConfigurationError, "model is a path"),
        ({"out": 5}, ConfigurationError, "out is a path"),
        ({"concurrency": 0}, ConfigurationError, "concurrency"),
        ({"concurrency": "x"}, ConfigurationError, "concurrency"),
        ({"budget": 1000}, ConfigurationError, r"Budget\(tokens"),
        ({"options": ["effects"]}, ConfigurationError, "options are options of wrap"),
        ({"executor": None}, ConfigurationError, "executor"),
        ({"workers": "two"}, ConfigurationError, "workers"),
        ({"progress": True}, ConfigurationError, "progress"),
        ({"common_noise": "yes"}, ConfigurationError, "common_noise"),
        ({"generations": "many"}, ConfigurationError, "generations"),
        ({"options": {"particles": 3}}, ConfigurationError, "particles"),
        ({"options": {"efects": "pure"}}, ConfigurationError, "no argument 'efects': did you mean effects"),
        ({"validate_every": -1}, ConfigurationError, "validate_every"),
        ({"scope": "some"}, ConfigurationError, "scope"),
        ({"measured": 0}, ConfigurationError, "measured"),
        ({"strategy": 3}, ConfigurationError, "Strategy"),
        ({"racing": 0.2}, ConfigurationError, "Racing"),
        (
            {"racing": amc.Racing(), "strategy": amc.Strategy(population=4, sigma=Automatic(0.02))},
            ConfigurationError,
            "racing hides",
        ),
        ({"executor": "nobody"}, amc.AMCError, "langgraph-amc-nobody"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(
    world: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(world, **{"out": tmp_path / "out", **changes})
    assert not (tmp_path / "out" / "history.jsonl").exists()


def test_an_app_that_calls_another_model_is_found_out(world: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotReachedError, match="amc-local/"):
        run(world, tmp_path / "out", app=f"{world}/agent.py:deaf")


def test_tools_of_which_nothing_is_known_are_named(world: Path, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(APP)
    (tmp_path / "tooled.py").write_text(TOOLED)
    app = f"{tmp_path}/tooled.py:graph"
    with (
        pytest.warns(UserWarning, match=r"side effects of send: .* every rollout"),
        pytest.raises(ModelNotReachedError),
    ):
        run(world, tmp_path / "out", app=app)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*side effects")
        with pytest.raises(ModelNotReachedError):
            run(world, tmp_path / "known", app=app, options={"effects": {"send": "pure"}})


def test_a_folder_where_a_file_goes_or_that_is_the_models_is_refused(world: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "history.jsonl").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="a file of this name goes there"):
        run(world, tmp_path / "out")
    for out in (world / "model", world / "model" / "tuned"):
        with pytest.raises(ConfigurationError, match="in the model's folder"):
            run(world, out)
    assert "history.jsonl" not in digest(world / "model")


async def test_inside_an_event_loop_it_names_the_function_to_await(world: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="aevolve"):
        run(world, tmp_path / "out")


def test_runs_that_all_fail_or_are_not_judged_end_it(world: Path, tmp_path: Path) -> None:
    broken = TaskSet.from_iterable([{"id": "b", "input": "broken"}])
    with pytest.raises(NoRewardError, match=r"the tool broke.*; if the base does better, sigma is too large"):
        run(world, tmp_path / "broken", tasks=broken)
    with pytest.raises(NoRewardError, match="no score"):
        run(world, tmp_path / "out", tasks=TaskSet.from_iterable([{"id": "unjudged", "input": "fine"}]))
    with pytest.raises(NoRewardError, match=r"rollouts was broken off by the limit .* raise --rollout-seconds"):
        run(world, tmp_path / "short", options={"effects": {"*": "pure"}, "budget": Budget(seconds=1e-9)})


def test_a_folder_of_another_run_is_not_gone_on_with(world: Path, tmp_path: Path) -> None:
    run(world, tmp_path / "out", generations=1)
    with pytest.raises(ConfigurationError, match="other batch"):
        run(world, tmp_path / "out", batch=2)
    with pytest.raises(amc.AMCError, match="another strategy"):
        run(world, tmp_path / "out", strategy=amc.Strategy(population=4, sigma=0.03, seed=5))


def test_racing_runs_less_and_is_told_so(world: Path, tmp_path: Path) -> None:
    every = tasks(train=8).split("train")
    found = run(world, tmp_path / "out", tasks=every, batch=8, racing=amc.Racing(2.0, block=2), generations=1)
    assert found.rollouts < 4 * 8
    assert found.generations[0].known == pytest.approx(found.rollouts / 32)
    assert any(read(tmp_path / "out" / "history.jsonl").records[0].update.coefficients)
    assert not math.isnan(found.generations[0].reward.mean)


@pytest.mark.parametrize(
    "strategy",
    [
        amc.Strategy(population=4, sigma=0.02, rank=None),
        amc.Strategy(population=3, sigma=0.02, antithetic=False, noise="gaussian", shaping="ranks", decay=0.1),
    ],
    ids=["full rank", "independent, Gaussian, ranks, decay"],
)
def test_other_strategies_run_and_replay(world: Path, tmp_path: Path, strategy: amc.Strategy) -> None:
    found = run(world, tmp_path / "out", strategy=strategy, batch=2)
    log = read(tmp_path / "out" / "history.jsonl")
    assert len({log.header.weights, *(r.weights for r in log.records)}) > 1
    assert replay(tmp_path / "out" / "history.jsonl", world / "model").hash() == found.weights == log.weights


def test_an_adapter_alone_is_tuned(world: Path, tmp_path: Path) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    from langgraph_amc.evolution.replay import load

    base = AutoModelForCausalLM.from_pretrained(world / "model")
    adapted = peft.get_peft_model(
        base, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    adapted.save_pretrained(tmp_path / "adapter")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / "adapter" / name).write_bytes((world / "model" / name).read_bytes())
    text = (world / "agent.py").read_text().replace("HERE / 'model'", f"Path({str(tmp_path / 'adapter')!r})")
    (tmp_path / "agent.py").write_text(text)
    app = f"{tmp_path}/agent.py:graph"
    found = run(
        world, tmp_path / "out", app=app, model=tmp_path / "adapter", scope="lora", strategy=amc.Strategy(4, 0.1)
    )
    assert len({g.weights for g in found.generations}) == 2
    assert found.model is not None
    assert (Path(found.model) / "adapter_model.safetensors").is_file()
    assert load(found.model) is not None
