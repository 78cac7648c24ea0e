"""``amc optimize`` on the command line: what it prints, what it writes, and every clear error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from langgraph_amc.cli.app import app
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.skills import SkillError
from tests.support import parcels
from tests.support.openai_server import OpenAIServer

SIZES = {"train": 4, "validation": 12, "held_out": 4}
WORDS = (
    *("optimize", "agent.py:graph", "--tasks", "tasks.jsonl", "--reward", "agent.py:accepted"),
    *("--effects", "submit=pure", "--alpha", "0.3", "--rounds", "1", "--candidates", "2"),
)
SPLITS = ("--split", "train", "--validation", "validation", "--held-out", "held-out")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with OpenAIServer() as server:
        server.reply = parcels.reply
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.chdir(parcels.made(tmp_path, **SIZES))
        yield tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, [*WORDS, *words])


def test_new_skills_from_none_by_a_model_that_proposes(folder: Path) -> None:
    result = run(*SPLITS, "--proposer", "openai/author")
    assert result.exit_code == 0, result.output
    for part in ("at most 3 candidates", "1 round, ", "24 per candidate", "tried", "rollouts"):
        assert part in result.output
    found = json.loads((folder / "optimized" / "result.json").read_text())
    assert {t["proposal"]["proposer"] for t in found["trials"]} <= {"llm", "joint"}
    assert found["trials"]
    assert (folder / "optimized" / "changes.md").read_text().startswith("# Changed skills")


def test_json_is_one_object_and_quiet_is_quiet(folder: Path) -> None:
    result = run(*SPLITS, "--json", "--skills", ".", "--out", "elsewhere/new", "--max-calls", "1000")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["skills"] == "elsewhere/new/skills"
    assert result.stderr == ""
    again = run(*SPLITS, "--quiet", "--skills", ".", "--out", "elsewhere/new")
    assert again.stderr == ""
    assert "0 rollouts" in again.stdout


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ((), ConfigurationError, "has the splits train, validation, held-out"),
        (("--split", "train", "--held-out", "held-out"), ConfigurationError, "give --validation"),
        ((*SPLITS, "--limit", "3"), ConfigurationError, "3 validation tasks"),
        ((*SPLITS, "--skills", "nowhere"), ConfigurationError, "no folder nowhere"),
        ((*SPLITS, "--skills", "broken"), SkillError, "no front matter"),
        ((*SPLITS, "--evidence", "nowhere.sqlite"), ConfigurationError, "no store"),
        ((*SPLITS, "--evidence", "sqlite:///nowhere.sqlite"), ConfigurationError, "no store"),
        ((*SPLITS, "--max-calls", "20"), ConfigurationError, "buys no candidate"),
        ((*SPLITS, "--out", "agent.py/x"), ConfigurationError, "cannot be written"),
    ],
)
def test_what_cannot_work_is_one_clear_error(
    folder: Path, words: tuple[str, ...], error: type[Exception], said: str
) -> None:
    (folder / "broken" / "a").mkdir(parents=True)
    (folder / "broken" / "a" / "SKILL.md").write_text("nothing")
    result = run(*words)
    assert isinstance(result.exception, error)
    assert said in str(result.exception)
    assert not (folder / "optimized").exists()
