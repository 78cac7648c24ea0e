"""What is measured, of a run and of many."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

import langgraph_amc as amc
from langgraph_amc.telemetry import names

from .support import INPUT, wrapped


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    assert data is not None
    return {m.name: list(m.data.data_points) for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}


def test_a_run_in_numbers() -> None:
    reader = InMemoryMetricReader()
    app = wrapped(telemetry=amc.Telemetry(meter_provider=MeterProvider([reader])), objective="sample", beta=1.0)
    app.invoke(INPUT)
    result = amc.last_run(app)
    found = points(reader)
    [duration] = found[names.RUN_DURATION]
    assert duration.count == 1
    assert dict(duration.attributes)[names.OUTCOME] == "finished"
    [ess] = found[names.ESS_RATIOS]
    assert ess.count == len(result.checks)
    assert ess.sum == pytest.approx(sum(c.ess / len(c.particles) for c in result.checks))
    assert sum(p.value for p in found[names.RESAMPLINGS]) == sum(c.resampled for c in result.checks)
    outcomes = {dict(p.attributes)[names.OUTCOME]: p.value for p in found[names.SEGMENTS]}
    assert outcomes.get("pruned", 0) == len(result.pruned)
    assert outcomes["finished"] == len(result.particles)
    assert [p.value for p in found[names.ACTIVE_PARTICLES]] == [0]
    [evidence] = found[names.LOG_EVIDENCES]
    assert evidence.value == pytest.approx(result.log_evidence)
    labels = {str(k) for group in found.values() for p in group for k in p.attributes}
    assert labels <= {names.OBJECTIVE, names.VALUE_FUNCTION, names.OUTCOME}


def test_two_runs_share_instruments_and_broken_ones_count() -> None:
    reader = InMemoryMetricReader()
    app = wrapped(telemetry=amc.Telemetry(meter_provider=MeterProvider([reader])))
    asyncio.run(app.ainvoke(INPUT))
    stream = app.stream(INPUT, stream_mode="values")
    next(stream)
    stream.close()
    found = points(reader)
    outcomes = {dict(p.attributes)[names.OUTCOME]: p.count for p in found[names.RUN_DURATION]}
    assert outcomes == {"finished": 1, "cancelled": 1}
    assert [p.value for p in found[names.ACTIVE_PARTICLES]] == [0]


def test_measurements_lead_to_the_run() -> None:
    reader = InMemoryMetricReader()
    telemetry = amc.Telemetry(tracer_provider=TracerProvider(), meter_provider=MeterProvider([reader]))
    wrapped(telemetry=telemetry).invoke(INPUT)
    [duration] = points(reader)[names.RUN_DURATION]
    assert duration.exemplars
    assert all(e.span_id for e in duration.exemplars)


def test_missing_values_are_not_measured() -> None:
    reader = InMemoryMetricReader()

    def value(transcripts: Any) -> Any:
        return np.array([np.nan, *np.linspace(0, 1, len(transcripts) - 1)])

    wrapped(value=value, telemetry=amc.Telemetry(meter_provider=MeterProvider([reader]))).invoke(INPUT)
    [values] = points(reader)[names.PARTICLE_VALUES]
    assert np.isfinite(values.sum)
