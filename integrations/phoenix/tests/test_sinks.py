"""Scores reach a viewer's API through the sinks, on the spans they belong to."""

from __future__ import annotations

import time
import uuid
import warnings
from typing import Any

import pytest
from langgraph_amc_phoenix import LangSmithScores, PhoenixScores
from langsmith import Client

from langgraph_amc.telemetry import Score, ScoreSink

from .viewers import run, viewer


def test_phoenix() -> None:
    seen: list[Any] = []

    def answer(method: str, path: str, body: Any) -> tuple[int, Any]:
        assert (method, path) == ("POST", "/v1/span_annotations?sync=true")
        seen.append(body["data"])
        return (404, {}) if len(seen) < 3 else (200, {"data": []})  # spans arrive in their own time

    with viewer(answer) as url:
        sink = PhoenixScores(url)
        assert isinstance(sink, ScoreSink)
        result, names = run(sink)
        assert sink.flush()
    assert len(seen) == 3
    filed = [(names[a["span_id"]], a["name"], a["result"]["score"]) for a in seen[-1]]
    assert ("invoke_workflow LangGraph", "reward", 0.5) in filed
    rewards = [name for name, what, _ in filed if what == "reward" and name.startswith("amc.particle")]
    assert sorted(rewards) == sorted(f"amc.particle {p.name}" for p in result.particles)
    values = sum(what == "value" and name.startswith("amc.segment") for name, what, _ in filed)
    assert values == sum(len(check.values) for check in result.checks)
    assert {a["annotator_kind"] for a in seen[-1]} == {"CODE"}


def test_a_viewer_that_is_down_costs_the_run_nothing() -> None:
    sink = PhoenixScores("http://127.0.0.1:9", patience=0.1)
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result, _ = run(sink)
        took = time.monotonic() - began
        assert sink.flush()
    assert took < 5
    assert any("score(s) were not filed: ConnectError" in str(w.message) for w in warned)
    assert result.winner.reward == 0.5


def test_spans_that_never_arrive_are_given_up() -> None:
    with viewer(lambda *request: (404, {"detail": "no such span"})) as url:
        sink = PhoenixScores(url, patience=0.3)
        sink.send([Score("0" * 32, "1" * 16, "value", 0.5)])
        with pytest.warns(RuntimeWarning, match="1 score"):
            assert sink.flush()


def test_langsmith() -> None:
    seen: list[Any] = []

    def answer(method: str, path: str, body: Any) -> tuple[int, Any]:
        if path.endswith("/feedback") and method == "POST":
            seen.append(body)
        return 200, {}

    with viewer(answer) as url:
        sink = LangSmithScores(Client(api_url=url, api_key="none", info={}))
        assert isinstance(sink, ScoreSink)
        _, names = run(sink)
        assert sink.flush()
    filed = [(names[uuid.UUID(f["run_id"]).hex[16:]], f["key"], f["score"]) for f in seen]
    assert ("invoke_workflow LangGraph", "reward", 0.5) in filed
    assert sum(name.startswith("amc.particle") and key == "reward" for name, key, _ in filed) == 4
