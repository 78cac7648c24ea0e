"""Arguments of a wrong type: an error that says what to give, before anything is loaded, asked or trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel

from langgraph_amc.errors import AMCError, ConfigurationError
from langgraph_amc.policy.budget import Budget
from langgraph_amc.trajectories.types import Trajectory
from langgraph_amc.value import (
    RemoteValue,
    Served,
    ServerLimits,
    ValueServer,
    as_value,
    calibrated,
    ensemble,
    fit_calibration,
    foa_judge,
    judge,
    load_features,
    load_value,
    train_features,
    train_value,
    with_resamplings,
)
from langgraph_amc.value.soft import check_beta

MODEL = FakeListChatModel(responses=["0.5"])
RUNS = [Trajectory(f"r{i}", "p0", ("a", "b"), outcome=float(i % 2), task_id=str(i)) for i in range(20)]


def half(transcripts: Any) -> list[float]:
    return [0.5] * len(transcripts)


def refused(call: Callable[..., Any], *given: Any, **named: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        call(*given, **named)
    return str(error.value)


@pytest.mark.parametrize(
    "named",
    [
        {"max_chars": "a"},
        {"max_chars": 300.5},
        {"max_chars": True},
        {"task": 3},
        {"criteria": ["short"]},
        {"scale": "05"},
        {"scale": None},
        {"scale": (0, "1")},
        {"scale": (0, 1, 2)},
        {"reward": 3},
        {"explain": "no"},
        {"retries": "a"},
        {"concurrency": None},
    ],
)
def test_of_a_judge(named: dict[str, Any]) -> None:
    assert next(iter(named)) in refused(judge, MODEL, **named)


@pytest.mark.parametrize(
    "examples", ["abc", None, [("t", "x")], [("t", True)], [(3, 5)], [([3], 5)], [("t", 5, 3)], [("t",)]]
)
def test_of_the_examples_of_a_judge(examples: Any) -> None:
    assert "example" in refused(foa_judge, MODEL, examples=examples)


@pytest.mark.parametrize("weights", ["a", ["a", "b"], [[1], [1, 2]], {"a": 1}, 3, [1, None]])
def test_of_the_weights_of_an_ensemble(weights: Any) -> None:
    assert "2 positive numbers" in refused(ensemble, [half, half], weights=weights)


@pytest.mark.parametrize("url", [None, 3, "localhost:8750", "http://", "http://host:99999999", "http://[::1"])
def test_of_an_address(url: Any) -> None:
    assert "address" in refused(RemoteValue, url)


@pytest.mark.parametrize(
    "named",
    [
        {"label": "a"},
        {"label": True},
        {"token": 3},
        {"retry": 3},
        {"extra": 3},
        {"extra": {"a": object()}},
        {"model": 3},
        {"api": []},
        {"transcript_fingerprint": 3},
    ],
)
def test_of_a_remote_value(named: dict[str, Any]) -> None:
    assert next(iter(named)) in refused(RemoteValue, "http://host", **named)


@pytest.mark.parametrize("named", [{"cache_bytes": "x"}, {"cache_bytes": True}, {"max_tokens": 1.5}, {"base": 3}])
def test_of_a_value_function_to_load(tmp_path: Path, named: dict[str, Any]) -> None:
    train_features(RUNS, out=tmp_path)
    (tmp_path / "amc_features.json").rename(tmp_path / "amc_value.json")  # nothing is read before
    assert next(iter(named)) in refused(load_value, tmp_path, **named)


@pytest.mark.parametrize("load", [load_value, load_features])
@pytest.mark.parametrize("path", [None, 3, "", "a\0b"])
def test_of_a_folder(load: Any, path: Any) -> None:
    assert "folder is a path" in refused(load, path)


@pytest.mark.parametrize("device", ["x", 3.5])
def test_of_a_device(tmp_path: Path, device: Any) -> None:
    assert "device" in refused(load_value, tmp_path, device=device)


@pytest.mark.parametrize("runs", [3, RUNS[0], "abc", ["a"], [None], {"a": RUNS[0]}])
def test_of_trajectories(tmp_path: Path, runs: Any) -> None:
    for call in (
        lambda: train_value(runs, "base", out=tmp_path / "v"),
        lambda: train_features(runs, out=tmp_path / "f"),
        lambda: fit_calibration(half, runs),
        lambda: with_resamplings(runs, []),
    ):
        assert "list of Trajectory objects" in refused(call)


@pytest.mark.parametrize(
    "named",
    [
        {"epochs": "a"},
        {"epochs": 1.5},
        {"epochs": True},
        {"lr": "a"},
        {"head_lr": None, "lr": True},
        {"batch_tokens": "a"},
        {"max_length": "a"},
        {"validation": "a"},
        {"validation": None},
        {"patience": "a"},
        {"seed": "a"},
        {"seed": -1},
        {"bins": "a"},
        {"td_lambda": "a"},
        {"calibrate": []},
        {"weight_decay": -1},
        {"warmup": "a"},
        {"loss": 3},
        {"lora": "x"},
        {"lora": 1.5},
        {"out": None},
        {"device": "x"},
    ],
)
def test_of_training(tmp_path: Path, named: dict[str, Any]) -> None:
    assert any(name in refused(train_value, RUNS, "no-base", **{"out": tmp_path / "v", **named}) for name in named)


@pytest.mark.parametrize("named", [{"validation": "a"}, {"seed": "a"}, {"out": 3}, {"last": "a"}, {"columns": 0}])
def test_of_training_on_features(tmp_path: Path, named: dict[str, Any]) -> None:
    assert next(iter(named)) in refused(train_features, RUNS, **{"out": tmp_path / "f", **named})


@pytest.mark.parametrize("limits", [{"batch": "a"}, {"window": "a"}, {"window": float("nan")}, {"body": None}])
def test_of_the_limits_of_a_server(limits: dict[str, Any]) -> None:
    assert "bounds" in refused(ServerLimits, **limits)


@pytest.mark.parametrize("named", [{"host": 3}, {"port": "a"}, {"port": -1}, {"token": 3}, {"limits": 3}])
def test_of_a_server(named: dict[str, Any]) -> None:
    assert next(iter(named)) in refused(ValueServer, Served.of(half), **named)
    assert "Served.of" in refused(ValueServer, half)


@pytest.mark.parametrize("beta", ["x", None, True, 0, float("inf")])
def test_of_beta(beta: Any) -> None:
    assert "beta" in refused(check_beta, beta)


def test_of_a_calibration() -> None:
    assert "fit_calibration" in refused(calibrated, half, None)
    assert "fit_calibration" in refused(calibrated, half, "platt")
    with pytest.raises(AMCError):
        fit_calibration(half, RUNS, method=[])  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["lone \ud800", "\udc00", "zero \0 byte"])
def test_texts_that_no_encoding_holds_are_scored(tmp_path: Path, text: str) -> None:
    """Segments made by hand may hold what `Transcript` would have replaced."""
    runs = [Trajectory(f"r{i}", "p0", (text, f"{text} {i}"), outcome=float(i % 2), task_id=str(i)) for i in range(20)]
    train_features(runs, out=tmp_path / "f")
    values = as_value(tmp_path / "f")
    assert values.score([(text, text)]).shape == (1,)
    examples = [(text, 0.5, text)]
    asked = foa_judge(MODEL, votes=1, examples=examples, task=text, criteria=text, scale=(0, 1), explain=False)
    with Budget(tokens=10**6, output_tokens=10).open():
        assert asked.score([(text, text)]).tolist() == [0.5]
    with ValueServer(Served.of(tmp_path / "f")) as server:
        remote = RemoteValue(server.url)
        assert remote.score([(text, text)]).tolist() == pytest.approx(values.score([(text, text)]).tolist())
        remote.close()
