"""A run in metrics: a callback of its events, there only where a meter provider is set."""

from __future__ import annotations

import math
from typing import Any

from opentelemetry.context import Context

from langgraph_amc.runtime import watching
from langgraph_amc.telemetry import Instruments, names


class RunMetrics:
    """Counts and measures one run; labels are few: the objective, V's name, what became of particles.

    ``context``: of the run's span, to which a measurement can then be followed.
    """

    def __init__(self, instruments: Instruments, context: Context | None) -> None:
        self._to = instruments
        self._context = context
        self._common: dict[str, Any] = {}
        self._active: set[str] = set()
        self._began: float | None = None

    def __call__(self, event: watching.RunEvent) -> None:
        """Measure what happened."""
        match event:
            case watching.RunStarted():
                self._common = {names.OBJECTIVE: event.objective, names.VALUE_FUNCTION: event.value or "none"}
            case watching.ParticleStarted():
                self._active.add(event.particle)
                self._to.active.add(1, self._common)
            case watching.GenerationStarted():
                self._generation(event.seconds)
                self._began = event.seconds
            case watching.Scored():
                for value in event.values:
                    if math.isfinite(value):
                        self._to.value.record(value, self._common, self._context)
            case watching.Weighed() if event.live:
                self._to.ess_ratio.record(event.ess, self._common, self._context)
            case watching.Resampled():
                self._to.resamplings.add(1, self._common, self._context)
                self._segments("survived", len(set(event.ancestors)))
            case watching.ParticlePruned():
                self._over(event.particle, "pruned")
            case watching.ParticleEnded():
                self._over(event.particle, event.status)
            case watching.RunEnded():
                self._end(event)

    def _end(self, event: watching.RunEnded) -> None:
        self._generation(event.seconds)
        for particle in list(self._active):
            self._over(particle, "cancelled" if event.broken_off else "abandoned")
        outcome: str = "error" if event.result is None else event.result.winner.trajectory.status
        if event.broken_off:
            outcome = "cancelled"
        self._to.run_duration.record(event.seconds, {**self._common, names.OUTCOME: outcome}, self._context)
        evidence = None if event.result is None else event.result.log_evidence
        if evidence is not None and math.isfinite(evidence):
            self._to.log_evidence.set(evidence, self._common, self._context)

    def _generation(self, now: float) -> None:
        if self._began is not None:
            self._to.generation_duration.record(now - self._began, self._common, self._context)
        self._began = None

    def _segments(self, outcome: str, count: int = 1) -> None:
        self._to.segments.add(count, {**self._common, names.OUTCOME: outcome}, self._context)

    def _over(self, particle: str, outcome: str) -> None:
        self._segments(outcome)
        if particle in self._active:
            self._active.remove(particle)
            self._to.active.add(-1, self._common)
