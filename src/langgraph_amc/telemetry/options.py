"""What of a run is traced; where it goes is the application's own affair (OpenTelemetry's SDK, ``OTEL_*``)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from langgraph_amc.checks import is_whole
from langgraph_amc.errors import ConfigurationError
from langgraph_amc.telemetry.scores import ScoreSink

Detail = Literal["run", "generation", "particle"]

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""OpenTelemetry's switch for prompts, answers and arguments in traces; nothing is captured where it is not set."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What `wrap(telemetry=…)` takes: how much of a run is traced.

    Attributes
    ----------
    detail: ``"run"`` one span for each run, ``"generation"`` also what was weighed and resampled, ``"particle"`` also
        every particle. Below the last one, spans that others make inside a particle are left out too.
    particles: trace at most so many particles at a time; ``None``: all. One that is pruned gives its place to the
        next clone.
    scores: is handed the run's values and rewards when it is over, for a viewer that files scores apart from spans.
    tracer_provider, meter_provider: instead of the global ones.
    """

    detail: Detail = "particle"
    particles: int | None = None
    scores: ScoreSink | None = None
    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None

    def __post_init__(self) -> None:
        if self.detail not in get_args(Detail):
            raise ConfigurationError(f"telemetry detail is one of {', '.join(get_args(Detail))}, got {self.detail!r}")
        if self.particles is not None and not is_whole(self.particles, 1):
            raise ConfigurationError(f"telemetry particles is a number of at least 1, or None, got {self.particles!r}")
        for given, kind, what in (
            (self.scores, ScoreSink, "scores"),
            (self.tracer_provider, TracerProvider, "tracer_provider"),
            (self.meter_provider, MeterProvider, "meter_provider"),
        ):
            if given is not None and not isinstance(given, kind):
                raise ConfigurationError(f"telemetry {what} is a {kind.__name__}, got {given!r}")


def captures_content() -> bool:
    """Whether the standard switch lets content into spans."""
    return os.environ.get(CAPTURE, "").strip().upper() in ("SPAN_ONLY", "SPAN_AND_EVENT")
