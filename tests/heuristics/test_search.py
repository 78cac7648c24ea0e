"""Screening, problems, and the search with a stochastic model behind a real HTTP server."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from langgraph_amc.cli.app import app
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.evaluate.designing import Designed, design
from langgraph_amc.evaluate.designing.run import NoHeuristicError
from langgraph_amc.evolution.history import read
from langgraph_amc.evolution.strategy import Strategy
from langgraph_amc.heuristics import BinPacking, HeuristicFailure, Judged, Limits, Search, Tour, judge
from langgraph_amc.heuristics.screening import code_in, screen
from langgraph_amc.heuristics.search import ranks
from langgraph_amc.skills.library import SkillLibrary
from tests.support.openai_server import OpenAIServer

PACKING = BinPacking(items=40)
QUICK = Limits(seconds=3)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(x:", "no Python"),
        ("def g(x): return x", "does not define"),
        ("def f(x, y): return x", "exactly"),
        ("def f(*x): return x", "exactly"),
        ("import os\ndef f(x): return x", "imports os"),
        ("from os import path\ndef f(x): return x", "imports os"),
        ("def f(x):\n    import socket\n    return x", "imports socket"),
        ("def f(x): return x.__class__", "__class__"),
        ("def f(x): return eval('x')", "eval"),
        ("def f(x): return x\nf(1)", "at the top"),
        ("def f(x): yield x", "Yield"),
        ("class A: pass\ndef f(x): return x", "at the top"),
        ("x = 1\n" * 5000 + "def f(x): return x", "characters"),
    ],
)
def test_what_is_refused_by_reading_it(source: str, said: str) -> None:
    with pytest.raises(HeuristicFailure, match=said) as caught:
        screen(source, "f", ("x",), ("math",))
    assert caught.value.kind == "refused"


def test_what_passes_has_one_form() -> None:
    code = "import math\nLIMIT = -1.5\n\ndef f(x):\n    # a comment\n    return math.sqrt( x )"
    told = f"Here it is:\n```python\n{code}\n```\nDone"
    plain = "import math\nLIMIT = -1.5\ndef f(x):\n    return math.sqrt(x)\n"
    assert screen(code_in(told), "f", ("x",), ("math",)) == screen(code_in(plain), "f", ("x",), ("math",))


def test_scores_are_earned_and_known_ones_come_out() -> None:
    [instance] = PACKING.instances(3, 1)
    best_fit = judge(PACKING, PACKING.known, [instance], QUICK)
    one_each = judge(PACKING, "def priority(item, room):\n    return room\n", [instance], QUICK)
    assert best_fit.score is not None
    assert best_fit.score > -0.2
    assert one_each.score == pytest.approx(1 - 40 / np.ceil(sum(instance) / 100))  # a new bin for each item
    tour = Tour(nodes=20)
    nearest = judge(tour, tour.known, tour.instances(0, 2), QUICK)
    farthest = judge(tour, "def priority(step, home, rest, left):\n    return step\n", tour.instances(0, 2), QUICK)
    assert nearest.score is not None
    assert farthest.score is not None
    assert farthest.score < -3 < nearest.score < -0.9


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("return 1 / 0", "error"),
        ("return 'much'", "invalid"),
        ("return float('nan')", "invalid"),
        ("return 10 ** 400", "invalid"),  # no float holds it
        ("return item" + ".real" * 900, "refused"),  # deeper than Python can write it down again
        ("return 1.0" + " if 1 else 1" * 1500, "refused"),
        ("return " + "-" * 15_000 + "1", "refused"),
        ("while True: pass", "time"),
        ("return [0] * 10 ** 12", "memory"),
        ("return open('x')", "refused"),
    ],
)
def test_a_failure_is_a_result_with_a_name(body: str, kind: str) -> None:
    found = judge(PACKING, f"def priority(item, room):\n    {body}\n", PACKING.instances(0, 1), Limits(seconds=1))
    assert (found.score, found.failure) == (None, kind)


def test_what_failed_ranks_below_all_that_ran() -> None:
    column = [Judged("a", -5.0), Judged("b", None, "time"), Judged("c", -1.0), Judged("d", None, "error")]
    assert ranks(column).tolist() == pytest.approx([1 / 6, -1 / 3, 0.5, -1 / 3])
    assert sum(ranks(column)) == pytest.approx(0)


def writing(seed: int) -> Any:
    """A reply hook: a random formula, a changed one of the parent's, or something broken."""
    rng = random.Random(seed)
    bad = (
        "def priority(item, room):\n    return 1 / 0",
        "I cannot do that.",
        "import os\ndef priority(item, room): return 0",
    )

    def reply(body: dict[str, Any], number: int) -> str:
        if rng.random() < 0.2:
            return rng.choice(bad)
        parts = ["room", "item", "room * room", "item * room", "math.sqrt(room)", "room / (item + 1)"]
        terms = " + ".join(f"{rng.uniform(-1, 1):.2f} * {part}" for part in rng.sample(parts, rng.randint(1, 2)))
        return f"```python\nimport math\n\ndef priority(item, room):\n    return {terms}\n```"

    return reply


def search(server: OpenAIServer, out: Path, **changes: Any) -> Designed:
    given: dict[str, Any] = {
        "settings": Search(generations=3, requests=2, kept=4, instances=2, limits=QUICK),
        "strategy": Strategy(population=4, seed=1),
        "options": {"api_base": server.base_url, "api_key": "test"},
        "held_out": 3,
    }
    return design(PACKING, "openai/test-model", out=out, **{**given, **changes})


def test_a_search_behind_a_real_server_and_going_on_with_it(tmp_path: Path) -> None:
    with OpenAIServer() as server:
        server.reply = writing(0)
        found = search(server, tmp_path)
        asked = len(server.requests)
        assert asked == found.answers == 3 * 4 * 2
        again = search(server, tmp_path)
        assert len(server.requests) == asked
        assert again == found
        longer = search(server, tmp_path, settings=Search(generations=4, requests=2, kept=4, instances=2, limits=QUICK))
        assert len(server.requests) == asked + 4 * 2
    assert list(found.curve) == sorted(found.curve)  # the best is never lost
    assert longer.curve[:3] == found.curve
    assert set(found.failures) <= {"error", "refused"}
    assert sum(found.failures.values()) > 0
    log = read(tmp_path / "history.jsonl")
    assert all(record.update.is_zero and record.weights == "none" for record in log.records)
    assert log.records[0].notes["operators"] == ["start", "start"]
    [skill] = SkillLibrary.read(tmp_path / "skills")
    assert skill.files["scripts/heuristic.py"].decode() == (tmp_path / "bin-packing.py").read_text()
    asked_for = str(server.requests[-1]["messages"][-1]["content"])
    assert "Score -0." in asked_for
    with pytest.raises(ConfigurationError, match="other kept"):
        search(server, tmp_path, settings=Search(generations=3, requests=2, kept=5, instances=2, limits=QUICK))


def test_a_model_that_writes_nothing_of_use(tmp_path: Path) -> None:
    with OpenAIServer() as server:
        server.reply = lambda body, number: "I would rather not."
        with pytest.raises(NoHeuristicError, match="refused, no Python"):
            search(server, tmp_path, settings=Search(generations=1, instances=1))


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer() as server:
        server.reply = writing(1)
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        words = ["design", "bin-packing", "--model", "openai/test-model", "--out", str(tmp_path / "out")]
        words += ["--generations", "1", "--population", "4", "--instances", "1", "--json"]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["answers"] == 4
    unknown = CliRunner().invoke(app, ["design", "knapsack", "--model", "x"])
    assert isinstance(unknown.exception, ConfigurationError)
