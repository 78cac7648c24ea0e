"""Choosing by data: the one-standard-error rule, what the data cannot tell, and the command from store to file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from typer.testing import CliRunner, Result

from langgraph_amc.cli.progress import print_whole
from langgraph_amc.cli.tune import tune as command
from langgraph_amc.cli.tune import tuning_table
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate import tune as tuning
from langgraph_amc.evaluate.logged import LoggedRuns
from langgraph_amc.evaluate.tune import TuningDataError, one_standard_error, tune
from langgraph_amc.runtime.config import RunConfig
from langgraph_amc.smc import every, never
from langgraph_amc.trajectories.store import TrajectoryStore
from langgraph_amc.trajectories.types import Trajectory, Usage
from tests.evaluate.logged_walk import walks

STAYS = tuple(np.random.default_rng(1).uniform(0.7, 0.9, size=20))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SPACINGS", (2, 4))
    monkeypatch.setattr(tuning, "TARGETS", (0.5,))


@settings(max_examples=40, deadline=None)
@given(
    rewards=arrays(float, (5, 12), elements=st.floats(0, 1)),
    spent=arrays(float, 5, elements=st.floats(1, 100)),
)
def test_one_standard_error(rewards: np.ndarray, spent: np.ndarray) -> None:
    best, picked = one_standard_error(rewards, spent)
    assert rewards[best].mean() == rewards.mean(axis=1).max()
    assert spent[picked] <= spent[best]
    behind = rewards[best] - rewards[picked]
    assert behind.mean() <= behind.std(ddof=1) / np.sqrt(12) + 1e-12
    cheaper = spent < spent[picked]
    lag = rewards[best] - rewards[cheaper]
    assert (lag.mean(axis=1) > lag.std(axis=1, ddof=1) / np.sqrt(12)).all()


def test_a_clear_gain_over_the_defaults_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "every", lambda k: every(50) if k == 3 else every(k))  # as if the default never fired
    found = tune(walks(STAYS, 2.0, runs=9), particles=[6], replicates=3)
    assert found.verdict == "better"
    assert found.chosen == found.picked != found.default
    assert found.gain.low > 0
    config = found.to_config()
    assert config.particles == 6
    assert config.resample == repr(found.chosen.arm.schedule)
    assert config.tuned["verdict"] == "better"


def test_as_good_for_less_is_taken_too() -> None:
    # every run is right but for a few that V sees: four runs do as well as eight
    found = tune(walks((0.97,) * 20, 3.0, runs=12), particles=[3, 8], replicates=3)
    assert found.verdict == "cheaper"
    assert found.chosen.arm.particles == 3
    assert found.saving > 0.5
    assert "fewer steps" in found.reason


def test_noise_leaves_the_defaults() -> None:
    found = tune(walks((0.75,) * 12, 0.0, runs=12), particles=[4, 8], replicates=2)
    assert found.verdict == "defaults"
    assert found.chosen == found.default
    assert "cannot tell" in found.reason
    assert found.to_config().resample == "every(3)"


def test_rows_are_a_trade_off() -> None:
    found = tune(walks(STAYS, 2.0, runs=9), particles=[2, 6], replicates=2)
    spent = [row.spent for row in found.rows]
    assert spent == sorted(spent)
    assert found.row(found.default).gain.mean == 0
    plain = [row for row in found.rows if row.setting.arm.schedule == never()]
    assert [row.setting.arm.particles for row in plain] == [2, 6]
    assert plain[0].reward.mean < plain[1].reward.mean
    assert found.single.mean < plain[0].reward.mean
    json.dumps(found.to_json(), allow_nan=False)


def test_what_the_data_cannot_tell_is_refused_or_said() -> None:
    with pytest.raises(TuningDataError, match="at least 10 tasks with 4 independent runs"):
        tune(walks(STAYS[:9], 1.0, runs=8), particles=[4])
    with pytest.raises(TuningDataError, match="all 120 runs earned 1"):
        tune(walks((1.0,) * 12, 1.0, runs=10), particles=[4])
    with pytest.raises(ConfigurationError, match="at least 2"):
        tune(walks(STAYS, 1.0, runs=8), particles=[1, 4])
    few = walks(STAYS[:12], 1.0, runs=5)
    more = LoggedRuns((*few.runs, *walks((0.8,), 1.0, runs=9, seed=9).runs), "steps")
    notes = " ".join(tune(more, particles=[4, 8], replicates=1).notes)
    assert "N = 8 left out" in notes
    assert "8 runs per task would tell more" in notes


@pytest.mark.parametrize("width", [40, 80])
def test_the_table_is_not_cut(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The longest setting with the largest figures, on a narrow terminal and where there is none."""
    tuning = tune(walks(STAYS, 1.0, runs=8), particles=[8], replicates=1)
    row = replace(tuning.rows[0], spent=9_876_543.2)
    wide = replace(tuning, rows=(row,), chosen=row.setting, unit="tokens")
    monkeypatch.setenv("COLUMNS", str(width))
    for terminal in ("1", "0"):
        monkeypatch.setenv("TTY_COMPATIBLE", terminal)
        print_whole(tuning_table(wide, all_rows=True))
        printed = capsys.readouterr().out
        assert "…" not in printed
        assert "9,876,543" in printed
        for figures in (row.reward, row.gain):
            assert f"{figures.high:.3f}]" in printed
        for word in str(row.setting).split():
            assert word in printed
    assert str(row.setting) in printed


def test_the_command_from_store_to_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "judge.py").write_text("def sees(text: str) -> float:\n    return 0.05 if 'bad' in text else 0.8\n")
    with TrajectoryStore(tmp_path / "runs.sqlite") as store:
        for i in range(14):
            runs = []
            for k in range(6):
                said = ["good" if rng.random() < 0.8 else "bad" for _ in range(6)]
                runs.append(
                    Trajectory(
                        f"r{i}",
                        f"p{k}",
                        (f"walk {i}", *said),
                        outcome=float("bad" not in said),
                        task_id=f"t{i}",
                        usage=Usage(6, 600, 60),
                        fingerprint="abc",
                    )
                )
            store.add(runs, task={"id": f"t{i}", "input": f"walk {i}", "split": "tune"})
    app = typer.Typer()
    app.command()(command)
    monkeypatch.chdir(tmp_path)

    def amc(*words: str) -> Result:
        words = ("runs.sqlite", "--value", "judge.py:sees", "--replicates", "1", "-n", "4", *words)
        return CliRunner().invoke(app, words)

    printed = amc("--split", "tune").stdout
    assert "chosen: N = 4" in printed
    assert "…" not in printed.replace("value=…", "")
    assert "value=…" in printed
    config = RunConfig.load(tmp_path / "amc.json")
    assert (config.particles, config.value, config.transcript) == (4, None, "abc")
    found = json.loads(amc("--json", "--out", "other.json").stdout)
    assert found["unit"] == "tokens"
    assert RunConfig.load(tmp_path / "other.json").resample in found["chosen"]
    for words, message in ((("--split", "test"), "the splits are tune"), (("-n", "four"), "such as 4,8,16")):
        refused = amc(*words).exception
        assert isinstance(refused, ConfigurationError)
        assert message in str(refused)
