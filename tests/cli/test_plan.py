"""``amc plan`` and the capping options, in real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_cli import APP, APP_OPTIONS, amc


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("plan")
    (where / "agent.py").write_text(APP)
    lines = [{"id": f"t{i}", "input": f"walk {i}", "split": "train"} for i in range(6)]
    (where / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return where


def test_a_plan_from_assumptions(folder: Path) -> None:
    options = ("plan", "agent.py:graph", "--particles", "8", "--calls", "2-4", "--model", "openai/gpt-4o-mini")
    text = amc(folder, *options, "--tasks", "tasks.jsonl", "--max-usd", "0.05").stdout
    assert "assumed, 2-4 calls per run" in text
    assert "one task: 8–16 runs, 16–64 calls" in text
    assert "6 tasks: 48–96 runs, 96–384 calls" in text
    assert "N = 8: $" in text
    assert "cap $0.0500: N = " in text
    found = json.loads(amc(folder, *options, "--json").stdout)
    assert found["per_task"]["runs"] == [8, 16]
    assert found["fits"] is None
    unknown = amc(folder, *options[:-1], "mine").stdout
    assert "price unknown (no table knows mine, give --price IN/OUT" in unknown
    assert "price unknown (give --model" in amc(folder, *options[:-2]).stdout
    own = json.loads(amc(folder, *options[:-1], "mine", "--price", "1/2", "--max-usd", "99", "--json").stdout)
    assert own["fits"] == 8


CAP = ("-n", "3", "--max-calls", "50", "--concurrency", "1")


def test_a_plan_from_past_runs_and_a_collection_with_a_cap(folder: Path) -> None:
    collected = amc(folder, "collect", *APP_OPTIONS, "--store", "runs.sqlite", *CAP)
    assert "ended by the budget: calls" in collected.stdout
    assert "12 runs on 6 tasks" in collected.stdout
    assert "Error in" not in collected.stderr
    text = amc(folder, "plan", "agent.py:graph", "-n", "2", "--store", "runs.sqlite", "--tasks", "tasks.jsonl").stdout
    assert "past runs in runs.sqlite" in text
    assert "one task: 2–4 runs, 8–16 calls" in text
    options = (*APP_OPTIONS, "--value", "agent.py:blind", "-n", "2", "--max-calls", "20")
    assert "ended the comparison" in amc(folder, "compare", *options, check=2).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "agent.py:graph", "--max-usd", "1"), "give --model, or --price IN/OUT"),
        (("plan", "agent.py:graph", "--max-usd", "1", "--model", "mine"), "no table knows mine, give --price IN/OUT"),
        (("plan", "agent.py:graph", "--calls", "many"), "3-12"),
        (("plan", "agent.py:graph", "--price", "cheap"), "0.15/0.60"),
        (("plan", "agent.py:graph", "--store", "none.sqlite"), "none.sqlite"),
        (("plan", "agent.py:nothing"), "nothing"),
        (("collect", *APP_OPTIONS, "--store", "x.sqlite", "--max-usd", "1"), "--price IN/OUT"),
    ],
)
def test_mistakes_get_a_clear_error(folder: Path, words: tuple[str, ...], message: str) -> None:
    result = amc(folder, *words, check=2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
