"""Scores reach Langfuse's API through its own client."""

from __future__ import annotations

from typing import Any

from langfuse import Langfuse
from langgraph_amc_phoenix import LangfuseScores
from opentelemetry.sdk.trace import TracerProvider

from langgraph_amc.telemetry import ScoreSink

from .viewers import run, viewer


def test_langfuse() -> None:
    seen: list[Any] = []

    def answer(method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "/api/public/scores":
            seen.extend(body)
        return 200, {"id": "x"}

    with viewer(answer) as url:
        client = Langfuse(public_key="p", secret_key="s", base_url=url, tracer_provider=TracerProvider())
        sink = LangfuseScores(client)
        assert isinstance(sink, ScoreSink)
        _, names = run(sink)
        sink.flush()
        client.shutdown()
    filed = [(names[s["observationId"]], s["name"], s["value"]) for s in seen]
    assert ("invoke_workflow LangGraph", "reward", 0.5) in filed
    assert sum(name.startswith("amc.particle") and what == "reward" for name, what, _ in filed) == 4
    assert len({s["traceId"] for s in seen}) == 1
