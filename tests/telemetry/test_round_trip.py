"""A run that is traced with content, written as OTLP, and imported again: the same particles, tokens and rewards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import langgraph_amc as amc
from langgraph_amc.evaluate.importing import import_logs
from langgraph_amc.trajectories import Trajectory, TrajectoryStore

from .support import INPUT, wrapped


def facts(trajectories: Any) -> list[tuple[Any, ...]]:
    """What a trace can hold of a trajectory."""
    return sorted(
        (t.run_id, t.particle, t.parent, t.forked_at, t.status, t.segments, t.rewards, t.outcome, t.usage, t.error)
        for t in trajectories
    )


def traced(folder: Path, *, asynchronous: bool, **settings: Any) -> amc.AMCResult:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(FileSpanExporter(str(folder / "traces.jsonl"))))
    instrumentor = LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        app = wrapped(telemetry=amc.Telemetry(tracer_provider=provider), **settings)
        asyncio.run(app.ainvoke(INPUT)) if asynchronous else app.invoke(INPUT)
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    return amc.last_run(app)


def imported(folder: Path, **options: Any) -> list[Trajectory]:
    with TrajectoryStore(folder / "store.sqlite") as store:
        for _ in range(2):  # again changes nothing
            report = import_logs(store, folder / "traces.jsonl", **options)
        assert report.imported == 0
        return list(store.trajectories())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_particles_come_back_as_they_were(asynchronous: bool, tmp_path: Path) -> None:
    result = traced(tmp_path, asynchronous=asynchronous, reward=lambda run: len(run.messages) / 100)
    assert result.pruned
    assert any(t.parent is not None for t in result.trajectories)
    assert facts(imported(tmp_path, feedback="reward")) == facts(result.trajectories)


def test_without_resampling(tmp_path: Path) -> None:
    result = traced(tmp_path, asynchronous=False, resample=amc.never())
    assert facts(imported(tmp_path)) == facts(result.trajectories)


def test_rewards_belong_to_their_particles(tmp_path: Path) -> None:
    given = iter([0.25, 0.5, 0.75, 1.0])
    result = traced(tmp_path, asynchronous=False, resample=amc.never(), reward=lambda run: next(given))
    found = {t.particle: t.outcome for t in imported(tmp_path, feedback="reward")}
    assert found == {p.name: p.reward for p in result.particles}
    assert sorted(x for x in found.values() if x is not None) == [0.25, 0.5, 0.75, 1.0]
