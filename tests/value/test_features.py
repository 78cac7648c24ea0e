"""The cheap text features: what they learn, that they are measured like a transformer, and what a folder must hold."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from langgraph_amc.errors import ConfigurationError
from langgraph_amc.value import (
    FingerprintMismatch,
    SoftValueFunction,
    TrainingDataError,
    ValueModelError,
    train_value,
)
from langgraph_amc.value.features import SPEC_FILE, WEIGHTS_FILE, FeatureSpec, load_features
from langgraph_amc.value.training import dataset
from langgraph_amc.value.training.text_features import train_features

from .world import FINGERPRINT, slippery_runs

RUNS = slippery_runs(tasks=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("features") / "v"
    train_features(RUNS, out=out)
    return out


def test_it_learns_what_words_tell(tmp_path: Path) -> None:
    report = train_features(RUNS, out=tmp_path / "v")
    assert report.measured_on == "validation"
    assert report.quality.mse < 0.7 * report.quality.baseline_mse
    assert report.quality.ranking.metric == "auc"
    assert report.quality.ranking.value is not None
    assert report.quality.ranking.value > 0.8  # that nothing is known of later slips costs every judge as much
    assert report.quality.ranking_final.value == 1.0
    assert "ranking within a task: auc" in report.to_text()
    assert json.loads((tmp_path / "v" / "amc_value_report.json").read_text()) == report.to_dict()


def test_slips_are_worth_less_and_slips_stay(folder: Path) -> None:
    value = load_features(folder)
    assert isinstance(value, SoftValueFunction)
    task = "task n1 n2 n3 n4 go "
    fine, slip = "act n5 obs fine ", "act n5 obs slip "
    good, bad, lost = value.score([(task, fine), (task, slip), (task, slip, fine, fine)])
    assert good > 0.25 > 0.1 > bad
    assert lost < 0.3
    assert value.score([]).shape == (0,)


def test_the_split_is_that_of_a_transformer(base: Path, tmp_path: Path) -> None:
    cheap = train_features(RUNS, out=tmp_path / "cheap", validation=0.3, seed=5)
    dear = train_value(RUNS, base, out=tmp_path / "dear", validation=0.3, seed=5, epochs=1, calibrate="none")
    assert (cheap.train_states, cheap.validation_states) == (dear.train_states, dear.validation_states)
    assert cheap.quality.ranking.pairs == dear.quality.ranking.pairs
    assert cheap.quality.baseline_mse == dear.quality.baseline_mse


def test_the_report_is_of_what_was_saved_and_of_held_out_tasks_only(tmp_path: Path) -> None:
    report = train_features(RUNS, out=tmp_path / "v", seed=3)
    _, held_out = dataset.split_by_task(RUNS, 0.2, 3)
    states = [(t.segments[: n + 1], g) for t in held_out for n, g in enumerate(t.returns() or ())]
    predicted = load_features(tmp_path / "v").score([state for state, _ in states])
    assert np.mean(np.square(predicted - [g for _, g in states])) == pytest.approx(report.quality.mse)
    # what held-out runs return changes the report and not the value function
    names = {t.task_id for t in held_out}
    flipped = [replace(t, outcome=1 - (t.outcome or 0)) if t.task_id in names else t for t in RUNS]
    other = train_features(flipped, out=tmp_path / "w", seed=3)
    assert other.quality.mse > report.quality.mse
    np.testing.assert_array_equal(load_features(tmp_path / "w").score([s for s, _ in states]), predicted)


def test_it_is_reproducible_and_cheap(folder: Path, tmp_path: Path) -> None:
    train_features(RUNS, out=tmp_path / "again")
    one, two = load_file(folder / WEIGHTS_FILE), load_file(tmp_path / "again" / WEIGHTS_FILE)
    np.testing.assert_array_equal(one["coefficients"], two["coefficients"])
    states = [t.segments for t in RUNS] * 4
    value = load_features(folder)
    began = time.perf_counter()
    value.score(states)
    assert len(states) / (time.perf_counter() - began) > 200


def test_the_soft_value_is_the_tilt_of_the_chance(folder: Path, tmp_path: Path) -> None:
    states = [t.segments[:n] for t in RUNS[:20] for n in (1, 2, 3)]
    value = load_features(folder)
    p = value.score(states)
    for beta in (0.05, 0.5, 20.0):
        expected = beta * np.log(1 - p + p * np.exp(1 / beta))
        np.testing.assert_allclose(value.soft_score(states, beta), expected, rtol=1e-6, atol=1e-12)
    with pytest.raises(ConfigurationError, match="beta"):
        value.soft_score(states, 0.0)
    graded = [replace(t, outcome=3.0 * (t.outcome or 0) + i % 2) for i, t in enumerate(RUNS)]
    train_features(graded, out=tmp_path / "graded", loss="mse")
    mean = load_features(tmp_path / "graded")
    assert mean.score(states).max() > 1.5
    with pytest.raises(ConfigurationError, match="two_hot"):
        mean.soft_score(states, 0.5)


def test_graded_returns_as_chances_and_returns_that_are_all_the_same(tmp_path: Path) -> None:
    halves = [replace(t, outcome=0.25 + 0.5 * (t.outcome or 0)) for t in RUNS]
    report = train_features(halves, out=tmp_path / "h")
    assert report.quality.ranking.metric == "kendall"
    scores = load_features(tmp_path / "h").score([t.segments for t in RUNS])
    assert 0.15 < scores.min() < scores.max() < 0.85
    same = train_features([replace(t, outcome=1.0) for t in RUNS], out=tmp_path / "same")
    assert any("nothing to learn" in note for note in same.notes)
    assert load_features(tmp_path / "same").score([RUNS[0].segments])[0] > 0.9


def test_one_task_is_enough_and_is_said_to_flatter(tmp_path: Path) -> None:
    report = train_features([t for t in RUNS if t.task_id == "task-0"], out=tmp_path / "v")
    assert report.measured_on == "training"
    assert any("flatter" in note for note in report.notes)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"loss": "two_hot"}, ConfigurationError),
        ({"last": 0}, ConfigurationError),
        ({"columns": True}, ConfigurationError),
        ({"validation": 1.0}, ConfigurationError),
        ({"trajectories": []}, TrainingDataError),
        ({"trajectories": [replace(RUNS[0], outcome=2.0)]}, TrainingDataError),
        ({"trajectories": [RUNS[0], replace(RUNS[1], fingerprint="other")]}, TrainingDataError),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    given = {"trajectories": RUNS[:16], **options}
    with pytest.raises(error):
        train_features(given.pop("trajectories"), out=tmp_path / "v", **given)
    assert not (tmp_path / "v").exists()


def test_a_folder_in_use_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueModelError, match="something else"):
        train_features(RUNS[:16], out=tmp_path)
    train_features(RUNS, out=folder)  # its own kind is replaced


def _edit(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / SPEC_FILE).read_text())
    (folder / SPEC_FILE).write_text(json.dumps({**raw, **changes}))


def _tensors(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    save_file(change(load_file(folder / WEIGHTS_FILE)), folder / WEIGHTS_FILE)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / SPEC_FILE).unlink(),
        lambda folder: (folder / SPEC_FILE).write_text("{"),
        lambda folder: (folder / SPEC_FILE).write_text("[]"),
        lambda folder: _edit(folder, format=99),
        lambda folder: _edit(folder, loss="two_hot"),
        lambda folder: _edit(folder, columns=-1),
        lambda folder: _edit(folder, columns=64),
        lambda folder: _edit(folder, more=1),
        lambda folder: (folder / WEIGHTS_FILE).unlink(),
        lambda folder: (folder / WEIGHTS_FILE).write_bytes(b"\x80\x04N."),
        lambda folder: _tensors(folder, lambda t: {"coefficients": t["coefficients"]}),
        lambda folder: _tensors(folder, lambda t: {**t, "intercept": t["intercept"] * np.nan}),
    ],
)
def test_a_damaged_folder_is_refused(damage: Callable[[Path], object], tmp_path: Path) -> None:
    train_features(RUNS[:16], out=tmp_path / "v")
    damage(tmp_path / "v")
    with pytest.raises(ValueModelError):
        load_features(tmp_path / "v")


def test_other_transcripts_are_refused(folder: Path) -> None:
    assert load_features(folder, FINGERPRINT).spec == FeatureSpec.read(folder)
    with pytest.raises(FingerprintMismatch):
        load_features(folder, "sha256:other")
    load_features(folder, "sha256:other", allow_fingerprint_mismatch=True)


def test_scoring_needs_no_torch(folder: Path) -> None:
    code = (
        "import sys\nfrom langgraph_amc.value.features import load_features\n"
        f"print(load_features({str(folder)!r}).score([('task ', 'act')]).shape, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["(1,)", "False"]
