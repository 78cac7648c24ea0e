"""``amc advise`` on a pilot that it runs and on stored runs, through the command itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from langgraph_amc.cli.advise import advise
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.trajectories.store import TrajectoryStore
from tests.evaluate.advice_worlds import World

HERE = Path(__file__).parent
WALK = f"{HERE / 'test_compare.py'}"
app = typer.Typer()
app.command()(advise)


def amc_advise(*words: Any) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_pilot_of_a_real_app_is_run_judged_and_kept(tmp_path: Path) -> None:
    pilot = [f"{WALK}:build", "--tasks", f"{WALK}:TASKS", "--reward", f"{WALK}:unbroken"]
    steer = ["--value", f"{WALK}:sees_slips", "-n", 4, "--resample", "every(1)", "--quiet"]
    store = tmp_path / "pilot.sqlite"
    found = json.loads(amc_advise(*pilot, *steer, "--limit", 20, "--store", store, "--json"))
    assert found["verdict"]["answer"] == "will help", found["verdict"]
    assert (found["tasks"], found["runs"], found["particles"]) == (20, 80, 4)
    assert found["cost"]["tokens"] > 0
    picture = tmp_path / "out" / "advice.svg"
    text = amc_advise("--store", store, *steer, "--save", picture)
    assert text.startswith("AMC will help")
    assert "<svg" in picture.read_text()


def test_logs_need_no_app(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path / "t.sqlite") as store:
        store.add(World(keep=0.4).runs(10, 4))
    found = json.loads(amc_advise("--store", tmp_path / "t.sqlite", "-n", 4, "--json", "--quiet"))
    assert found["verdict"]["reason"] == "hopeless"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--store"):
        amc_advise()
    with pytest.raises(ConfigurationError, match="amc collect"):
        amc_advise("--store", tmp_path / "none.sqlite")
    with pytest.raises(ConfigurationError, match="--reward"):
        amc_advise(f"{WALK}:build", "--tasks", f"{WALK}:TASKS")
    with pytest.raises(ConfigurationError, match=r"\.svg"):
        amc_advise("--store", tmp_path, "--save", "x.png")
