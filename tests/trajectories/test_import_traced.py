"""A real app under a real OpenTelemetry instrumentor and file exporter: what is imported is what the run recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import langgraph_amc as amc
from langgraph_amc.evaluate.importing import import_logs
from langgraph_amc.trajectories import Trajectory, TrajectoryStore

from .test_import_live import APPS, facts, service


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """What is traced while the test runs."""
    path = tmp_path / "traces.jsonl"
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(FileSpanExporter(str(path))))
    instrumentor = LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        yield path
    finally:
        instrumentor.uninstrument()
        provider.shutdown()


def imported(log: Path, tmp_path: Path, **options: Any) -> list[Trajectory]:
    with TrajectoryStore(tmp_path / "store.sqlite") as store:
        import_logs(store, log, **options)
        return list(store.trajectories())


@pytest.mark.parametrize("name", ["create_agent", "human_in_the_loop", "summarisation", "subgraph", "agent_as_tool"])
def test_traced_runs_are_what_a_live_run_records(name: str, log: Path, tmp_path: Path) -> None:
    case = APPS[name]
    app = amc.wrap(case.build(InMemorySaver()), particles=1, resample=amc.every(1))
    expected = []
    for given in case.inputs:
        app.invoke(given, {"configurable": {"thread_id": "t"}})
        expected.append(amc.last_run(app).winner.trajectory)
    assert facts(imported(log, tmp_path)) == facts(expected)


def test_failures_tokens_and_rewards(log: Path, tmp_path: Path) -> None:
    app = amc.wrap(service(), particles=1)
    expected = []
    for depth in (1, 13):
        try:
            app.invoke({"messages": [("user", f"depth {depth}")]}, {"configurable": {"thread_id": str(depth)}})
        except RuntimeError:
            assert depth == 13
        expected.append(amc.last_run(app).winner.trajectory)
    found = imported(log, tmp_path, rewards={"1": 1.0})
    assert facts(found) == facts(expected)
    assert [t.outcome for t in found] == [1.0, 0.0]
    assert found[0].rewards == (0.125, 0.0)
    assert found[0].usage.tokens == 48
    assert found[1].error == "RuntimeError: the probe is lost"
